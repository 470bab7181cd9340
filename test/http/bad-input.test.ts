import { request } from 'node:http';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { callHttp, newKey, startPosthorn, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';

let posthorn: TestPosthorn;
let a: TestAgent;
let b: TestAgent;

beforeAll(async () => {
  posthorn = await startPosthorn();
  const owner = await posthorn.owner();
  a = await owner.agent('a');
  b = await owner.agent('b');
  await owner.group([a, b]);
});

afterAll(() => posthorn.close());

const countMessages = async () =>
  (await posthorn.database.admin.query('select count(*)::int as n from posthorn.messages')).rows[0].n;

/** Sends a body that must be refused, and proves that nothing was stored. */
async function refused(
  body: object | string | Uint8Array,
): Promise<{ status: number; error: string; fields?: string[] }> {
  const before = await countMessages();
  const answer = await a.call('POST', '/send', body);
  expect(await countMessages()).toBe(before);
  expect(answer.headers.get('x-request-id')).toBe(answer.body.request_id);
  return { status: answer.status, error: answer.body.error, fields: answer.body.fields };
}

const valid = () => ({ agent_id: a.id, recipient_agent_id: b.id, body: 'hello', idempotency_key: newKey() });

describe('a send with bad input names the field and stores nothing', () => {
  test.each([
    ['a NUL', 'a\0b'],
    ['a lone surrogate', 'a\ud800b'],
    ['nothing', ''],
    ['20,001 emoji', '😀'.repeat(20_001)],
    ['20,001 letters', 'a'.repeat(20_001)],
    ['a number', 7],
    ['null', null],
    ['a list', ['a']],
  ])('body with %s', async (_, body) => {
    expect(await refused({ ...valid(), body })).toEqual({ status: 400, error: 'invalid_request', fields: ['body'] });
  });

  test.each([
    ['recipient_agent_id', 'x'.repeat(5_000)],
    ['recipient_agent_id', 'not-a-uuid'],
    ['agent_id', ''],
    ['group_id', 1],
    ['idempotency_key', ''],
    ['idempotency_key', 'k'.repeat(129)],
    ['idempotency_key', 'ключ'],
    ['idempotency_key', 'a\0b'],
    ['reply_to', {}],
  ])('%s of %j', async (field, value) => {
    expect(await refused({ ...valid(), [field]: value })).toEqual({
      status: 400,
      error: 'invalid_request',
      fields: [field],
    });
  });

  test('unknown fields, all named', async () => {
    expect(await refused({ ...valid(), subject: 'x', attachments: [] })).toEqual({
      status: 400,
      error: 'invalid_request',
      fields: ['subject', 'attachments'],
    });
  });

  test('of unknown fields only what is a name is said back', async () => {
    const { body } = await a.call('POST', '/send', {
      ...valid(),
      subject: 'x',
      'a secret, by mistake': 1,
      ['x'.repeat(65)]: 1,
    });
    expect(body.fields).toEqual(['subject']);
    expect(body.message).toBe('subject: is not known here; The request: has a field whose name is no name of a field');
    const twice = await a.call('GET', `/status?agent_id=${a.id}&not%20a%20name=1&not%20a%20name=2`);
    expect([twice.status, twice.body.fields, twice.body.message]).toEqual([400, [], 'A field was passed twice.']);
  });

  test('a missing key', async () => {
    const { idempotency_key: _, ...body } = valid();
    expect(await refused(body)).toEqual({ status: 400, error: 'invalid_request', fields: ['idempotency_key'] });
  });

  test.each([
    ['not JSON', '{"body":'],
    ['a list', '[1]'],
    ['a bare string', '"x"'],
    ['nothing', ''],
    ['an object with a name twice', '{"body":"one","body":"two"}'],
    ['an object with a name twice, once with an escape', '{"body":"one","bod\\u0079" : "two"}'],
    ['an object with such an object in it', '{"body":[{"a":{"b":1,"b":1}}]}'],
  ])('a request body that is %s', async (_, body) => {
    expect(await refused(body)).toEqual({ status: 400, error: 'invalid_request', fields: [] });
  });

  test('what looks like a name twice and is text', async () => {
    const body = '{"body":1,"body":2} \\" "body": \\\\';
    const answer = await a.send({ ...valid(), body });
    expect(answer.status).toBe(201);
    expect((await b.receive()).body.messages.at(-1).body).toBe(body);
    await b.ack([answer.body.id]);
  });

  test('broken UTF-8, which a lenient parser would store as question marks', async () => {
    const bytes = Buffer.from(JSON.stringify(valid()).replace('hello', 'hel@lo'));
    bytes[bytes.indexOf('@')] = 0xff;
    expect((await refused(bytes)).error).toBe('invalid_request');
  });

  test.each([
    ['text/plain', 400],
    ['application/json; charset=utf-16', 400],
    ['application/json;charset="iso-8859-1"', 400],
    ['application/json; charset=UTF-8', 201],
    ['application/json; charset="utf-8"', 201],
  ])('Content-Type %s is answered %i', async (type, status) => {
    const response = await fetch(`${posthorn.pods[0]!.url}/messaging/v1/send`, {
      method: 'POST',
      headers: { authorization: `Bearer ${a.token}`, 'content-type': type },
      body: JSON.stringify(valid()),
    });
    expect(response.status).toBe(status);
    if (response.ok) await b.ack([((await response.json()) as { id: string }).id]);
  });

  test('ten megabytes', async () => {
    expect(await refused({ ...valid(), body: 'a'.repeat(10_000_000) })).toMatchObject({
      status: 413,
      error: 'payload_too_large',
    });
  });
});

test('exactly 20,000 emoji fit: lengths are code points', async () => {
  const answer = await a.send({ ...valid(), body: '😀'.repeat(20_000) });
  expect(answer.status).toBe(201);
  const received = await b.receive();
  expect(received.body.messages.at(-1).body).toBe('😀'.repeat(20_000));
  await b.ack([answer.body.id]);
});

test('the same name in path, query and body is refused', async () => {
  const answer = await a.call('POST', `/receive?limit=5`, { agent_id: a.id, limit: 6 });
  expect([answer.status, answer.body.fields]).toEqual([400, ['limit']]);
});

describe('page arguments', () => {
  test.each([
    ['limit', 0],
    ['limit', 101],
    ['limit', 1.5],
    ['limit', '20'],
    ['wait_seconds', 26],
    ['wait_seconds', -1],
  ])('%s of %j', async (field, value) => {
    const answer = await b.receive({ [field]: value });
    expect([answer.status, answer.body.error, answer.body.fields]).toEqual([400, 'invalid_request', [field]]);
  });

  test.each([
    'x',
    '!!!',
    Buffer.from('groups:1').toString('base64url'),
    Buffer.from('inbox:1;drop').toString('base64url'),
  ])('a cursor of %j', async (after) => {
    const answer = await b.receive({ after });
    expect([answer.status, answer.body.error]).toEqual([400, 'invalid_cursor']);
  });
});

describe('credentials', () => {
  const status = (token: string | null) => callHttp(posthorn.pods[0]!.url, token, 'GET', '/messaging/v1/status');

  test.each([
    ['none', null, 'unauthorized'],
    ['an unknown token', 'phs_unknown', 'unauthorized'],
    ['an unknown device', 'phd_unknown', 'device_unauthorized'],
    ['a token of 8,000 characters', 'x'.repeat(8_000), 'unauthorized'],
  ])('%s', async (_, token, error) => {
    const answer = await status(token);
    expect([answer.status, answer.body.error, answer.body.retryable]).toEqual([401, error, false]);
    expect(answer.headers.get('www-authenticate')).toContain('resource_metadata=');
  });

  test('a token without the messaging scope', async () => {
    const owner = await posthorn.owner();
    const { token } = await owner.token({ scopes: ['functions'] });
    const answer = await status(token);
    expect([answer.status, answer.body.error]).toEqual([403, 'scope_required']);
  });

  test('a service connection must say for which agent it speaks', async () => {
    const answer = await a.call('POST', '/receive', {});
    expect([answer.status, answer.body.error]).toEqual([400, 'agent_required']);
  });

  test("another owner's ids do not exist", async () => {
    const stranger = await (await posthorn.owner()).agent('stranger');
    const asOther = await stranger.call('POST', '/receive', { agent_id: a.id });
    const unknown = await stranger.call('POST', '/receive', { agent_id: '00000000-0000-4000-8000-000000000000' });
    expect({ ...asOther.body, request_id: '' }).toEqual({ ...unknown.body, request_id: '' });
    expect(asOther.status).toBe(404);
    const send = await stranger.send({ recipient_agent_id: a.id, body: 'x', idempotency_key: newKey() });
    expect([send.status, send.body.error]).toEqual([404, 'not_found']);
  });
});

test('a path that is not there, and a method that is not', async () => {
  expect((await a.call('GET', '/nothing')).body.error).toBe('not_found');
  expect((await a.call('PUT', '/send', {})).status).toBe(404);
});

test('a client that hangs up in the middle of its request harms nobody', async () => {
  const url = new URL(posthorn.pods[0]!.url);
  await new Promise<void>((resolve) => {
    const half = request({
      host: url.hostname,
      port: url.port,
      method: 'POST',
      path: '/messaging/v1/send',
      headers: { authorization: `Bearer ${a.token}`, 'content-type': 'application/json', 'content-length': 1_000 },
    });
    half.on('error', () => resolve());
    half.write('{"body":"half');
    half.flushHeaders();
    setImmediate(() => half.destroy());
  });
  expect((await a.call('GET', `/status?agent_id=${a.id}`)).status).toBe(200);
});

test('nothing that a caller wrote is in the log', async () => {
  const secret = 'planted-in-body-zq7x';
  await a.send({ ...valid(), body: secret });
  await a.send({ ...valid(), body: secret, subject: 'planted-in-field-zq7x' });
  await a.call('GET', '/planted-in-path-zq7x');
  await callHttp(posthorn.pods[0]!.url, 'phs_planted-token-zq7x', 'GET', '/messaging/v1/status');
  expect(posthorn.log()).toContain('"msg":"request"');
  expect(posthorn.log()).not.toContain('zq7x');
});
