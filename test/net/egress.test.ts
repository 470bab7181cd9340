import type net from 'node:net';
import { gzipSync } from 'node:zlib';
import { afterEach, expect, onTestFinished, test } from 'vitest';
import { parseAllowList } from '../../src/net/allow-list.ts';
import { createEgress, EgressError, type EgressRequest } from '../../src/net/egress.ts';
import {
  distrustReceiver,
  divertDials,
  type Receiver,
  startRawReceiver,
  startReceiver,
  trustReceiver,
} from './receiver.ts';

const DEADLINE_MS = 300;
const PUBLIC = '93.184.215.14';
const here = parseAllowList('127.0.0.1');

trustReceiver();

const egress = createEgress({ allow: here, resolve: async () => [PUBLIC] });

/** What became of a request to this machine, and after how many milliseconds. */
async function ask(url: string, options: Partial<EgressRequest> = {}, from = egress) {
  const startedAt = performance.now();
  const outcome = await from
    .request(url, { method: 'POST', headers: {}, body: 'wake', deadlineMs: DEADLINE_MS, ...options })
    .catch((error: unknown) => error as EgressError);
  return { outcome, ms: performance.now() - startedAt };
}

/** Failed at the deadline: neither before nor, whatever the other side does, noticeably after. */
function expectCut({ outcome, ms }: Awaited<ReturnType<typeof ask>>): void {
  expect(outcome).toMatchObject({ kind: 'timeout' });
  expect(ms).toBeGreaterThan(DEADLINE_MS - 10);
  expect(ms).toBeLessThan(DEADLINE_MS + 250);
}

/** A server that is closed after the test, by when it must have no caller left. */
async function raw(onSocket: (socket: net.Socket) => void) {
  const receiver = await startRawReceiver(onSocket);
  onTestFinished(receiver.close);
  return receiver;
}

async function serving(options: Parameters<typeof startReceiver>[0]): Promise<Receiver> {
  const receiver = await startReceiver(options);
  onTestFinished(receiver.close);
  return receiver;
}

/** Writes a piece every few milliseconds until nobody takes it. */
function drip(socket: net.Socket, start: string, piece: string | Buffer): void {
  socket.once('data', () => {
    socket.write(start);
    const timer = setInterval(() => socket.write(piece), 5);
    socket.once('close', () => clearInterval(timer));
  });
}

const openSockets = () => process.getActiveResourcesInfo().filter((name) => name === 'TCPSocketWrap').length;

afterEach(async () => {
  await expect.poll(openSockets, { interval: 10 }).toBe(0);
});

test('a name server that never answers', async () => {
  const silent = createEgress({ allow: here, resolve: () => new Promise(() => {}) });
  expectCut(await ask('https://hooks.example.com/', {}, silent));
});

test('a name server that answers after the deadline: nothing is dialled any more', async () => {
  const { dialled, restore } = divertDials(undefined);
  onTestFinished(restore);
  const { promise, resolve: answer } = Promise.withResolvers<string[]>();
  const late = createEgress({ allow: here, resolve: () => promise });
  expectCut(await ask('https://hooks.example.com/', {}, late));
  answer([PUBLIC]);
  await new Promise(setImmediate);
  expect(dialled).toEqual([]);
});

test('a host that swallows packets', async () => {
  const { dialled, restore } = divertDials(undefined);
  onTestFinished(restore);
  expectCut(await ask('https://hooks.example.com/'));
  expect(dialled).toEqual([`${PUBLIC} 443`]);
});

test('a TLS handshake that stalls', async () => {
  const { port, left } = await raw((socket) => socket.resume());
  expectCut(await ask(`https://127.0.0.1:${port}/`));
  await left();
});

test('an answer that never starts', async () => {
  const { port, left } = await raw((socket) => socket.resume());
  expectCut(await ask(`http://127.0.0.1:${port}/`));
  await left();
});

test('headers that drip', async () => {
  const { port, left } = await raw((socket) => drip(socket, 'HTTP/1.1 200 OK\r\nX-Slow: ', 'x'));
  expectCut(await ask(`http://127.0.0.1:${port}/`));
  await left();
});

test('early hints without end', async () => {
  const { port, left } = await raw((socket) => drip(socket, '', 'HTTP/1.1 103 Early Hints\r\n\r\n'));
  expectCut(await ask(`http://127.0.0.1:${port}/`));
  await left();
});

test('a body that drips, where somebody wants it', async () => {
  const { port, left } = await raw((socket) => drip(socket, 'HTTP/1.1 200 OK\r\n\r\n', 'x'));
  expectCut(await ask(`http://127.0.0.1:${port}/`, { maxBodyBytes: 10_000 }));
  await left();
});

test('a body that drips, where nobody wants it, is left to itself', async () => {
  const { port, left } = await raw((socket) => drip(socket, 'HTTP/1.1 200 OK\r\n\r\n', 'x'));
  const { outcome, ms } = await ask(`http://127.0.0.1:${port}/`);
  expect(outcome).toMatchObject({ status: 200, body: null });
  expect(ms).toBeLessThan(DEADLINE_MS - 50);
  await left();
});

test.each([
  ['discarded', undefined, { status: 200, body: null }],
  ['refused', 1_000, { kind: 'body_too_large' }],
])('a body without end is %s', async (_what, maxBodyBytes, expected) => {
  const block = Buffer.alloc(65_536);
  const { port, left } = await raw((socket) => {
    const flood = () => {
      while (socket.writable && socket.write(block));
    };
    socket.once('data', () => socket.write('HTTP/1.1 200 OK\r\n\r\n'));
    socket.once('data', flood).on('drain', flood);
  });
  const { outcome, ms } = await ask(`http://127.0.0.1:${port}/`, { maxBodyBytes, deadlineMs: 10_000 });
  expect(outcome).toMatchObject(expected);
  expect(ms).toBeLessThan(1_000);
  await left();
});

test('a compressed body stays as it came, so that none can grow', async () => {
  const bomb = gzipSync(Buffer.alloc(50_000_000));
  const { port } = await serving({
    answer: (_request, response) => response.setHeader('content-encoding', 'gzip').end(bomb),
  });
  const url = `http://127.0.0.1:${port}/`;
  const { outcome } = await ask(url, { maxBodyBytes: bomb.length, deadlineMs: 5_000 });
  expect(outcome).toMatchObject({ status: 200, headers: { 'content-encoding': 'gzip' }, body: bomb });
  expect((await ask(url, { maxBodyBytes: bomb.length - 1 })).outcome).toMatchObject({ kind: 'body_too_large' });
  expect((await ask(url)).outcome).toMatchObject({ status: 200, body: null });
});

test('headers beyond 16 KiB', async () => {
  const { port } = await serving({
    answer: (_request, response) => response.setHeader('x-long', 'x'.repeat(16_384)).end(),
  });
  expect((await ask(`http://127.0.0.1:${port}/`)).outcome).toMatchObject({ kind: 'connection' });
});

test('what was sent and what came', async () => {
  const receiver = await serving({
    answer: (_request, response) => response.writeHead(418, { 'X-Two': ['a', 'b'] }).end('short and stout'),
  });
  const { outcome } = await ask(`http://127.0.0.1:${receiver.port}/a?b=c`, {
    method: 'GET',
    body: undefined,
    maxBodyBytes: 99,
  });
  expect(outcome).toMatchObject({ status: 418, headers: { 'x-two': 'a, b' }, body: Buffer.from('short and stout') });
  expect(receiver.requests).toMatchObject([{ method: 'GET', path: '/a?b=c', host: `127.0.0.1:${receiver.port}` }]);
});

test('a receiver that would keep the connection gets a new one each time, after a new look', async () => {
  const receiver = await serving({
    isTls: true,
    answer: (_request, response) => response.setHeader('connection', 'keep-alive').end('ok'),
  });
  const answers = [[PUBLIC], [PUBLIC], ['10.0.0.9']];
  const moving = createEgress({ allow: here, resolve: async () => answers.shift()! });
  const { dialled, restore } = divertDials(receiver.port);
  onTestFinished(restore);
  const outcomes = [];
  for (let round = 0; round < 3; round++) outcomes.push((await ask('https://agents.example.com/', {}, moving)).outcome);
  expect(outcomes).toMatchObject([{ status: 200 }, { status: 200 }, { kind: 'address_blocked' }]);
  expect(receiver.connections()).toBe(2);
  expect(dialled).toEqual([`${PUBLIC} 443`, `${PUBLIC} 443`]);
});

test('a certificate for another name, and one that nobody vouches for', async () => {
  const receiver = await serving({ isTls: true });
  const { restore } = divertDials(receiver.port);
  onTestFinished(restore);
  const { outcome } = await ask('https://other.example.com/');
  expect(outcome).toMatchObject({ kind: 'tls', code: 'ERR_TLS_CERT_ALTNAME_INVALID' });
  distrustReceiver();
  onTestFinished(trustReceiver);
  expect((await ask('https://agents.example.com/')).outcome).toMatchObject({ kind: 'tls' });
  expect(receiver.requests).toEqual([]);
});

test('a hundred bad certificates leave no socket behind', async () => {
  const receiver = await serving({ isTls: true });
  const { restore } = divertDials(receiver.port);
  onTestFinished(restore);
  for (let round = 0; round < 10; round++)
    await Promise.all(Array.from({ length: 10 }, () => ask('https://other.example.com/', { deadlineMs: 10_000 })));
  expect(receiver.connections()).toBe(100);
  await receiver.left();
});

test.each([
  ['before the answer', ''],
  ['in its headers', 'HTTP/1.1 200 OK\r\nX-Half'],
  ['with what is no HTTP', 'SSH-2.0-OpenSSH_9.2\r\n'],
])('a connection that ends %s is not made a second time', async (_where, text) => {
  const receiver = await raw((socket) => socket.once('data', () => socket.end(text)));
  for (const method of ['GET', 'POST'] as const) {
    const { outcome } = await ask(`http://127.0.0.1:${receiver.port}/`, { method, body: undefined });
    expect(outcome).toMatchObject({ kind: 'connection' });
  }
  expect(receiver.connections()).toBe(2);
});

test('a connection that ends as soon as it was made is not made a second time', async () => {
  const receiver = await raw((socket) => socket.destroy());
  expect((await ask(`http://127.0.0.1:${receiver.port}/`)).outcome).toMatchObject({ kind: 'connection' });
  expect(receiver.connections()).toBe(1);
});

test('nobody there', async () => {
  const { port, close } = await startRawReceiver(() => {});
  await close();
  const { outcome } = await ask(`http://127.0.0.1:${port}/`);
  expect(outcome).toMatchObject({ kind: 'connection', code: 'ECONNREFUSED' });
});

test('a failure does not say where or what', async () => {
  const secret = createEgress({
    allow: here,
    resolve: async () => {
      throw Object.assign(new Error('queryA ENOTFOUND canary.example.com'), { code: 'ENOTFOUND' });
    },
  });
  const { outcome } = await ask('https://canary.example.com/canary?canary', { headers: { x: 'canary' } }, secret);
  expect(outcome).toBeInstanceOf(EgressError);
  const { message, stack, cause, ...rest } = outcome as EgressError;
  expect(JSON.stringify({ message, stack, cause, rest })).not.toContain('canary');
});

test('closing cuts what is under way', async () => {
  const closing = createEgress({ allow: here });
  const { promise: arrived, resolve } = Promise.withResolvers<void>();
  const { port } = await raw((socket) => socket.once('data', () => resolve()));
  const asked = ask(`http://127.0.0.1:${port}/`, { deadlineMs: 10_000 }, closing);
  await arrived;
  await closing.close();
  expect((await asked).outcome).toMatchObject({ kind: 'connection' });
});

test('what an operator allows is resolved by the system and may be plain HTTP at any port', async () => {
  const receiver = await serving({});
  const url = `http://localhost:${receiver.port}/`;
  const named = createEgress({ allow: parseAllowList(`localhost:${receiver.port}`) });
  expect((await ask(url, { deadlineMs: 5_000 }, named)).outcome).toMatchObject({ status: 200 });
  const other = createEgress({ allow: parseAllowList('localhost:1') });
  expect((await ask(url, {}, other)).outcome).toMatchObject({ kind: 'address_blocked' });
});

test('a name in an allowed network', async () => {
  const inward = createEgress({ allow: parseAllowList('10.1.0.0/16'), resolve: async () => ['10.1.2.3'] });
  const { dialled, restore } = divertDials(undefined);
  onTestFinished(restore);
  expectCut(await ask('https://hooks.corp.example/', {}, inward));
  expect(dialled).toEqual(['10.1.2.3 443']);
  const outside = createEgress({ allow: parseAllowList('10.1.0.0/16'), resolve: async () => ['10.1.2.3', '10.2.2.3'] });
  expect((await ask('https://hooks.corp.example/', {}, outside)).outcome).toMatchObject({ kind: 'address_blocked' });
});
