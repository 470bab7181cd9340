import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';
import suite from './json-test-suite.json' with { type: 'json' };
import { type PopulatedOwner, populateOwner } from './populated-owner.ts';
import { endCalls, type RawAnswer, rawCall } from './raw-call.ts';
import { expectRefusal } from './refusal.ts';
import { changedTables, digestStored } from './stored.ts';

// Bodies on which JSON parsers differ. What JSON.parse takes for an object is judged by its fields, all else is refused
// as a body.

let posthorn: TestPosthorn;
let owner: PopulatedOwner;

beforeAll(async () => {
  posthorn = await startPosthorn();
  owner = await populateOwner(posthorn);
});
afterAll(async () => {
  endCalls();
  await posthorn.close();
});

/** The two files of 100,000 bytes and more, and a deep one that is valid. */
const LARGE: Record<string, string> = {
  'n_structure_100000_opening_arrays.json': '['.repeat(100_000),
  'n_structure_open_array_object.json': '[{"":'.repeat(50_000),
  'y_100000_arrays.json': `${'['.repeat(100_000)}${']'.repeat(100_000)}`,
  'y_object_of_100000_objects.json': `${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}`,
};

const bodies = new Map<string, Buffer>([
  ...Object.entries(suite.files).map(([name, text]) => [name, Buffer.from(text, 'base64')] as const),
  ...Object.entries(LARGE).map(([name, text]) => [name, Buffer.from(text)] as const),
]);

const doors = [
  '/messaging/v1/send',
  '/messaging/v1/agents',
  '/messaging/v1/ack',
  '/messaging/v1/connections/child',
  '/mcp',
];

async function post(path: string, body: Buffer): Promise<RawAnswer> {
  const headers = {
    authorization: `Bearer ${owner.caller.token}`,
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
  };
  return await rawCall(posthorn.pods[0]!.url, { method: 'POST', path, headers, body });
}

/** The two whose objects have a name twice: JSON to the parser, refused all the same. */
const REPEATING = ['y_object_duplicated_key.json', 'y_object_duplicated_key_and_value.json'];

/** What the parser makes of bytes; undefined if they are no JSON in UTF-8. */
function read(bytes: Buffer): { value: unknown } | undefined {
  try {
    return { value: JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)) };
  } catch {
    return undefined;
  }
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

const ofTheBody = { error: 'invalid_request', fields: [], message: expect.stringMatching(/^The body /) };

describe.each(doors)('%s', (path) => {
  test('a body that is no request stores nothing', async () => {
    const before = await digestStored(posthorn.database);
    for (const [name, body] of bodies) {
      const answer = await post(path, body);
      expect(answer.status, name).toBe(400);
      const refusal = JSON.parse(answer.text);
      if (name.startsWith('n_')) expect(read(body), name).toBeUndefined();
      if ('jsonrpc' in refusal) expect(refusal.error.code, name).toBe(INVALID_REQUEST);
      else expect(expectRefusal(refusal), name).toBe('invalid_request');
      if (!isObject(read(body)?.value) || REPEATING.includes(name)) expect(refusal, name).toMatchObject(ofTheBody);
    }
    expect(changedTables(before, await digestStored(posthorn.database))).toEqual([]);
  });
});

const INVALID_REQUEST = -32_600;

test('the same in the place of a field', async () => {
  const before = await digestStored(posthorn.database);
  const [recipient] = owner.ids.agent;
  const rest = { agent_id: owner.caller.id, idempotency_key: 'k', recipient_agent_id: recipient };
  const head = Buffer.from(`${JSON.stringify(rest).slice(0, -1)},"body":`);
  for (const [name, value] of bodies) {
    if (typeof read(value)?.value === 'string') continue; // a message like any other
    const body = Buffer.concat([head, value, Buffer.from('}')]);
    const answer = await post('/messaging/v1/send', body);
    expect(answer.status, name).toBe(400);
    const refusal = JSON.parse(answer.text);
    expectRefusal(refusal);
    const isJudged = read(body) !== undefined && !REPEATING.includes(name);
    expect(refusal, name).toMatchObject(isJudged ? { error: 'invalid_request', fields: ['body'] } : ofTheBody);
  }
  expect(changedTables(before, await digestStored(posthorn.database))).toEqual([]);
});
