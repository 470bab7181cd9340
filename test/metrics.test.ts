import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { registry } from '../src/metrics.ts';
import { startMetricsServer } from '../src/metrics-server.ts';
import { startProcess } from './helpers/command-line.ts';
import { newKey, startPosthorn, type TestPosthorn } from './helpers/posthorn.ts';

let posthorn: TestPosthorn;

beforeAll(async () => {
  posthorn = await startPosthorn();
});

afterAll(() => posthorn.close());

/** A page's samples by name and labels, as Prometheus writes them. */
function read(page: string): Record<string, number> {
  const samples = page.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return Object.fromEntries(
    samples.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ') + 1))]),
  );
}

const here = async () => read(await registry.metrics());

test('sends, batches, wakes, pools and the listener are counted', async () => {
  const owner = await posthorn.owner();
  const [anna, bert] = [await owner.agent('anna'), await owner.agent('bert')];
  await owner.group([anna, bert]);
  const before = await here();
  const body = { recipient_agent_id: bert.id, body: 'hello', idempotency_key: newKey() };
  expect((await anna.send(body)).body.state).toBe('queued');
  expect((await anna.send({ ...body, body: 'another' })).body.error).toBe('idempotency_conflict');
  await bert.receive();
  const after = await here();
  const grown = (name: string) => (after[name] ?? 0) - (before[name] ?? 0);

  expect(grown('posthorn_sends_total{outcome="queued"}')).toBe(1);
  expect(grown('posthorn_sends_total{outcome="idempotency_conflict"}')).toBe(1);
  expect(grown('posthorn_send_seconds_count')).toBe(2);
  expect(grown('posthorn_lane_batch_size_count{lane="sends"}')).toBe(2);
  expect(grown('posthorn_lane_batch_size_sum{lane="receipts"}')).toBe(1);
  expect(grown('posthorn_lane_batch_seconds_count{lane="plans"}')).toBe(1);
  expect(after['posthorn_lane_waiting{lane="sends"}']).toBe(0);
  expect(after.posthorn_listener_connects_total).toBe(1);
  expect(after.posthorn_listener_listening).toBe(1);
  expect(after['posthorn_pool_connections{pool="requests"}']).toBeGreaterThan(0);
  expect(after['posthorn_pool_waiting{pool="lanes"}']).toBe(0);
  await expect.poll(async () => (await here()).posthorn_wakes_total! - before.posthorn_wakes_total!).toBeGreaterThan(0);
});

test('no label can hold who or what it was about', async () => {
  const ours = registry.getMetricsAsArray().filter(({ name }) => name.startsWith('posthorn_'));
  const labels = ours.flatMap((metric) => (metric as unknown as { labelNames: string[] }).labelNames);
  expect([...new Set(labels)].sort()).toEqual(['lane', 'outcome', 'pool', 'reason', 'task']);
  expect(await registry.metrics()).not.toMatch(/[0-9a-f]{8}-[0-9a-f]{4}-|ph[dcs]_|anna|hello/);
});

test('the page is at its own port and path alone', async () => {
  const server = await startMetricsServer({ host: '127.0.0.1', port: 0 });
  try {
    const url = `http://127.0.0.1:${server.port}`;
    const page = await fetch(`${url}/metrics`);
    expect(page.headers.get('content-type')).toMatch(/^text\/plain/);
    expect(read(await page.text())).toHaveProperty('posthorn_listener_listening', 1);
    expect((await fetch(`${url}/metrics?x=1`)).status).toBe(200);
    const head = await fetch(`${url}/metrics`, { method: 'HEAD' });
    expect([head.status, head.headers.get('content-type')]).toEqual([200, page.headers.get('content-type')]);
    vi.spyOn(registry, 'metrics').mockRejectedValueOnce(new Error('a gauge could not be read'));
    expect((await fetch(`${url}/metrics`)).status).toBe(500);
    expect((await fetch(`${url}/`)).status).toBe(404);
    expect((await fetch(`${url}/metrics`, { method: 'POST' })).status).toBe(404);
    expect((await fetch(`${posthorn.pods[0]!.url}/metrics`)).status).toBe(404);
  } finally {
    await server.close();
  }
});

test('a worker counts its jobs and serves its page', async () => {
  const worker = await startProcess(['worker'], {
    POSTHORN_DATABASE_URL: posthorn.database.url,
    POSTHORN_METRICS_PORT: '0',
  });
  try {
    const { port } = JSON.parse(/^.*metrics are served.*$/m.exec(worker.stderr())![0]);
    const jobs = posthorn.database.as('posthorn_jobs');
    await jobs.query(`select graphile_worker.add_job('messages__expire')`);
    const page = async () => read(await (await fetch(`http://127.0.0.1:${port}/metrics`)).text());
    await expect
      .poll(page, { timeout: 20_000 })
      .toMatchObject({ 'posthorn_jobs_total{task="messages__expire",outcome="completed"}': 1 });
    expect(await page()).toMatchObject({
      'posthorn_job_seconds_count{task="messages__expire"}': 1,
      'posthorn_pool_waiting{pool="worker"}': 0,
    });
  } finally {
    worker.child.kill('SIGTERM');
    expect(await worker.exited).toBe(0);
  }
});

test('a port that is taken keeps the process from starting', async () => {
  const taken = await startMetricsServer({ host: '127.0.0.1', port: 0 });
  try {
    const settings = { POSTHORN_DATABASE_URL: posthorn.database.url, POSTHORN_METRICS_PORT: String(taken.port) };
    await expect(startProcess(['worker'], settings)).rejects.toThrow(/port_in_use.*POSTHORN_METRICS_PORT/);
  } finally {
    await taken.close();
  }
});
