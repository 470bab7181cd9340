import { setTimeout as wait } from 'node:timers/promises';
import { expect } from 'vitest';
import type { TestDatabase } from './database.ts';
import { followLog, makeReader, readLog, withoutResets } from './event-log.ts';
import { type Answer, callHttp } from './posthorn.ts';

interface Agent {
  id: string;
  token: string;
}

/** What a call was told instead of what it asked for. */
export interface Refusal {
  call: 'send' | 'receive' | 'ack';
  /** Status, error code and Retry-After as one text; `no answer` where the connection broke. */
  told: string;
  /** How long that took, in milliseconds. */
  after: number;
}

/** Clients that do what the documentation tells them, whatever happens to pods and database. */
export interface Traffic {
  refusals: Refusal[];
  /** How many posts have their receipt. */
  posted(): number;
  /** Resolves when so many more have. */
  more(count: number): Promise<void>;
  /** Resolves when a call was told something like this since. */
  refused(told: RegExp): Promise<void>;
  /**
   * Lets what is under way finish and looks whether anything was lost, doubled or told in another order.
   *
   * @param options.maySayReset where the events before a failover are not known after it
   */
  finish(options?: { maySayReset?: boolean }): Promise<void>;
}

const WRITERS = 4;
/** A client gives up a call that nobody answers, in milliseconds: later than a pod does. */
const PATIENCE_MS = 20_000;
const SETTLED_MS = 45_000;

/**
 * Every agent writes to the group, reads and acknowledges its mail and follows its log. Each post has one key until it
 * has a receipt; a call that is refused comes again after its Retry-After, at the next pod.
 *
 * @param options.urls pods; another address may be put in the place of a dead one
 */
export async function startTraffic(options: {
  urls: string[];
  agents: Agent[];
  groupId: string;
  database: TestDatabase;
  patienceMs?: number;
}): Promise<Traffic> {
  const { urls, agents, groupId, database, patienceMs = PATIENCE_MS } = options;
  const refusals: Refusal[] = [];
  const receipts = new Map<string, string>();
  const mail = agents.map(() => ({
    bodies: new Map<string, string>(),
    fenced: new Set<string>(),
    served: [] as string[],
  }));
  const writing = new AbortController();
  const reading = new AbortController();
  const following = new AbortController();
  const waiting = new Set<() => void>();
  let keys = 0;

  /** One call at one pod; undefined if it was refused and its time has not come yet. */
  async function call(agent: Agent, name: Refusal['call'], path: string, body: object, attempt: number) {
    const startedAt = performance.now();
    const url = urls[attempt % urls.length]!;
    const signal = AbortSignal.timeout(patienceMs);
    const answer = await callHttp(url, agent.token, 'POST', `/messaging/v1${path}`, body, signal).catch(
      () => undefined,
    );
    if (answer && answer.status < 300) return answer;
    refusals.push({ call: name, told: describe(answer), after: performance.now() - startedAt });
    for (const check of waiting) check();
    await wait(1_000 * Number(answer?.headers.get('retry-after') ?? 0.05));
    return undefined;
  }

  async function write(): Promise<void> {
    while (!writing.signal.aborted) {
      const index = keys++;
      const agent = agents[index % agents.length]!;
      const body = { agent_id: agent.id, group_id: groupId, body: `words ${index}`, idempotency_key: `post-${index}` };
      let answer: Answer | undefined;
      for (let attempt = index; !answer; attempt++) answer = await call(agent, 'send', '/send', body, attempt);
      receipts.set(body.idempotency_key, answer.body.post_id);
      for (const check of waiting) check();
    }
  }

  async function read(index: number): Promise<void> {
    const agent = agents[index]!;
    const { bodies, fenced, served } = mail[index]!;
    for (let attempt = index; !reading.signal.aborted; attempt++) {
      const received = await call(
        agent,
        'receive',
        '/receive',
        { agent_id: agent.id, limit: 100, wait_seconds: 1 },
        attempt,
      );
      const messages: { id: string; body: string }[] = received?.body.messages ?? [];
      for (const { id, body } of messages) {
        bodies.set(id, body);
        if (fenced.has(id)) served.push(id);
      }
      const message_ids = messages.map(({ id }) => id);
      if (message_ids.length === 0) continue;
      // one that gets no answer may have been done, so it is said again
      while (!(await call(agent, 'ack', '/ack', { agent_id: agent.id, message_ids }, attempt))) attempt++;
      for (const id of message_ids) fenced.add(id);
    }
  }

  /** Resolves when the condition holds after a receipt or a refusal. */
  function until(isMet: () => boolean): Promise<void> {
    return new Promise((resolve) => {
      const check = () => {
        if (!isMet()) return;
        waiting.delete(check);
        resolve();
      };
      waiting.add(check);
    });
  }

  const readers = agents.flatMap((agent) => urls.map(() => makeReader(agent)));
  const streams = readers.map((reader, index) => followLog(reader, urls, index, following.signal));
  await expect.poll(() => readers.every(({ lastId }) => lastId !== undefined), { timeout: SETTLED_MS }).toBe(true);
  const writers = Array.from({ length: WRITERS }, write);
  const mailboxes = agents.map((_, index) => read(index));

  return {
    refusals,
    posted: () => receipts.size,
    more(count) {
      const goal = receipts.size + count;
      return until(() => receipts.size >= goal);
    },
    refused(told) {
      const before = refusals.length;
      return until(() => refusals.slice(before).some((refusal) => told.test(refusal.told)));
    },
    async finish({ maySayReset = false } = {}) {
      writing.abort();
      await Promise.all(writers);
      const copies = receipts.size * (agents.length - 1);
      const acknowledged = () => mail.reduce((sum, { fenced }) => sum + fenced.size, 0);
      await expect.poll(acknowledged, { timeout: SETTLED_MS }).toBe(copies);
      reading.abort();
      await Promise.all(mailboxes);
      const logs = new Map<string, string[]>();
      for (const { id } of agents) logs.set(id, await readLog(database, id));
      const ends = () => readers.map(({ agent, heard }) => heard.at(-1) === logs.get(agent.id)!.at(-1));
      await expect.poll(ends, { timeout: SETTLED_MS }).toEqual(readers.map(() => true));
      following.abort();
      await Promise.all(streams);

      for (const { agent, heard } of readers) {
        const log = logs.get(agent.id)!;
        if (maySayReset) expect(inOrderOf(log, withoutResets(heard))).toEqual(withoutResets(heard));
        else expect(heard).toEqual(log);
      }
      expect(
        mail.flatMap(({ served }) => served),
        'messages that came again after they were acknowledged',
      ).toEqual([]);
      const words = mail.flatMap(({ bodies }) => [...bodies.values()]).sort();
      const written = Array.from({ length: receipts.size }, (_, index) => `words ${index}`);
      expect(words).toEqual(written.flatMap((text) => agents.slice(1).map(() => text)).sort());
      expect(new Set(receipts.values()).size).toBe(receipts.size);
      const { rows } = await database.admin.query(
        'select count(*)::int as messages from posthorn.messages where group_id = $1',
        [groupId],
      );
      expect(rows).toEqual([{ messages: copies }]);
      expect((await database.admin.query('select * from ops.invariants')).rows).toEqual([]);
    },
  };
}

function describe(answer: Answer | undefined): string {
  if (!answer) return 'no answer';
  return `${answer.status} ${answer.body.error}, Retry-After ${answer.headers.get('retry-after')}`;
}

/** The events of the log that were heard, once each. */
function inOrderOf(log: string[], heard: string[]): string[] {
  const wanted = new Set(heard);
  return log.filter((event) => wanted.has(event));
}

/** Nothing but the fault is to stop the traffic. */
export async function liftLimits(database: TestDatabase): Promise<void> {
  for (const name of ['conversation_posts', 'group_posts_per_minute', 'inbox_messages'])
    await database.admin.query('select ops.set_limit($1, 1000000)', [name]);
}
