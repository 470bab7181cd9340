// From the commit of a send to the event in its reader, next to what the database itself needs: until a bare listener has
// the notification of the same commit; and the same of a commit that holds little else.
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { makeId } from '../src/crypto/ids.ts';
import { makeKeyRing, serializeKeyRing } from '../src/crypto/key-ring.ts';
import { sendMessages } from '../src/db/functions.ts';
import { openStream } from '../test/helpers/event-stream.ts';
import { describeMachine } from './machine.ts';
import { startPodProcess } from './processes.ts';
import { type Case, type Measurement, median, type Report, runRounds } from './rounds.ts';
import { actAsPod, startBenchServer } from './server.ts';
import { type Sender, seedTenants } from './tenants.ts';

const FULL = { rounds: 5, wakes: 300 };
const QUICK = { rounds: 1, wakes: 10 };
/** The bar of the contract, at the median. */
const AT_MOST = 2;
const SEALED_BYTES = 1024 + 29;
/** How far an inbox fills before it is emptied: a hundred is the most that one holds. */
const INBOX = 50;

export async function benchWake({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const closers = [() => server.stop()];
  try {
    const keyRing = makeKeyRing();
    const url = await server.makeDatabase('wake');
    const tenants = await seedTenants(url, 2, keyRing);
    const sender = tenants[0]!;
    const senders = [sender, tenants.find(({ agentId }) => agentId === sender.peers[0])!];
    const pod = await startPodProcess(url, serializeKeyRing(keyRing));
    const bare = await openBareListener(url);
    const reader = await openReader(pod.url, senders);
    const client = new pg.Client({ connectionString: actAsPod(url) });
    await client.connect();
    const writer = new pg.Client({ connectionString: url });
    await writer.connect();
    closers.unshift(
      () => client.end(),
      () => writer.end(),
      bare.end,
      async () => reader.close(),
      pod.stop,
    );

    const bareCommit = async () => {
      await writer.query('begin');
      await writer.query(`select pg_notify('bench', '')`);
      return await timed(() => writer.query('commit'), bare.heard());
    };
    const writingCommit = async () => {
      await writer.query('begin');
      await writer.query(`insert into bench.raw (body) values ($1)`, [randomBytes(SEALED_BYTES)]);
      await writer.query(`select pg_notify('bench', '')`);
      return await timed(() => writer.query('commit'), bare.heard());
    };
    /** Each send is heard by both: by our reader, and as the notification that it is by a bare listener. */
    let notified: number[] = [];
    const sendCommit = async () => {
      if (notified.length % INBOX === 0) await emptyInboxes(writer);
      await client.query('begin');
      await send(client, senders);
      const startedAt = performance.now();
      const [at, notifiedAt] = await Promise.all([reader.heard(), bare.heard(), client.query('commit')]);
      notified.push(notifiedAt - startedAt);
      return at - startedAt;
    };
    const ours = latencyCases('posthorn', async () => {
      notified = [];
      return await repeat(size.wakes, sendCommit);
    });
    const cases = [
      ...latencyCases(EMPTY, () => repeat(size.wakes, bareCommit)),
      ...latencyCases(WRITING, () => repeat(size.wakes, writingCommit)),
      ...ours,
      ...latencyCases(SAME, async () => notified),
    ];
    for (const [index, name] of [medianOf, tailOf].entries()) {
      const atMost = index === 0 ? AT_MOST : undefined;
      ours[index]!.peers = [{ name: name(SAME), atMost }, { name: name(WRITING) }, { name: name(EMPTY) }];
    }
    for (let warm = 0; warm < size.wakes / 3; warm++) {
      await bareCommit();
      await writingCommit();
      await sendCommit();
    }
    const results = await runRounds(cases, size.rounds, () => server.checkpoint());
    return { machine: await describeMachine(url, server.directory), results };
  } finally {
    for (const close of closers) await close();
  }
}

const EMPTY = 'a NOTIFY alone';
const WRITING = 'a NOTIFY and one row';
const SAME = 'the notification of the same send';
const medianOf = (whose: string) => `commit to reader, median: ${whose}`;
const tailOf = (whose: string) => `commit to reader, 99th of 100: ${whose}`;

/** The median, and the 99th percentile of the same run. */
function latencyCases(whose: string, run: () => Promise<number[]>): Case[] {
  let sorted: number[] = [];
  return [
    {
      name: medianOf(whose),
      unit: 'ms',
      async measure(): Promise<Measurement> {
        sorted = (await run()).toSorted((a, b) => a - b);
        return { figure: median(sorted) };
      },
    },
    {
      name: tailOf(whose),
      unit: 'ms',
      measure: async () => ({ figure: sorted[Math.ceil(sorted.length * 0.99) - 1]! }),
    },
  ];
}

async function repeat(times: number, once: () => Promise<number>): Promise<number[]> {
  const latencies: number[] = [];
  while (latencies.length < times) latencies.push(await once());
  return latencies;
}

/** From the moment when the commit is asked for until the reader has heard, in milliseconds. */
async function timed(commit: () => Promise<unknown>, heard: Promise<number>): Promise<number> {
  const startedAt = performance.now();
  const [at] = await Promise.all([heard, commit()]);
  return at - startedAt;
}

async function openBareListener(url: string) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query('listen bench');
  await client.query('listen posthorn');
  return {
    heard: () => new Promise<number>((resolve) => client.once('notification', () => resolve(performance.now()))),
    end: () => client.end(),
  };
}

/** A reader of the mail that the first agent gets. */
async function openReader(url: string, [, recipient]: Sender[]) {
  const { agentId, credential } = recipient!;
  const stream = await openStream(url, credential, `/messaging/v1/events?agent_id=${agentId}`);
  await stream.until((events) => events.length > 0);
  return {
    async heard() {
      const count = stream.events.length;
      await stream.until((events) => events.length > count);
      return performance.now();
    },
    close: () => stream.close(),
  };
}

async function emptyInboxes(superuser: pg.Client): Promise<void> {
  await superuser.query('delete from posthorn.bodies');
  await superuser.query('update posthorn.mailboxes set unfenced = 0');
}

async function send(client: pg.Client, [sender, recipient]: Sender[]): Promise<void> {
  const { credentialHash, agentId, groupId } = sender!;
  const to = recipient!.agentId;
  const [outcome] = await sendMessages(client, {
    credentials: [credentialHash],
    agentIds: [agentId],
    keys: [makeId()],
    fingerprints: [randomBytes(32)],
    recipientAgentIds: [to],
    groupIds: [groupId],
    conversationIds: [null],
    repliesTo: [null],
    purposes: [null],
    names: [null],
    durationsHours: [null],
    sensitive: [false],
    plannedGroupIds: [groupId],
    plannedGenerations: [1],
    holdIds: [null],
    postIds: [null],
    copyItems: [1],
    copyRecipients: [to],
    copyMessageIds: [makeId()],
    copyCiphertexts: [randomBytes(SEALED_BYTES)],
  });
  if (outcome?.outcome !== 'queued') throw new Error(`a send was ${outcome?.outcome}`);
}
