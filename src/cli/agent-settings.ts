import { readFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { readServerFile } from '../server-file.ts';
import { changeConfigFile, readConfigFile } from './config-file.ts';
import { usage } from './failure.ts';
import { posthorn } from './output.ts';
import { currentToken } from './paired-token.ts';

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
  /** The token as it is later on: a paired machine's is a new one each hour. */
  currentToken: () => Promise<string>;
  agentId: string | undefined;
  /** The configuration file, where one is in use: what is learnt goes there. */
  configFile: string | undefined;
}

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
  const isPaired = given === undefined && file?.login !== undefined;
  const token = isPaired ? await currentToken(path) : (given ?? file?.token);
  if (token === undefined) {
    throw usage(
      `No token. Pair this machine with: ${posthorn} login\n` +
        `Or make one with: ${posthorn} token create --label NAME --scope messaging\n` +
        `Then set POSTHORN_TOKEN, or pass --token-file, or put {"token": "…"} into ${path} (chmod 600).`,
    );
  }
  // it would break the header that it goes into
  if (!/^[\x21-\x7e]+$/.test(token)) throw usage('The token holds characters that no token has.');
  const url = options.url ?? client.url ?? file?.url ?? (await readServerFile(dataDirectory))?.url;
  return {
    url: checkUrl(url ?? `http://${host}:${port}`),
    token,
    currentToken: isPaired ? () => currentToken(path) : async () => token,
    agentId: client.agentId ?? file?.agent_id,
    configFile: isGiven || file ? path : undefined,
  };
}

/** Notes in the configuration file which agent this is from now on. */
export async function rememberAgent(path: string, agentId: string): Promise<void> {
  await changeConfigFile(path, { agent_id: agentId });
}

async function readTokenFile(path: string): Promise<string> {
  try {
    return (await readFile(path, 'utf8')).trim();
  } catch (error) {
    throw usage(`The token file cannot be read: ${(error as Error).message}.`);
  }
}

/** @throws CommandError if it is no address of a server */
export function checkUrl(url: string): string {
  if (!/^https?:\/\/[^/]/.test(url) || !URL.canParse(url)) throw usage(`This is no address of a server: ${url}`);
  return url.replace(/\/+$/, '');
}
