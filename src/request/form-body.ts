import type { IncomingMessage } from 'node:http';
import rawBody from 'raw-body';
import { invalidRequest } from '../errors.ts';

/** No form of ours, and no request of an OAuth client, is near this long. */
const MAX_BYTES = 65_536;

/**
 * The fields of a form that a browser sent.
 *
 * @throws PosthornError invalid_request if it is no form, or too long
 */
export async function readForm(request: IncomingMessage): Promise<URLSearchParams> {
  const type = request.headers['content-type'] ?? '';
  if (!/^application\/x-www-form-urlencoded\s*(;|$)/i.test(type)) throw invalidRequest([], 'This must be a form.');
  return new URLSearchParams((await readShortBody(request, 'form')).toString());
}

/**
 * A body of up to 65,536 bytes.
 *
 * @param name what to call it in the refusal
 * @throws PosthornError invalid_request if it did not arrive whole, or is longer
 */
export async function readShortBody(request: IncomingMessage, name: 'body' | 'form'): Promise<Buffer> {
  try {
    return await rawBody(request, { length: request.headers['content-length'], limit: MAX_BYTES });
  } catch {
    throw invalidRequest([], `The ${name} did not arrive whole, or is too long.`);
  }
}
