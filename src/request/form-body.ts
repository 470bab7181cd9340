import type { IncomingMessage } from 'node:http';
import rawBody from 'raw-body';
import { invalidRequest } from '../errors.ts';

/** Forms of ours are short. */
const MAX_FORM_BYTES = 65_536;

/**
 * The fields of a form that a browser sent.
 *
 * @throws PosthornError invalid_request if it is no form, or too long
 */
export async function readForm(request: IncomingMessage): Promise<URLSearchParams> {
  const type = request.headers['content-type'] ?? '';
  if (!/^application\/x-www-form-urlencoded\s*(;|$)/i.test(type)) throw invalidRequest([], 'This must be a form.');
  try {
    const limit = MAX_FORM_BYTES;
    return new URLSearchParams(
      await rawBody(request, { length: request.headers['content-length'], limit, encoding: 'utf8' }),
    );
  } catch {
    throw invalidRequest([], 'The form did not arrive whole, or is too long.');
  }
}
