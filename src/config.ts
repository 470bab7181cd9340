import { homedir } from 'node:os';
import { join } from 'node:path';
import envPaths from 'env-paths';
import { z } from 'zod';

/** Every setting of the server, once: docs/settings.md is generated from here. */
export const SETTINGS = {
  POSTHORN_DATABASE_URL: { schema: z.url().optional(), standard: 'the embedded server of `start`', about: 'PostgreSQL 15 to 18. The pods log in as posthorn_app here; may be a transaction pooler.' },
  POSTHORN_LISTEN_URL: { schema: z.url().optional(), standard: 'POSTHORN_DATABASE_URL', about: 'A direct connection for LISTEN, where POSTHORN_DATABASE_URL is a pooler.' },
  POSTHORN_PUBLIC_URL: { schema: z.url().optional(), standard: 'http://HOST:PORT', about: 'Where agents and people reach this server, without a path.' },
  POSTHORN_HOST: { schema: z.string().min(1).default('127.0.0.1'), standard: '127.0.0.1', about: 'The address to listen on.' },
  POSTHORN_PORT: { schema: z.coerce.number().int().min(0).max(65_535).default(7070), standard: '7070', about: 'The port to listen on; 0 takes a free one.' },
  POSTHORN_DATA_DIR: { schema: z.string().min(1).default(envPaths('posthorn', { suffix: '' }).data), standard: "the platform's data folder for posthorn", about: 'Embedded database, key ring, and where a running `start` leaves its addresses.' },
  POSTHORN_KEYRING: { schema: z.string().min(1).optional(), standard: 'keyring.json in POSTHORN_DATA_DIR', about: 'The key ring: its JSON, or the path of a file that holds it.' },
  POSTHORN_CONFIG: { schema: z.string().min(1).default(join(homedir(), '.config', 'posthorn', 'config.json')), standard: '~/.config/posthorn/config.json', about: "The command line's own file: server, token, agent." },
} as const;

export interface Config {
  databaseUrl: string | undefined;
  listenUrl: string | undefined;
  publicUrl: string | undefined;
  host: string;
  port: number;
  dataDirectory: string;
  keyRing: string | undefined;
  cliConfig: string;
}

/**
 * Reads the settings of the environment.
 *
 * @throws Error naming the setting and what is wrong with it
 */
export function readConfig(env: NodeJS.ProcessEnv): Config {
  const read = <Name extends keyof typeof SETTINGS>(name: Name): z.output<(typeof SETTINGS)[Name]['schema']> => {
    const parsed = SETTINGS[name].schema.safeParse(env[name] === '' ? undefined : env[name]);
    if (!parsed.success) throw new Error(`${name} is not valid: ${parsed.error.issues[0]!.message}.`);
    return parsed.data as z.output<(typeof SETTINGS)[Name]['schema']>;
  };
  return {
    databaseUrl: read('POSTHORN_DATABASE_URL'),
    listenUrl: read('POSTHORN_LISTEN_URL') ?? read('POSTHORN_DATABASE_URL'),
    publicUrl: read('POSTHORN_PUBLIC_URL')?.replace(/\/+$/, ''),
    host: read('POSTHORN_HOST'),
    port: read('POSTHORN_PORT'),
    dataDirectory: read('POSTHORN_DATA_DIR'),
    keyRing: read('POSTHORN_KEYRING'),
    cliConfig: read('POSTHORN_CONFIG'),
  };
}
