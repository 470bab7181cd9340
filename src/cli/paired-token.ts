import { PosthornError } from '../errors.ts';
import { LOGIN_CLIENT } from '../login-client.ts';
import { changeConfigFile, readConfigFile } from './config-file.ts';
import { CommandError, unreachable } from './failure.ts';
import { underLock } from './file-lock.ts';
import { posthorn } from './output.ts';

/** How long one request may take, in milliseconds. */
const REQUEST_MS = 15_000;

/** A token that ends within this time, in milliseconds, is not used any more: a call may take as long. */
const SPARE_MS = 90_000;

/**
 * The token of a paired machine, a new one if the old one ends. Of several processes one asks for it, and the others
 * take what that one got.
 *
 * @param path the configuration file
 * @throws PosthornError device_unauthorized if the machine must be paired again
 */
export async function currentToken(path: string): Promise<string> {
  const isFresh = (expiresAt: string) => Date.parse(expiresAt) - SPARE_MS > Date.now();
  const before = await readConfigFile(path);
  if (before?.login && before.token !== undefined && isFresh(before.login.expires_at)) return before.token;
  return await underLock(`${path}.lock`, async () => {
    const file = await readConfigFile(path);
    if (!file?.login || file.url === undefined) throw notPaired();
    if (file.token !== undefined && isFresh(file.login.expires_at)) return file.token; // another process was first
    const grant = { grant_type: 'refresh_token', refresh_token: file.login.refresh_token, client_id: LOGIN_CLIENT };
    const tokens = await post(file.url, '/token', grant);
    if (!isTokens(tokens)) throw tokens.error === 'invalid_grant' ? notPaired() : refused(tokens);
    await changeConfigFile(path, kept(tokens));
    return tokens.access_token;
  });
}

export interface Tokens {
  access_token: string;
  refresh_token: string;
  expires_in: number;
}

export function isTokens(answer: Record<string, unknown>): answer is Record<string, unknown> & Tokens {
  const { access_token, refresh_token, expires_in } = answer;
  return typeof access_token === 'string' && typeof refresh_token === 'string' && typeof expires_in === 'number';
}

/** As the configuration file keeps them. */
export function kept({ access_token, refresh_token, expires_in }: Tokens) {
  const expiresAt = new Date(Date.now() + expires_in * 1_000).toISOString();
  return { token: access_token, login: { refresh_token, expires_at: expiresAt } };
}

const notPaired = () =>
  new PosthornError('device_unauthorized', {}, `This machine is not paired any more. Run: ${posthorn} login`);

export function refused({ error, error_description }: Record<string, unknown>): CommandError {
  return new CommandError(String(error ?? 'failed'), String(error_description ?? 'The server refuses.'));
}

/** A request of OAuth, whose refusals are answers, too. */
export async function post(
  url: string,
  path: string,
  fields: Record<string, string>,
): Promise<Record<string, unknown>> {
  let text: string;
  try {
    const response = await fetch(url + path, {
      method: 'POST',
      body: new URLSearchParams(fields),
      // a redirect would carry the tokens to wherever it leads
      redirect: 'manual',
      signal: AbortSignal.timeout(REQUEST_MS),
    });
    text = await response.text();
    if (response.ok && text === '') return {};
  } catch {
    throw unreachable(`${url} does not answer. Does the server run?`);
  }
  try {
    const value = JSON.parse(text);
    if (typeof value === 'object' && value !== null) return value;
  } catch {
    // said below
  }
  throw unreachable(`${url} does not answer as Posthorn does. Is the address right?`);
}
