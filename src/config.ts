import { join } from 'node:path';
import envPaths from 'env-paths';
import { z } from 'zod';
import { type AllowList, parseAllowList } from './net/allow-list.ts';
import type { OpenIdSettings } from './openid/provider.ts';

const folders = envPaths('posthorn', { suffix: '' });

const databaseUrl = z.url({
  protocol: /^postgres(ql)?$/,
  error: 'must look like postgres://user:password@host:5432/database',
});
const httpUrl = z
  .url({ protocol: /^https?$/, error: 'must look like https://posthorn.example' })
  .transform((url) => url.replace(/\/+$/, ''));
/** Who names somebody for us must not be spoken with in the clear, unless on the same machine. Compared to the letter, so kept so. */
const issuerUrl = z
  .url({ protocol: /^https?$/, error: 'must look like https://login.example' })
  .refine(
    (url) => /^https:|^http:\/\/(localhost|127\.0\.0\.1|\[::1\])(:|\/|$)/.test(url),
    'must be an https:// address',
  );
const text = z.string().min(1);
const port = z.coerce
  .number({ error: 'must be a port from 0 to 65535' })
  .int('must be a port from 0 to 65535')
  .min(0, 'must be a port from 0 to 65535')
  .max(65_535, 'must be a port from 0 to 65535');
const allowList = z.string().transform((value, context) => {
  try {
    return parseAllowList(value);
  } catch (error) {
    context.addIssue((error as Error).message);
    return z.NEVER;
  }
});

interface Setting {
  /** Whose it is: a process that serves, or a command that talks to one. */
  of: 'server' | 'client';
  schema: z.ZodType;
  /** The default, in words. */
  standard: string;
  about: string;
}

/** Every setting, once: docs/settings.md is generated from here. All are environment variables. */
export const SETTINGS = {
  POSTHORN_DATABASE_URL: {
    of: 'server',
    schema: databaseUrl.optional(),
    standard: 'the embedded server of `start`',
    about: 'PostgreSQL 15 to 18. `serve` logs in as `posthorn_app` here; may lead to a transaction pooler.',
  },
  POSTHORN_LISTEN_URL: {
    of: 'server',
    schema: databaseUrl.optional(),
    standard: '`POSTHORN_DATABASE_URL`',
    about: 'The same database without the pooler: LISTEN, the worker and `migrate` need a session of their own.',
  },
  POSTHORN_PUBLIC_URL: {
    of: 'server',
    schema: httpUrl.optional(),
    standard: '`http://HOST:PORT`',
    about: 'Where agents and people reach this server, without a path.',
  },
  POSTHORN_HOST: {
    of: 'server',
    schema: text.default('127.0.0.1'),
    standard: '`127.0.0.1`',
    about: 'The address to listen on.',
  },
  POSTHORN_PORT: {
    of: 'server',
    schema: port.default(7070),
    standard: '`7070`',
    about: 'The port to listen on; 0 takes a free one.',
  },
  POSTHORN_METRICS_PORT: {
    of: 'server',
    schema: port.optional(),
    standard: 'not served',
    about: 'The port for Prometheus: `GET /metrics`, at `POSTHORN_HOST`, of `serve`, `worker` and `start`.',
  },
  POSTHORN_DATA_DIR: {
    of: 'server',
    schema: text.default(folders.data),
    standard: "the platform's data folder for posthorn",
    about: 'The embedded database, the key ring, and where a running `start` leaves its addresses for the commands.',
  },
  POSTHORN_KEYRING: {
    of: 'server',
    schema: text.optional(),
    standard: '`keyring.json` in `POSTHORN_DATA_DIR`, made by the first `start`',
    about: 'The key ring: its JSON, or the path of a file that holds it. Every process that serves needs the same.',
  },
  POSTHORN_WEBHOOK_ALLOW: {
    of: 'server',
    schema: allowList.prefault(''),
    standard: 'none',
    about:
      'Where webhooks and notifications may go besides public HTTPS: hosts (`hooks.corp`), `host:port` and networks (`10.0.0.0/8`), by commas. There plain HTTP and any port will do.',
  },
  POSTHORN_OPENID_ISSUER: {
    of: 'server',
    schema: issuerUrl.optional(),
    standard: 'none',
    about:
      'An OpenID provider that owners may sign in at, as it calls itself; where it is a private host, that host may be asked. It sends browsers back to `/owner/sign-in/openid/callback`.',
  },
  POSTHORN_OPENID_CLIENT_ID: {
    of: 'server',
    schema: text.optional(),
    standard: 'none; must be set with the issuer',
    about: 'How the provider knows this server.',
  },
  POSTHORN_OPENID_CLIENT_SECRET: {
    of: 'server',
    schema: text.optional(),
    standard: 'a public client',
    about: 'What this server proves itself with to the provider, sent as `client_secret_post`.',
  },
  POSTHORN_OPENID_NAME: {
    of: 'server',
    schema: z.string().trim().min(1).max(40, 'must be at most 40 characters').optional(),
    standard: "the issuer's host",
    about: 'What the provider is called on the pages: “Sign in with …”.',
  },
  POSTHORN_URL: {
    of: 'client',
    schema: httpUrl.optional(),
    standard: "the configuration file's, else a running `start`'s",
    about: 'The server that an agent talks to.',
  },
  POSTHORN_TOKEN: {
    of: 'client',
    schema: text.optional(),
    standard: "the configuration file's",
    about: "The agent's credential, from `posthorn token create`.",
  },
  POSTHORN_AGENT_ID: {
    of: 'client',
    schema: z.uuid({ error: 'must be an id such as 019ad5a0-0000-7000-8000-000000000000' }).optional(),
    standard: "the configuration file's",
    about: 'Which agent to act as, from `posthorn messages register`.',
  },
  POSTHORN_CONFIG: {
    of: 'client',
    schema: text.optional(),
    standard: `\`config.json\` in the platform's configuration folder for posthorn`,
    about: 'A file that only you can read (0600), with `url`, `token` and `agent_id` as JSON.',
  },
} as const satisfies Record<string, Setting>;

/** A setting has a value that it cannot have. */
export class InvalidSettingError extends Error {
  override name = 'InvalidSettingError';
}

export interface Config {
  databaseUrl: string | undefined;
  listenUrl: string | undefined;
  publicUrl: string | undefined;
  host: string;
  port: number;
  metricsPort: number | undefined;
  dataDirectory: string;
  keyRing: string | undefined;
  webhookAllow: AllowList;
  openid: OpenIdSettings | undefined;
  client: {
    url: string | undefined;
    token: string | undefined;
    agentId: string | undefined;
    /** Where the configuration file is, and whether somebody said so. */
    configFile: string;
    isConfigFileGiven: boolean;
  };
}

/**
 * Reads the settings of the environment. An empty variable is one that is not set.
 *
 * @throws InvalidSettingError naming the setting and what is wrong with it, never its value
 */
export function readConfig(env: NodeJS.ProcessEnv): Config {
  const read = <Name extends keyof typeof SETTINGS>(name: Name): z.output<(typeof SETTINGS)[Name]['schema']> => {
    const parsed = SETTINGS[name].schema.safeParse(env[name] === '' ? undefined : env[name]);
    if (!parsed.success) throw new InvalidSettingError(`${name} ${parsed.error.issues[0]!.message}.`);
    return parsed.data as z.output<(typeof SETTINGS)[Name]['schema']>;
  };
  const readOpenId = (): OpenIdSettings | undefined => {
    const [issuer, clientId] = [read('POSTHORN_OPENID_ISSUER'), read('POSTHORN_OPENID_CLIENT_ID')];
    if (issuer === undefined && clientId === undefined) return undefined;
    if (issuer === undefined) throw new InvalidSettingError('POSTHORN_OPENID_ISSUER must be set, too.');
    if (clientId === undefined) throw new InvalidSettingError('POSTHORN_OPENID_CLIENT_ID must be set, too.');
    const name = read('POSTHORN_OPENID_NAME') ?? new URL(issuer).host;
    return { issuer, clientId, clientSecret: read('POSTHORN_OPENID_CLIENT_SECRET'), name };
  };
  const configFile = read('POSTHORN_CONFIG');
  return {
    databaseUrl: read('POSTHORN_DATABASE_URL'),
    listenUrl: read('POSTHORN_LISTEN_URL') ?? read('POSTHORN_DATABASE_URL'),
    publicUrl: read('POSTHORN_PUBLIC_URL'),
    host: read('POSTHORN_HOST'),
    port: read('POSTHORN_PORT'),
    metricsPort: read('POSTHORN_METRICS_PORT'),
    dataDirectory: read('POSTHORN_DATA_DIR'),
    keyRing: read('POSTHORN_KEYRING'),
    webhookAllow: read('POSTHORN_WEBHOOK_ALLOW'),
    openid: readOpenId(),
    client: {
      url: read('POSTHORN_URL'),
      token: read('POSTHORN_TOKEN'),
      agentId: read('POSTHORN_AGENT_ID'),
      configFile: configFile ?? join(folders.config, 'config.json'),
      isConfigFileGiven: configFile !== undefined,
    },
  };
}

/** Variables that look like settings of ours and are none: a misspelt name would be ignored without a word. */
export function unknownSettings(env: NodeJS.ProcessEnv): string[] {
  return Object.keys(env).filter((name) => /^POSTHORN_(?!TEST_)/.test(name) && !(name in SETTINGS));
}
