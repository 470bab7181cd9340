// Webhooks: a backlog of wakes for many endpoints, delivered by one worker, next to a loop that only posts. And how long
// healthy endpoints wait for their wakes, alone and beside dead ones that take requests and never answer.
import { setTimeout as wait } from 'node:timers/promises';
import pg from 'pg';
import { makeKeyRing, serializeKeyRing } from '../src/crypto/key-ring.ts';
import { createOwnerKeys } from '../src/crypto/owner-keys.ts';
import { sealForWebhook } from '../src/crypto/seal.ts';
import { planWebhook, removeWebhook, setWebhook } from '../src/db/functions.ts';
import { createPool } from '../src/db/pool.ts';
import { makeWebhookSecret } from '../src/webhooks/signature.ts';
import { describeMachine } from './machine.ts';
import { type Receiver, startReceiver, startUndiciLoop, startWorkerProcess } from './processes.ts';
import { type Case, type Report, runRounds } from './rounds.ts';
import { openLane } from './send-calls.ts';
import { actAsPod, startBenchServer } from './server.ts';
import { type Sender, seedTenants } from './tenants.ts';

const AGENTS_PER_OWNER = 20;
const BATCH = 50;

const FULL = { rounds: 5, owners: { alive: 50, dead: 5 }, backlog: 3_000, seconds: 6, perSecond: 150, atOnce: 64 };
const QUICK = { rounds: 1, owners: { alive: 2, dead: 1 }, backlog: 100, seconds: 1, perSecond: 50, atOnce: 8 };

export async function benchWebhooks({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const closers = [() => server.stop()];
  try {
    const keyRing = makeKeyRing();
    const url = await server.makeDatabase('webhooks');
    const agents = await seedTenants(url, size.owners.alive + size.owners.dead, keyRing);
    const { alive, dead } = await divide(url, agents, size.owners.alive);
    const receiver = startReceiver();
    const loop = startUndiciLoop();
    closers.unshift(receiver.stop, loop.stop);
    const { port } = await receiver.reset();
    const origin = `http://127.0.0.1:${port}`;

    const pool = createPool({ url, role: 'posthorn_app', max: 4 });
    closers.unshift(() => pool.end());
    const ownerKeysOf = createOwnerKeys(pool, keyRing);
    const register = (group: Sender[], path: string) =>
      inTurn(group, async ({ credentialHash: credential, agentId }) => {
        const [plan] = await planWebhook(pool, { credential, agentId });
        const keys = await ownerKeysOf(plan!.ownerId, credential);
        await setWebhook(pool, {
          credential,
          agentId,
          urlHost: `127.0.0.1:${port}`,
          sealedUrl: sealForWebhook(keys, { agentId, field: 'url' }, origin + path),
          sealedSecret: sealForWebhook(keys, { agentId, field: 'secret' }, makeWebhookSecret()),
          events: ['messaging.pending'],
        });
      });
    const remove = (group: Sender[]) =>
      inTurn(group, ({ credentialHash: credential, agentId }) => removeWebhook(pool, { credential, agentId }));
    await register(alive, '/alive');
    console.error(`registered ${alive.length} webhooks`);

    const worker = await startWorkerProcess(url, serializeKeyRing(keyRing));
    closers.unshift(async () => {
      worker.send('SIGCONT');
      await worker.stop();
    });
    const toAlive = await openLane(actAsPod(url), alive, BATCH);
    const toDead = await openLane(actAsPod(url), dead, BATCH);
    const trickle = await openLane(actAsPod(url), alive, size.perSecond / 25);

    const undici = (isKeptAlive: boolean) => async () => ({
      figure: await loop.run({ origin, requests: size.backlog, atOnce: size.atOnce, isKeptAlive }),
    });
    const fresh = 'undici loop, a connection for each request';
    const withDead = `p99 of a wake beside ${dead.length} dead endpoints`;
    const cases = [
      { name: 'undici loop, connections kept', unit: '/s', measure: undici(true) },
      { name: fresh, unit: '/s', measure: undici(false) },
      {
        name: `deliveries to ${alive.length} endpoints, one worker`,
        unit: '/s',
        measure: async () => ({ figure: await drainBacklog(receiver, worker.send, toAlive, size.backlog) }),
        peers: [{ name: fresh, atLeast: 0.5 }, { name: 'undici loop, connections kept' }],
      },
      {
        name: withDead,
        unit: 'ms',
        measure: async () => {
          await register(dead, '/dead');
          for (let sent = 0; sent < dead.length * 3; sent += BATCH) await toDead();
          const figure = await latencyOf(receiver, trickle, size);
          await remove(dead);
          return { figure };
        },
      },
      {
        name: `p99 of a wake to ${alive.length} endpoints`,
        unit: 'ms',
        measure: async () => ({ figure: await latencyOf(receiver, trickle, size) }),
        // 1.5 times as long at most
        peers: [{ name: withDead, atLeast: 1 / 1.5 }],
      },
    ] satisfies Case[];
    for (const { measure } of cases) await measure(); // plans, connections and compiled code
    const results = await runRounds(cases, size.rounds, server.checkpoint);
    return { machine: await describeMachine(url, server.directory), results };
  } finally {
    for (const close of closers) await close();
  }
}

/** Agents of the last owners are to be the dead ones, so that nobody alive writes to them. */
async function divide(
  url: string,
  agents: Sender[],
  aliveOwners: number,
): Promise<{ alive: Sender[]; dead: Sender[] }> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  const { rows } = await client.query('select agent_id as id from bench.seats order by owner_id limit $1', [
    aliveOwners * AGENTS_PER_OWNER,
  ]);
  await client.end();
  const ids = new Set(rows.map(({ id }) => id));
  return {
    alive: agents.filter(({ agentId }) => ids.has(agentId)),
    dead: agents.filter(({ agentId }) => !ids.has(agentId)),
  };
}

async function inTurn(agents: Sender[], work: (agent: Sender) => Promise<unknown>): Promise<void> {
  for (const agent of agents) await work(agent);
}

/** Deliveries per second of what gathered while the worker was stopped. */
async function drainBacklog(
  receiver: Receiver,
  signal: (name: NodeJS.Signals) => void,
  send: () => Promise<number>,
  backlog: number,
): Promise<number> {
  signal('SIGSTOP');
  for (let sent = 0; sent < backlog; sent += BATCH) await send();
  await receiver.reset();
  const startedAt = performance.now();
  signal('SIGCONT');
  await receiver.until(backlog);
  return backlog / ((performance.now() - startedAt) / 1_000);
}

/** From event to arrival at the receiver, under an even load far from what the machine can do. */
async function latencyOf(
  receiver: Receiver,
  send: () => Promise<number>,
  { seconds, perSecond }: { seconds: number; perSecond: number },
): Promise<number> {
  await receiver.reset();
  let sent = 0;
  for (const end = performance.now() + seconds * 1_000; performance.now() < end; await wait(40)) sent += await send();
  const { latencies } = await receiver.until(sent);
  if (latencies.length < (seconds * perSecond) / 10) throw new Error('too few wakes to tell anything');
  return latencies.toSorted((a, b) => a - b)[Math.floor(latencies.length * 0.99)]!;
}
