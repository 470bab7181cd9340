import { randomBytes } from 'node:crypto';
import { Writable } from 'node:stream';
import { pino } from 'pino';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import { type KeyRing, makeKeyRing, makeRingProof, wrapDataKey } from '../../src/crypto/key-ring.ts';
import * as functions from '../../src/db/functions.ts';
import { type Queryable, withClient } from '../../src/db/pool.ts';
import { parseAllowList } from '../../src/net/allow-list.ts';
import type { Egress } from '../../src/net/egress.ts';
import type { OpenIdSettings } from '../../src/openid/provider.ts';
import { type Pod, startPod } from '../../src/pod.ts';
import { startWorker, type Worker } from '../../src/worker.ts';
import { createTestDatabase, type TestDatabase } from './database.ts';
import { watchLog } from './log-lines.ts';

/** What an HTTP call answered. */
export interface Answer {
  status: number;
  // biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
  body: any;
  headers: Headers;
}

export interface TestAgent {
  id: string;
  token: string;
  connectionId: string;
  /** Calls /messaging/v1 as this agent, at a pod by its number. */
  call(method: string, path: string, body?: object | string | Uint8Array, pod?: number): Promise<Answer>;
  send(body: object, pod?: number): Promise<Answer>;
  receive(body?: object, pod?: number): Promise<Answer>;
  ack(messageIds: string[], body?: object, pod?: number): Promise<Answer>;
}

export interface TestOwner {
  id: string;
  /** Does something as the owner, in one transaction of the person at the server. */
  act<T>(work: (db: Queryable, credential: Buffer) => Promise<T>): Promise<T>;
  token(options?: { scopes?: string[]; kind?: 'service' | 'device' }): Promise<{ token: string; connectionId: string }>;
  agent(label: string, options?: { kind: 'service' | 'device' }): Promise<TestAgent>;
  group(agents: { id: string }[], hours?: number): Promise<functions.GroupView>;
}

export interface TestPosthorn {
  database: TestDatabase;
  ring: KeyRing;
  pods: Pod[];
  owner(label?: string): Promise<TestOwner>;
  /** A worker in this process that delivers webhooks. Close it before the pods. */
  worker(): Promise<Worker>;
  /** Every line that the pods and workers logged so far. */
  log(): string;
  close(): Promise<void>;
}

/** Pods on a database of this test file. Close them before the file ends. */
export async function startPosthorn(
  options: {
    pods?: number;
    host?: string;
    publicUrl?: string;
    database?: TestDatabase;
    webhookAllow?: string;
    openid?: OpenIdSettings;
    egress?: Egress;
  } = {},
): Promise<TestPosthorn> {
  const database = options.database ?? (await createTestDatabase());
  const admin = database.as('posthorn_admin');
  const ring = makeKeyRing();
  await functions.addRingKey(admin, { ringKeyId: ring.currentId, proof: makeRingProof(ring, ring.currentId) });
  let lines = '';
  watchLog(() => lines);
  const log = pino(
    new Writable({
      write(chunk, _encoding, done) {
        lines += chunk;
        done();
      },
    }),
  );
  const pods = await Promise.all(
    Array.from({ length: options.pods ?? 1 }, () =>
      startPod({
        databaseUrl: database.url,
        listenUrl: database.url,
        publicUrl: options.publicUrl,
        host: options.host ?? '127.0.0.1',
        port: 0,
        keyRing: ring,
        egress: options.egress,
        openid: options.openid,
        webhookAllow: parseAllowList(options.webhookAllow ?? ''),
        log,
      }),
    ),
  );

  async function owner(label = 'Owner'): Promise<TestOwner> {
    const id = makeId();
    await functions.createOwner(admin, { label, id, ...wrapDataKey(ring, id, randomBytes(32)) });
    const act: TestOwner['act'] = (work) =>
      withClient(admin, async (client) => {
        await client.query('begin');
        try {
          const answer = await work(client, await functions.actAsOwner(client, { ownerId: id }));
          await client.query('commit');
          return answer;
        } catch (error) {
          await client.query('rollback');
          throw error;
        }
      });
    const token: TestOwner['token'] = async ({ scopes = ['messaging'], kind = 'service' } = {}) => {
      const { token, hash: credentialHash } = makeCredential(kind);
      const make = kind === 'device' ? functions.pairDevice : functions.createServiceConnection;
      const { id: connectionId } = await act((db, credential) =>
        make(db, { credential, label: 'token', scopes, credentialHash }),
      );
      return { token, connectionId };
    };
    return {
      id,
      act,
      token,
      async agent(label, options) {
        const { token: secret, connectionId } = await token(options);
        return await registerAgent(pods, secret, connectionId, label);
      },
      group: (agents, hours = 168) =>
        act((db, credential) =>
          functions.createGroup(db, {
            credential,
            name: 'Group',
            purpose: 'To test',
            agentIds: agents.map((agent) => agent.id),
            durationHours: hours,
          }),
        ),
    };
  }

  return {
    database,
    ring,
    pods,
    owner,
    worker: () =>
      startWorker({
        databaseUrl: database.url,
        openDelivery: async () => ({
          keyRing: ring,
          readKeyRing: async () => ring,
          allow: parseAllowList(options.webhookAllow ?? ''),
          publicUrl: options.publicUrl,
        }),
        log,
      }),
    log: () => lines,
    async close() {
      await Promise.all(pods.map((pod) => pod.close()));
    },
  };
}

/** One HTTP call with a bearer token; a string or bytes go out as they are. */
export async function callHttp(
  url: string,
  token: string | null,
  method: string,
  path: string,
  body?: object | string | Uint8Array,
  signal?: AbortSignal,
): Promise<Answer> {
  const raw = typeof body === 'string' || body instanceof Uint8Array;
  const response = await fetch(url + path, {
    method,
    headers: {
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    body: body === undefined ? undefined : raw ? (body as string) : JSON.stringify(body),
    signal: signal ?? null,
  });
  const text = await response.text();
  return { status: response.status, body: text === '' ? null : JSON.parse(text), headers: response.headers };
}

async function registerAgent(pods: Pod[], token: string, connectionId: string, label: string): Promise<TestAgent> {
  const call: TestAgent['call'] = (method, path, body, pod = 0) =>
    callHttp(pods[pod]!.url, token, method, `/messaging/v1${path}`, body);
  const registered = await call('POST', '/agents', { label, runtime: 'other', installation: 'test' });
  if (registered.status !== 200) throw new Error(`register ${label}: ${JSON.stringify(registered.body)}`);
  const { id } = registered.body;
  return {
    id,
    token,
    connectionId,
    call,
    send: (body, pod) => call('POST', '/send', { agent_id: id, ...body }, pod),
    receive: (body, pod) => call('POST', '/receive', { agent_id: id, ...body }, pod),
    ack: (messageIds, body, pod) => call('POST', '/ack', { agent_id: id, message_ids: messageIds, ...body }, pod),
  };
}

let keys = 0;

/** An idempotency key that nobody used. */
export function newKey(): string {
  return `key-${++keys}`;
}
