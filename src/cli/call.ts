import { requestFor } from '../operations/http-request.ts';
import type { Operation } from '../operations/operation.ts';
import type { AgentSettings } from './agent-settings.ts';
import { CommandError, EXIT, unreachable } from './failure.ts';

/** How long one call may take, in milliseconds: longer than the longest wait for mail. */
const CALL_TIMEOUT_MS = 60_000;

/**
 * Carries out an operation on the server.
 *
 * @throws CommandError with the server's own error, or `unreachable`
 */
export async function call(
  { url, token }: Pick<AgentSettings, 'url' | 'token'>,
  operation: Operation,
  input: Record<string, unknown>,
): Promise<Record<string, unknown>> {
  const { method, path, query, body } = requestFor(operation, input);
  const target = `${url}${path}${query.size > 0 ? `?${query}` : ''}`;
  const response = await reach(url, target, {
    method,
    headers: { authorization: `Bearer ${token}`, ...(body && { 'content-type': 'application/json' }) },
    body: body && JSON.stringify(body),
    // a redirect would carry the token to wherever it leads
    redirect: 'manual',
    signal: AbortSignal.timeout(CALL_TIMEOUT_MS),
  });
  const answer = await readObject(response);
  if (response.ok && answer) return answer;
  if (typeof answer?.error !== 'string') {
    throw unreachable(`${url} answers with HTTP ${response.status}, and not as Posthorn does. Is the address right?`);
  }
  const { error, message, ...facts } = answer;
  throw new CommandError(error as string, String(message ?? ''), EXIT.refused, facts);
}

async function reach(url: string, target: string, request: RequestInit): Promise<Response> {
  try {
    return await fetch(target, request);
  } catch (error) {
    if ((error as Error).name === 'TimeoutError') throw unreachable(`${url} gave no answer in time.`);
    const cause = (error as Error).cause as NodeJS.ErrnoException | undefined;
    throw unreachable(`${url} does not answer (${cause?.code ?? cause?.message ?? 'failed'}). Does the server run?`);
  }
}

async function readObject(response: Response): Promise<Record<string, unknown> | undefined> {
  try {
    const value = await response.json();
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}
