import type { IncomingMessage } from 'node:http';
import rawBody from 'raw-body';
import { invalidRequest, PosthornError } from '../errors.ts';

/** The largest request body, in bytes, unless a route says otherwise. */
export const MAX_BODY_BYTES = 1_048_576;

const utf8 = new TextDecoder('utf-8', { fatal: true });

/**
 * Reads a JSON object. The common body parsers replace broken UTF-8 by question marks and go on; a message that was
 * altered on its way in must not be stored, so bytes are decoded strictly here.
 *
 * @throws PosthornError payload_too_large, invalid_request
 */
export async function readJsonObject(request: IncomingMessage): Promise<Record<string, unknown>> {
  const contentType = request.headers['content-type'] ?? '';
  if (!/^application\/(json|[a-z.+-]+\+json)\s*(;|$)/i.test(contentType))
    throw invalidRequest([], 'Content-Type must be application/json.');
  const charset = /;\s*charset\s*=\s*"?([^";\s]*)/i.exec(contentType)?.[1];
  if (charset !== undefined && charset.toLowerCase() !== 'utf-8')
    throw invalidRequest([], 'The charset of the body must be utf-8.');
  if (request.headers['content-encoding'] !== undefined)
    throw invalidRequest([], 'A compressed request body is not accepted.');
  const bytes = await readBytes(request);
  let value: unknown;
  try {
    value = JSON.parse(utf8.decode(bytes));
  } catch (error) {
    throw invalidRequest([], error instanceof SyntaxError ? 'The body is not JSON.' : 'The body is not valid UTF-8.');
  }
  if (value === null || typeof value !== 'object' || Array.isArray(value))
    throw invalidRequest([], 'The body must be a JSON object.');
  return value as Record<string, unknown>;
}

async function readBytes(request: IncomingMessage): Promise<Buffer> {
  try {
    return await rawBody(request, { length: request.headers['content-length'], limit: MAX_BODY_BYTES });
  } catch (error) {
    if ((error as { type?: string }).type === 'entity.too.large') throw new PosthornError('payload_too_large');
    throw invalidRequest([], 'The body did not arrive whole.');
  }
}
