// Whatever somebody writes, by whatever door, and whatever goes wrong then: no line of any log has it.
import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { serializeKeyRing } from '../src/crypto/key-ring.ts';
import { runCommand, runHere, type ServerProcess, type Settings, startProcess } from './helpers/command-line.ts';
import { openStream } from './helpers/event-stream.ts';
import { newKey, startPosthorn, type TestAgent, type TestPosthorn } from './helpers/posthorn.ts';

/** Every planted text has it, and nothing else in this file. */
const CANARY = 'c4n4ry';
const plant = (where: string) => `${CANARY}-${where}`;

let posthorn: TestPosthorn;
let pod: ServerProcess;
let worker: ServerProcess;
let settings: Settings;
let anna: TestAgent;
let bert: TestAgent;
const tokens: string[] = [];

beforeAll(async () => {
  posthorn = await startPosthorn();
  const owner = await posthorn.owner(plant('owner'));
  anna = await owner.agent(plant('label-a'));
  bert = await owner.agent(plant('label-b'));
  await owner.group([anna, bert]);
  tokens.push(anna.token, bert.token);
  settings = {
    POSTHORN_DATABASE_URL: posthorn.database.url,
    POSTHORN_KEYRING: serializeKeyRing(posthorn.ring),
    POSTHORN_PORT: '0',
    POSTHORN_METRICS_PORT: '0',
    POSTHORN_WEBHOOK_ALLOW: `${CANARY}.example`,
    POSTHORN_DATA_DIR: '/nowhere',
  };
  [pod, worker] = await Promise.all([startProcess(['serve'], settings), startProcess(['worker'], settings)]);
});

afterAll(async () => {
  pod?.child.kill('SIGKILL');
  worker?.child.kill('SIGKILL');
  await posthorn.close();
});

/** One request below fetch, which refuses odd ones; whatever the answer. */
async function ask(
  method: string,
  path: string,
  headers: Record<string, string> = {},
  body?: unknown,
): Promise<string> {
  const request = http.request(pod.ready.url + path, {
    method,
    agent: false,
    headers: { authorization: `Bearer ${anna.token}`, 'content-type': 'application/json', ...headers },
  });
  request.end(body === undefined || typeof body === 'string' ? body : JSON.stringify(body));
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  return await text(response);
}

const send = (body: object) =>
  ask('POST', '/messaging/v1/send', {}, { agent_id: anna.id, idempotency_key: newKey(), ...body });

const callTool = (name: string, input: object) =>
  ask(
    'POST',
    '/mcp',
    { accept: 'application/json, text/event-stream' },
    {
      jsonrpc: '2.0',
      id: plant('rpc-id'),
      method: 'tools/call',
      params: { name, arguments: input },
    },
  );

test('over HTTP: what is accepted, what is refused and what is no request', async () => {
  const message = { recipient_agent_id: bert.id, body: plant('body'), purpose: plant('purpose') };
  expect(await send(message)).toContain('"queued"');
  await send({ ...message, idempotency_key: plant('key') });
  expect(await send({ ...message, body: plant('another'), idempotency_key: plant('key') })).toContain('conflict');
  expect(await send({ ...message, [plant('field')]: 1 })).toContain('invalid_request');
  const key = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey.export({ type: 'pkcs8', format: 'pem' });
  expect(await send({ ...message, body: `${key} ${plant('private-key')}` })).toContain('sensitive_content');
  const received = JSON.parse(
    await ask('POST', '/messaging/v1/receive', { authorization: `Bearer ${bert.token}` }, { agent_id: bert.id }),
  );
  expect(received.messages[0].body).toContain(CANARY);
  await ask(
    'POST',
    '/messaging/v1/proposals',
    {},
    { agent_id: anna.id, name: plant('group'), purpose: plant('purpose'), agent_ids: [anna.id, bert.id] },
  );
  await ask(
    'POST',
    '/messaging/v1/agents',
    {},
    { label: plant('label'), runtime: 'other', installation: plant('installation') },
  );
  await ask('POST', '/messaging/v1/send', {}, `{"body": "${plant('broken-json')}`);
  await ask('POST', '/messaging/v1/send', {}, `{"body": "\xff${plant('bytes')}"}`);
  await ask('POST', `/messaging/v1/send?body=${plant('query')}`, {}, {});
  await ask('GET', `/messaging/v1/messages/${plant('id')}`);
  await ask('GET', `/messaging/v1/${plant('path')}?${plant('query')}=1`);
  await ask('GET', `/${plant('path')}/%ff`);
  await ask(
    plant('METHOD')
      .toUpperCase()
      .replaceAll(/[^A-Z]/g, ''),
    '/messaging/v1/status',
  ).catch(() => {});
  for (const authorization of [
    plant('bearer'),
    `Bearer ${plant('bearer')}`,
    `Bearer phs_${plant('x').padEnd(43, 'x')}`,
    `Basic ${plant('basic')}`,
  ])
    await ask('GET', '/messaging/v1/status', { authorization });
  await ask('GET', '/messaging/v1/status', {
    cookie: plant('cookie'),
    'x-request-id': plant('request-id'),
    'user-agent': plant('agent'),
    traceparent: plant('trace'),
    referer: `https://${plant('referer')}.example`,
  });
});

test('over MCP', async () => {
  expect(
    await callTool('send_message', {
      agent_id: anna.id,
      recipient_agent_id: bert.id,
      body: plant('tool-body'),
      idempotency_key: newKey(),
    }),
  ).toContain('queued');
  expect(await callTool('receive_messages', { agent_id: anna.id })).toContain('pending_messages');
  await callTool('send_message', { body: plant('tool-argument'), [plant('tool-field')]: {} });
  await callTool(plant('tool-name'), {});
  await ask(
    'POST',
    '/mcp',
    { accept: 'application/json', 'mcp-method': plant('mcp-method') },
    { method: plant('method') },
  );
  await ask('POST', '/mcp', { origin: `https://${plant('origin')}.example` }, {});
  await ask('POST', '/mcp', {}, `[${plant('mcp-json')}`);
});

test('over event streams', async () => {
  for (const id of [undefined, plant('last-event-id')]) {
    const stream = await openStream(pod.ready.url, anna.token, `/messaging/v1/events?agent_id=${anna.id}`, id);
    if (stream.status === 200) await stream.until((events) => events.some(({ event }) => event === 'snapshot'));
    stream.close();
  }
  await ask('GET', `/messaging/v1/events?agent_id=${plant('agent-id')}&${plant('parameter')}=1`);
  await ask('GET', '/messaging/v1/events', { authorization: `Bearer ${plant('stream-token')}` });
});

test('from the command line: only what it answers, and only to who asked', async () => {
  const as = { ...settings, POSTHORN_URL: pod.ready.url, POSTHORN_TOKEN: anna.token, POSTHORN_AGENT_ID: anna.id };
  const sent = await runHere(['messages', 'send', '--to', bert.id, '--message', plant('cli-body')], as);
  const unsent = await runHere(['messages', 'send', '--to', bert.id, '--message', plant('cli-body')], {
    ...as,
    POSTHORN_TOKEN: plant('cli-token'),
  });
  const unset = await runHere(['serve'], { ...settings, POSTHORN_WEBHOOK_ALLOW: `${plant('allow')}:0` });
  const passwords = { POSTHORN_DATABASE_URL: `postgres://posthorn_app:${plant('password')}@127.0.0.1:1/none` };
  const unreachable = await runCommand(['serve'], { ...settings, ...passwords });
  for (const { stderr } of [sent, unsent, unset, unreachable]) expect(stderr).not.toContain(CANARY);
  expect([unset.code, unreachable.code]).not.toContain(0);
  expect(unset.stderr).toContain('POSTHORN_WEBHOOK_ALLOW');
});

test('when the database quotes it in an error, to a pod and to a worker', async () => {
  const { admin } = posthorn.database;
  await admin.query(`
    create function posthorn_test.quote() returns trigger language plpgsql as $$
    begin
      raise exception 'cannot store %', '${plant('quoted')}' using detail = '${plant('detail')}', hint = '${plant('hint')}';
    end $$;
    create trigger quote before insert on posthorn.messages for each statement execute function posthorn_test.quote();
    create trigger quote_delete before delete on posthorn.idempotency_keys for each statement execute function posthorn_test.quote()`);
  expect(await send({ recipient_agent_id: bert.id, body: plant('unstored') })).toContain('unavailable');
  expect(
    await callTool('send_message', {
      agent_id: anna.id,
      recipient_agent_id: bert.id,
      body: plant('unstored'),
      idempotency_key: newKey(),
    }),
  ).toContain('unavailable');
  await expect.poll(() => pod.stderr()).toContain('"msg":"unavailable"');
  await posthorn.database.as('posthorn_jobs').query(`select graphile_worker.add_job('outdated__delete')`);
  await expect.poll(() => worker.stderr(), { timeout: 20_000 }).toContain('a job failed');
});

test('no line of any log has any of it', async () => {
  pod.child.kill('SIGTERM');
  worker.child.kill('SIGTERM');
  await Promise.all([pod.exited, worker.exited]);
  const lines = (pod.stderr() + pod.stdout() + worker.stderr() + worker.stdout()).trim().split('\n');
  expect(lines.length).toBeGreaterThan(40);
  expect(lines.filter((line) => line.toLowerCase().includes(CANARY))).toEqual([]);
  const secrets = [...tokens, ...[...posthorn.ring.keys.values()].map((key) => key.toString('base64'))];
  expect(lines.filter((line) => secrets.some((secret) => line.includes(secret)))).toEqual([]);
  const requests = lines.map((line) => JSON.parse(line)).filter(({ msg }) => msg === 'request');
  expect(requests.every(({ requestId }) => /^[0-9a-f-]{36}$/.test(requestId))).toBe(true);
});
