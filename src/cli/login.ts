import { hostname } from 'node:os';
import { setTimeout as wait } from 'node:timers/promises';
import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { LOGIN_CLIENT } from '../login-client.ts';
import { readServerFile } from '../server-file.ts';
import { checkUrl } from './agent-settings.ts';
import { changeConfigFile, readConfigFile } from './config-file.ts';
import { CommandError, usage } from './failure.ts';
import { addCommand, answer, type Output, posthorn, remark } from './output.ts';
import { isTokens, kept, post, refused, type Tokens } from './paired-token.ts';
import { harmlessLine } from './text.ts';

interface LoginOptions extends Output {
  url?: string;
  label?: string;
  config?: string;
}

export function addLogin(program: Command): void {
  addCommand(program, 'login', 'Pair this machine: a person confirms it in the browser, and tokens renew themselves.')
    .option('--url <url>', 'the server (POSTHORN_URL)')
    .option('--label <text>', "the machine's name (default: its host name)")
    .option('--config <path>', 'the private file to keep the tokens in (POSTHORN_CONFIG)')
    .action(login);
}

export function addLogout(program: Command): void {
  addCommand(program, 'logout', 'End the pairing of this machine, and forget its tokens.')
    .option('--config <path>', 'the private file with the tokens (POSTHORN_CONFIG)')
    .action(logout);
}

async function login(options: LoginOptions): Promise<void> {
  const { client, dataDirectory, host, port } = readConfig(process.env);
  const path = options.config ?? client.configFile;
  const file = await readConfigFile(path);
  const running = options.url ?? client.url ?? file?.url ?? (await readServerFile(dataDirectory))?.url;
  const url = checkUrl(running ?? `http://${host}:${port}`);
  if (file?.login) throw usage(`This machine is paired with ${file.url} already. First run: ${posthorn} logout`);
  const asked = await post(url, '/device/authorize', {
    client_id: LOGIN_CLIENT,
    device_label: options.label ?? hostname(),
  });
  if (typeof asked.device_code !== 'string') throw refused(asked);
  remark(
    `Open this in the browser where you are signed in, and confirm the code ${harmlessLine(String(asked.user_code))}:\n` +
      `  ${harmlessLine(String(asked.verification_uri_complete))}\nWaiting…`,
  );
  const tokens = await poll(url, asked.device_code, Number(asked.interval ?? 5), Number(asked.expires_in));
  // an agent of before belongs to the connection of before
  await changeConfigFile(path, { url, ...kept(tokens), agent_id: undefined });
  answer(options, { url, config: path }, `Paired with ${url}. The tokens are in ${path}.`);
}

async function poll(url: string, deviceCode: string, interval: number, seconds: number): Promise<Tokens> {
  let pause = interval;
  for (const end = Date.now() + seconds * 1_000; Date.now() < end; ) {
    await wait(pause * 1_000);
    const grant = { grant_type: 'urn:ietf:params:oauth:grant-type:device_code', device_code: deviceCode };
    const answer = await post(url, '/token', { ...grant, client_id: LOGIN_CLIENT });
    if (isTokens(answer)) return answer;
    if (answer.error === 'slow_down') pause += 5;
    else if (answer.error !== 'authorization_pending') throw refused(answer);
  }
  throw new CommandError('expired', 'Nobody confirmed the code within 10 minutes.');
}

async function logout(options: Output & { config?: string }): Promise<void> {
  const path = options.config ?? readConfig(process.env).client.configFile;
  const file = await readConfigFile(path);
  if (!file?.login || file.url === undefined) throw usage('This machine is not paired.');
  const { url, login } = file;
  // the tokens are forgotten even where the server cannot be told: it ends them by itself after 90 days
  const told = await post(url, '/revoke', { token: login.refresh_token, client_id: LOGIN_CLIENT }).catch(
    (error: Error) => error,
  );
  await changeConfigFile(path, { token: undefined, login: undefined, agent_id: undefined });
  if (told instanceof Error) throw told;
  answer(options, { url, revoked: true }, `This machine is no longer paired with ${url}.`);
}
