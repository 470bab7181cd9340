import { readFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { z } from 'zod';
import { readConfig } from '../config.ts';
import { readPrivateFile, writePrivateFile } from '../private-file.ts';
import { readServerFile } from '../server-file.ts';
import { CommandError, usage } from './failure.ts';
import { posthorn } from './output.ts';

/** What every command of an agent takes. */
export interface AgentOptions {
  url?: string;
  tokenFile?: string;
  config?: string;
}

/** Who calls, and where. */
export interface AgentSettings {
  url: string;
  token: string;
  agentId: string | undefined;
  /** The configuration file, where one is in use: what is learnt goes there. */
  configFile: string | undefined;
}

/** Other programs may keep more in the file; it stays. */
const ConfigFile = z.looseObject({
  url: z.url({ protocol: /^https?$/ }).optional(),
  token: z.string().min(1).optional(),
  agent_id: z.uuid().optional(),
});
type ConfigFile = z.infer<typeof ConfigFile>;

export function addAgentOptions(command: Command): Command {
  return command
    .option('--url <url>', 'the server (POSTHORN_URL)')
    .option('--token-file <path>', 'a file that holds the token (POSTHORN_TOKEN)')
    .option('--config <path>', 'a private file with url, token and agent_id (POSTHORN_CONFIG)');
}

/**
 * Finds out who calls and where: options first, then the environment, then the configuration file; for the server's
 * address, at last, a `start` that runs here.
 *
 * @throws CommandError if there is no token, ExposedFileError if others can read the configuration file
 */
export async function readAgentSettings(options: AgentOptions): Promise<AgentSettings> {
  const { client, dataDirectory, host, port } = readConfig(process.env);
  const path = options.config ?? client.configFile;
  const file = await readConfigFile(path);
  const isGiven = options.config !== undefined || client.isConfigFileGiven;
  const given = options.tokenFile === undefined ? client.token : await readTokenFile(options.tokenFile);
  const token = given ?? file?.token;
  if (token === undefined) {
    throw usage(
      `No token. Make one with: ${posthorn} token create --label NAME --scope messaging\n` +
        `Then set POSTHORN_TOKEN, or pass --token-file, or put {"token": "…"} into ${path} (chmod 600).`,
    );
  }
  // it would break the header that it goes into
  if (!/^[\x21-\x7e]+$/.test(token)) throw usage('The token holds characters that no token has.');
  const url = options.url ?? client.url ?? file?.url ?? (await readServerFile(dataDirectory))?.url;
  return {
    url: checkUrl(url ?? `http://${host}:${port}`),
    token,
    agentId: client.agentId ?? file?.agent_id,
    configFile: isGiven || file ? path : undefined,
  };
}

/** Notes in the configuration file which agent this is from now on. */
export async function rememberAgent(path: string, agentId: string): Promise<void> {
  const file: ConfigFile = { ...(await readConfigFile(path)), agent_id: agentId };
  await writePrivateFile(path, `${JSON.stringify(file, null, 2)}\n`);
}

async function readConfigFile(path: string): Promise<ConfigFile | undefined> {
  const text = await readPrivateFile(path);
  if (text === undefined) return undefined;
  try {
    return ConfigFile.parse(JSON.parse(text));
  } catch {
    throw new CommandError(
      'config',
      `${path} must hold a JSON object with "url", "token" and "agent_id", each optional.`,
    );
  }
}

async function readTokenFile(path: string): Promise<string> {
  try {
    return (await readFile(path, 'utf8')).trim();
  } catch (error) {
    throw usage(`The token file cannot be read: ${(error as Error).message}.`);
  }
}

function checkUrl(url: string): string {
  if (!/^https?:\/\/[^/]/.test(url) || !URL.canParse(url)) throw usage(`This is no address of a server: ${url}`);
  return url.replace(/\/+$/, '');
}
