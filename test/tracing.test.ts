import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTracing } from '../src/tracing.ts';
import { newKey, startPosthorn, type TestAgent, type TestPosthorn } from './helpers/posthorn.ts';

interface Span {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  attributes: { key: string; value: { stringValue?: string; intValue?: number } }[];
  links?: { spanId: string }[];
  status: { code?: number; message?: string };
}

const spans: Span[] = [];
const resources: unknown[] = [];
let everything = '';

/** A collector on this machine. */
const collector = createServer(async (request, response) => {
  const body = await text(request);
  everything += body + JSON.stringify(request.headers);
  for (const { resource, scopeSpans } of JSON.parse(body).resourceSpans) {
    resources.push(resource);
    for (const scope of scopeSpans) spans.push(...scope.spans);
  }
  response.setHeader('content-type', 'application/json').end('{}');
});

let posthorn: TestPosthorn;
let anna: TestAgent;
let bert: TestAgent;

/** All spans of what happened meanwhile. */
async function traced(work: () => Promise<unknown>): Promise<Span[]> {
  spans.length = 0;
  const stop = await startTracing(process.env);
  try {
    await work();
  } finally {
    await stop();
  }
  return [...spans];
}

beforeAll(async () => {
  collector.listen(0, '127.0.0.1');
  await once(collector, 'listening');
  process.env.OTEL_EXPORTER_OTLP_ENDPOINT = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`;
  process.env.OTEL_RESOURCE_ATTRIBUTES = 'deployment.environment.name=test';
  posthorn = await startPosthorn();
  const owner = await posthorn.owner();
  [anna, bert] = [await owner.agent('anna'), await owner.agent('bert')];
  await owner.group([anna, bert]);
});

afterAll(async () => {
  await posthorn.close();
  collector.closeAllConnections();
  collector.close();
});

const message = (body: string) => ({ recipient_agent_id: bert.id, body, idempotency_key: newKey() });
const attribute = (span: Span, key: string) => span.attributes.find((one) => one.key === key)?.value;

test('a request is traced from the door to the SQL that it waited for', async () => {
  const all = await traced(async () => {
    expect((await anna.send(message('planted-in-a-body'))).body.state).toBe('queued');
  });
  const door = all.find(({ name }) => name === 'POST /messaging/v1/send')!;
  const named = (name: string) => all.find((span) => span.name === name && span.traceId === door.traceId)!;
  const chain = ['posthorn_api.send_messages', 'batch of sends', 'send_message', 'POST /messaging/v1/send'].map(named);
  for (const [index, span] of chain.slice(0, -1).entries()) expect(span.parentSpanId).toBe(chain[index + 1]!.spanId);
  expect(named('posthorn_api.plan_sends').parentSpanId).toBe(named('batch of plans').spanId);
  expect(door.parentSpanId ?? '').toBe('');
  expect(attribute(door, 'http.response.status_code')?.intValue).toBeGreaterThanOrEqual(200);
  expect(attribute(door, 'posthorn.request_id')?.stringValue).toMatch(/^[0-9a-f-]{36}$/);
  expect(resources[0]).toMatchObject({
    attributes: expect.arrayContaining([
      { key: 'service.name', value: { stringValue: 'posthorn' } },
      { key: 'deployment.environment.name', value: { stringValue: 'test' } },
    ]),
  });
});

test('sends that share a batch are linked with it', async () => {
  const all = await traced(() => Promise.all([1, 2, 3, 4].map((number) => anna.send(message(`number ${number}`)))));
  const sends = all.filter(({ name }) => name === 'send_message').map(({ spanId }) => spanId);
  const batches = all.filter(({ name }) => name === 'batch of sends');
  const reached = batches.flatMap(({ parentSpanId, links = [] }) => [
    parentSpanId,
    ...links.map((link) => link.spanId),
  ]);
  expect(sends).toHaveLength(4);
  expect(reached.toSorted()).toEqual(sends.toSorted());
});

test('a tool call is traced like any other', async () => {
  const all = await traced(() =>
    fetch(`${posthorn.pods[0]!.url}/mcp`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${anna.token}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
      },
      body: JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: { name: 'status', arguments: { agent_id: anna.id } },
      }),
    }).then((answer) => answer.text()),
  );
  expect(all.map(({ name }) => name)).toEqual(
    expect.arrayContaining(['POST /mcp', 'status', 'posthorn_api.authenticate', 'posthorn_api.agent_status']),
  );
});

test('what strangers say about their trace is not believed, and refusals keep their code alone', async () => {
  const foreign = '0af7651916cd43dd8448eb211c80319c';
  const all = await traced(() =>
    fetch(`${posthorn.pods[0]!.url}/messaging/v1/planted-in-a-path?planted-in-a-query=1`, {
      headers: {
        authorization: `Bearer ${anna.token}`,
        traceparent: `00-${foreign}-b7ad6b7169203331-01`,
        tracestate: 'planted=in-a-header',
        baggage: 'planted=in-baggage',
      },
    }),
  );
  expect(all.map(({ name }) => name)).toEqual(['GET unknown path']);
  expect(attribute(all[0]!, 'error.type')?.stringValue).toBe('not_found');
  const refused = await traced(() => anna.send({ ...message('planted'), recipient_agent_id: anna.id }));
  expect(refused.find(({ name }) => name === 'send_message')!.status).toMatchObject({ code: 2 });
  expect(everything).not.toContain(foreign);
});

test('nothing that somebody wrote is in any span', () => {
  expect(everything).not.toMatch(/planted|anna|bert|number \d/);
  expect(everything).not.toContain(anna.token);
});

test('without a collector nothing is traced', async () => {
  const stop = await startTracing({});
  spans.length = 0;
  await anna.send(message('quiet'));
  await stop();
  expect(spans).toEqual([]);
});
