import { createHash, randomBytes } from 'node:crypto';
import net from 'node:net';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { hashCredential } from '../../src/crypto/credentials.ts';
import { createOwnerKeys } from '../../src/crypto/owner-keys.ts';
import { sealForPush } from '../../src/crypto/seal.ts';
import { addPushSubscription } from '../../src/db/functions.ts';
import { registry } from '../../src/metrics.ts';
import { sessionCookie } from '../../src/request/session.ts';
import type { Worker } from '../../src/worker.ts';
import type { Browser } from '../helpers/browser.ts';
import { signIn } from '../helpers/oauth.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';
import { type PushedBrowser, type PushService, readVapid, startPushService } from '../helpers/push-service.ts';

let posthorn: TestPosthorn;
let service: PushService;
let worker: Worker;
let url: string;
let owner: TestOwner;
let browser: Browser;
let agents: TestAgent[];

beforeAll(async () => {
  service = await startPushService();
  posthorn = await startPosthorn({ webhookAllow: new URL(service.origin).host });
  url = posthorn.pods[0]!.url;
  worker = await posthorn.worker();
  const { admin } = posthorn.database;
  await admin.query(`update posthorn.limits set value = 100 where name like 'pending_proposals_%'`);
});
beforeEach(async () => {
  owner = await posthorn.owner('planted-owner');
  browser = await signIn(owner, url);
  agents = await Promise.all(['planted-one', 'planted-two'].map((label) => owner.agent(label)));
});
afterEach(() => {
  service.received.length = 0;
  service.answer(201);
});
afterAll(async () => {
  await worker.close();
  await posthorn.close();
  await service.close();
});

/** What push services are to know the server by, as the page tells it. */
const serverKey = async () => /data-key="([^"]+)"/.exec((await browser.open('/owner/settings')).text)![1]!;

/** Switches notifications on, as the page's script does. */
async function switchOn(inBrowser = browser): Promise<PushedBrowser> {
  const pushed = service.browser(await serverKey());
  expect((await inBrowser.call('PUT', '/owner/v1/push', pushed.subscription)).status).toBe(200);
  return pushed;
}

/** Agents ask for something, with words that no push may hold. */
async function ask([from, to] = agents as [TestAgent, TestAgent]): Promise<string> {
  const words = { body: 'planted-body', name: 'planted-name', purpose: 'planted-purpose', idempotency_key: newKey() };
  const { status, body } = await from.send({ recipient_agent_id: to.id, ...words });
  expect(status).toBe(201);
  return body.proposal_id;
}

async function askAgain(): Promise<string> {
  return await ask([agents[0]!, await owner.agent('planted-another')]);
}

const clock = async (interval: string) => {
  await posthorn.database.admin.query('update posthorn_test.clock set shift = shift + $1::interval', [interval]);
};

/** Lets the worker look now: its jobs wait by the real clock, which nobody moves. */
const look = async () => {
  await posthorn.database.admin.query(
    'update graphile_worker._private_jobs set run_at = now() where locked_at is null',
  );
  await posthorn.database.admin.query(`select pg_notify('jobs:insert', '{"r":1,"count":1}')`);
};

/** A machine may be busy. */
const eventually = <T>(read: () => Promise<T>) => expect.poll(read, { timeout: 15_000 });

async function rows(): Promise<Record<string, unknown>[]> {
  const { rows } = await posthorn.database.admin.query(
    `select s.requests_made as made, s.requests_told as told, s.failures from posthorn.push_subscriptions s
       join posthorn.owners o on o.owner_id = s.owner_id where o.id = $1`,
    [owner.id],
  );
  return rows;
}

/** Resolves when no job of pushes is left that could run now. */
const settled = () =>
  eventually(async () => {
    const { rows } = await posthorn.database.admin.query(
      `select from graphile_worker.jobs where task_identifier = 'push__send' and (run_at <= now() or locked_at is not null)`,
    );
    return rows.length;
  }).toBe(0);

test('a request is told to each browser, encrypted for it and signed by the server', async () => {
  const other = await signIn(owner, url);
  const pushed = [await switchOn(), await switchOn(other)];
  await ask();
  await service.until(2);
  const publicKeys = new Set<string>();
  for (const each of pushed) {
    const [push, ...more] = each.received();
    expect(more).toEqual([]);
    expect(JSON.parse(each.read(push!))).toEqual({ waiting: 1 });
    expect(push!.headers).toMatchObject({
      'content-encoding': 'aes128gcm',
      'content-type': 'application/octet-stream',
      urgency: 'high',
      topic: 'requests',
    });
    const ttl = Number(push!.headers.ttl);
    expect(ttl).toBeGreaterThan(86_390);
    expect(ttl).toBeLessThanOrEqual(86_400);
    const { publicKey, claims } = readVapid(push!.headers);
    publicKeys.add(publicKey);
    expect(claims).toMatchObject({ aud: service.origin, sub: 'mailto:nobody@posthorn.invalid' });
    expect(claims.exp - Date.now() / 1_000).toBeGreaterThan(3_600);
    expect(claims.exp - Date.now() / 1_000).toBeLessThanOrEqual(86_400);
  }
  expect([...publicKeys]).toEqual([await serverKey()]);
  await eventually(rows).toEqual(Array(2).fill({ made: 1, told: 1, failures: 0 }));
});

test('no byte of what leaves holds a word of anybody’s', async () => {
  const pushed = await switchOn();
  const proposalId = await ask();
  await service.until(1);
  await settled();
  for (const { path, headers, body } of service.received) {
    const opened = pushed.read({ path, headers, body });
    const { claims } = readVapid(headers);
    const all = [JSON.stringify(headers), JSON.stringify(claims), body.toString('latin1'), opened].join('\n');
    for (const word of ['planted', 'request_id', proposalId, owner.id, ...agents.map(({ id }) => id)])
      expect(all.toLowerCase()).not.toContain(word);
    expect(opened.length).toBeLessThan(20);
  }
  const { rows: left } = await posthorn.database.admin.query('select payload::text from graphile_worker._private_jobs');
  expect(JSON.stringify(left)).not.toContain('planted');
});

test('a flood of 50 requests is two pushes, the second with how many wait', async () => {
  const pushed = await switchOn();
  await ask();
  await service.until(1);
  for (let asked = 1; asked < 50; asked++) await askAgain();
  await settled();
  expect(service.received).toHaveLength(1);
  await clock('1 minute');
  await look();
  await service.until(2);
  await settled();
  await clock('1 minute');
  await look();
  await settled();
  const said = pushed.received().map((push) => JSON.parse(pushed.read(push)).waiting);
  expect(said).toEqual([1, 50]);
}, 60_000);

test('a session that was revoked is told nothing, and the others are', async () => {
  const other = await signIn(owner, url);
  const [pushed, others] = [await switchOn(), await switchOn(other)];
  const page = await browser.open('/owner/settings');
  await browser.submit({ ...page, text: /<form class="account"[\s\S]*?<\/form>/.exec(page.text)![0] });
  await ask();
  await service.until(1);
  await settled();
  expect(pushed.received()).toEqual([]);
  expect(others.received()).toHaveLength(1);
  expect(await rows()).toHaveLength(1);
});

test('what the push service does not know any more is forgotten', async () => {
  await switchOn();
  service.answer(410);
  await ask();
  await service.until(1);
  await eventually(rows).toEqual([]);
  const { text } = await browser.open('/owner/activity');
  expect(text).toContain('Notifications switched on in a browser');
  expect(text).toContain('Notifications ended in a browser');
});

test('a busy push service is asked again, and a refusal is said without its address', async () => {
  await switchOn();
  service.answer((response) => response.writeHead(429, { 'retry-after': '40' }).end());
  await ask();
  await service.until(1);
  await eventually(rows).toEqual([{ made: 1, told: 0, failures: 1 }]);
  await clock('39 seconds');
  await look();
  await settled();
  expect(service.received).toHaveLength(1);
  service.answer(403);
  await clock('2 seconds');
  await look();
  await service.until(2);
  await eventually(rows).toEqual([{ made: 1, told: 1, failures: 0 }]);
  const line = posthorn
    .log()
    .split('\n')
    .find((each) => each.includes('refused a notification'))!;
  expect(JSON.parse(line)).toMatchObject({ subscriptionId: expect.any(String), status: 403 });
  expect(line).not.toContain(new URL(service.origin).host);
  expect(posthorn.log()).not.toContain('planted');
  expect(await registry.metrics()).toMatch(/posthorn_pushes_total\{outcome="4xx"\} [1-9]/);
});

test('a redirect is not followed', async () => {
  await switchOn();
  service.answer((response) => response.writeHead(307, { location: `${service.origin}/elsewhere` }).end());
  await ask();
  await eventually(rows).toEqual([{ made: 1, told: 1, failures: 0 }]);
  expect(service.received.map(({ path }) => path)).not.toContain('/elsewhere');
});

describe('an address that is not on the open internet', () => {
  const PRIVATE = [
    'http://169.254.169.254/latest/meta-data/',
    'https://169.254.169.254/',
    'http://localhost/',
    'https://localhost/',
    'https://127.0.0.1/',
    'https://[::1]/',
    'https://[::ffff:127.0.0.1]/',
    'https://0x7f.1/',
    'https://2130706433/',
    'https://10.0.0.1/',
    'https://192.168.1.1:8443/',
    'https://[fd00::1]/',
    'https://metadata.google.internal/',
    'https://db/',
    'https://user:password@push.example/',
    'https://push.example:22/',
    'http://push.example/',
    'file:///etc/passwd',
    'ftp://push.example/',
  ];

  test.each(PRIVATE)('%s is refused when it is registered', async (endpoint) => {
    const { subscription } = service.browser(await serverKey());
    const answer = await browser.call('PUT', '/owner/v1/push', { ...subscription, endpoint });
    expect(answer.status).toBe(400);
    expect(answer.json).toMatchObject({ error: 'invalid_request', fields: ['endpoint'] });
    expect(await rows()).toEqual([]);
  });

  test('is not dialled either if it came there by another way', async () => {
    const app = posthorn.database.as('posthorn_app');
    const credential = hashCredential(browser.cookies.get(sessionCookie(url))!.value);
    const keys = await createOwnerKeys(app, posthorn.ring)(owner.id, credential);
    const dialled: string[] = [];
    const { connect } = net.Socket.prototype;
    const spy = vi.spyOn(net.Socket.prototype, 'connect').mockImplementation(function (this: net.Socket, ...args) {
      dialled.push(JSON.stringify(args));
      return connect.apply(this, args as never);
    } as typeof connect);
    for (const endpoint of PRIVATE) {
      const { p256dh, auth } = service.browser('').subscription;
      const endpointHash = createHash('sha256').update(endpoint).digest();
      const sealedSubscription = sealForPush(keys, endpointHash, JSON.stringify({ endpoint, keys: { p256dh, auth } }));
      await addPushSubscription(app, { credential, endpointHash, sealedSubscription });
      await askAgain();
      await eventually(rows).toEqual([{ made: 1, told: 0, failures: 1 }]);
    }
    spy.mockRestore();
    const ours = [url, posthorn.database.url].map((address) => new URL(address).port);
    expect(dialled.filter((dial) => !ours.some((port) => new RegExp(`\\b${port}\\b`).test(dial)))).toEqual([]);
  }, 60_000);
});

test('what is no subscription is refused', async () => {
  const { subscription } = service.browser(await serverKey());
  const { p256dh } = subscription;
  const [strange, halved] = [randomBytes(65), Buffer.from(p256dh, 'base64url').subarray(0, 33)];
  strange[0] = 4;
  for (const change of [
    { p256dh: strange.toString('base64url') },
    { p256dh: halved.toString('base64url') },
    { p256dh: `${p256dh}=` },
    { p256dh: '' },
    { auth: randomBytes(15).toString('base64url') },
    { auth: '' },
    { endpoint: `${subscription.endpoint}/ñ` },
    { endpoint: `${subscription.endpoint}/${'x'.repeat(2_048)}` },
    { endpoint: undefined },
    { server_key: (await serverKey()).replace(/.$/, 'x') },
    { server_key: undefined },
    { expirationTime: null },
  ])
    expect((await browser.call('PUT', '/owner/v1/push', { ...subscription, ...change })).status).toBe(400);
  expect((await browser.call('PUT', '/owner/v1/push', subscription)).status).toBe(200);
});

test('no other site and no token switches it on or off', async () => {
  const { subscription } = service.browser(await serverKey());
  const elsewhere = { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' };
  expect((await browser.call('PUT', '/owner/v1/push', subscription, elsewhere)).status).toBe(403);
  await switchOn();
  expect((await browser.call('DELETE', '/owner/v1/push', undefined, elsewhere)).status).toBe(403);
  const byToken = await fetch(`${url}/owner/v1/push`, {
    method: 'DELETE',
    headers: { authorization: `Bearer ${agents[0]!.token}`, 'sec-fetch-site': 'same-origin' },
  });
  expect(byToken.status).toBe(403);
  expect(await rows()).toHaveLength(1);
  expect((await browser.call('DELETE', '/owner/v1/push')).json).toEqual({ removed: true });
  expect((await browser.call('DELETE', '/owner/v1/push')).json).toEqual({ removed: false });
  expect(await rows()).toEqual([]);
});

test('the worker of pages may load nothing, and is asked for anew each time', async () => {
  const response = await fetch(`${url}/owner/push-worker.js`);
  expect(response.headers.get('content-security-policy')).toBe("default-src 'none'");
  expect(response.headers.get('cache-control')).toBe('no-cache');
  expect(response.headers.get('content-type')).toMatch(/^(text|application)\/javascript/);
});
