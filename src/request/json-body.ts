import type { IncomingMessage } from 'node:http';
import rawBody from 'raw-body';
import { invalidRequest, PosthornError } from '../errors.ts';

/** The largest request body, in bytes, unless a route says otherwise. */
export const MAX_BODY_BYTES = 1_048_576;

const utf8 = new TextDecoder('utf-8', { fatal: true });

/**
 * Reads a JSON object. The common body parsers replace broken UTF-8 by question marks and go on; a message that was
 * altered on its way in must not be stored, so bytes are decoded strictly here. A name that stands twice in an object is
 * refused: JSON.parse takes its last value and other readers of the same body the first.
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
  let text: string;
  let value: unknown;
  try {
    text = utf8.decode(bytes);
    value = JSON.parse(text);
  } catch (error) {
    throw invalidRequest([], error instanceof SyntaxError ? 'The body is not JSON.' : 'The body is not valid UTF-8.');
  }
  if (value === null || typeof value !== 'object' || Array.isArray(value))
    throw invalidRequest([], 'The body must be a JSON object.');
  if (countNames(text) > countFields(value)) throw invalidRequest([], 'The body has an object with a name twice.');
  return value as Record<string, unknown>;
}

/** How many names of fields stand in valid JSON: strings before a colon. */
function countNames(json: string): number {
  let names = 0;
  for (let at = json.indexOf('"'); at !== -1; at = json.indexOf('"', at)) {
    at = json.indexOf('"', at + 1);
    while (isEscaped(json, at)) at = json.indexOf('"', at + 1);
    do at++;
    while (json.charCodeAt(at) <= SPACE);
    if (json.charCodeAt(at) === COLON) names++;
  }
  return names;
}

const SPACE = 0x20;
const COLON = 0x3a;
const BACKSLASH = 0x5c;

function isEscaped(json: string, at: number): boolean {
  let backslashes = 0;
  while (json.charCodeAt(at - 1 - backslashes) === BACKSLASH) backslashes++;
  return backslashes % 2 === 1;
}

/** How many fields the objects of a JSON value have, at any depth. */
function countFields(value: object): number {
  let fields = 0;
  const left = [value];
  for (let each = left.pop(); each !== undefined; each = left.pop()) {
    const values = Object.values(each);
    if (!Array.isArray(each)) fields += values.length;
    for (const inner of values) if (typeof inner === 'object' && inner !== null) left.push(inner);
  }
  return fields;
}

async function readBytes(request: IncomingMessage): Promise<Buffer> {
  try {
    return await rawBody(request, { length: request.headers['content-length'], limit: MAX_BODY_BYTES });
  } catch (error) {
    if ((error as { type?: string }).type === 'entity.too.large') throw new PosthornError('payload_too_large');
    throw invalidRequest([], 'The body did not arrive whole.');
  }
}
