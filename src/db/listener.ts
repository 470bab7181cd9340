import { randomUUID } from 'node:crypto';
import { setTimeout as wait } from 'node:timers/promises';
import pg from 'pg';
import { metrics } from '../metrics.ts';

const CHANNEL = 'posthorn';
/** How often the subscription is proved, and how long a proof may take: a dead one is noticed within 10 seconds. */
const HEARTBEAT_MS = 5_000;
const ANSWER_MS = 5_000;
const RECONNECT_MS = [100, 250, 500, 1_000, 2_000, 5_000];
/** How long a server may take to hear our goodbye. */
const GOODBYE_MS = 1_000;

/**
 * Why nothing would be heard at once: nobody answers there; it is a standby, which hears nothing; or it takes the
 * subscription and delivers nothing, as a transaction pooler does, and a server of another database.
 */
export type ListenerProblem = 'unreachable' | 'standby' | 'deaf';

export interface Listener {
  /** Calls back whenever this mailbox may have changed; returns how to stop. */
  subscribe(wakeNumber: number, onWake: () => void): () => void;
  /** Calls back with the id of a stream that may have been replaced, or with `*` for any of them; returns how to stop. */
  subscribeStreams(onStream: (streamId: string) => void): () => void;
  /** Whether the subscription was proved to live within the last heartbeat. */
  isListening(): boolean;
  /** Why not; null while it listens, and before the first try is over. */
  problem(): ListenerProblem | null;
  close(): Promise<void>;
}

class NotListening extends Error {
  readonly problem: ListenerProblem;

  constructor(problem: ListenerProblem) {
    super(problem);
    this.problem = problem;
  }
}

/**
 * The one LISTEN connection of a pod. PostgreSQL signals every listening backend at every notifying commit (500
 * listeners slowed senders a hundredfold), so the pod listens once and fans out in process. A notification only says
 * "look": after each reconnect everybody is told to look, so that none is lost, and waiting readers look by themselves
 * every few seconds besides.
 *
 * @param options.url a direct connection to the primary
 * @param options.speak another way to the same database, as whoever sends takes it. A subscription is proved by a word
 *   said there and heard here: behind a transaction pooler, or at a server that was demoted, LISTEN succeeds and the
 *   session answers, but nothing ever arrives.
 * @param options.onChange told when the subscription is gained or lost, and why, for logs and health
 */
export function createListener(options: {
  url: string;
  speak: (sql: string, values: string[]) => Promise<unknown>;
  onChange: (isListening: boolean, problem: ListenerProblem | null) => void;
}): Listener {
  const subscribers = new Map<number, Set<() => void>>();
  const streamSubscribers = new Set<(streamId: string) => void>();
  const closing = new AbortController();
  let isListening = false;
  let problem: ListenerProblem | null = null;
  let proof = { word: '', heard: () => {} };

  function become(nowListening: boolean, nowProblem: ListenerProblem | null): void {
    if (isListening === nowListening && problem === nowProblem) return;
    isListening = nowListening;
    problem = nowProblem;
    options.onChange(isListening, problem);
  }

  function wake(wakeNumber: number): void {
    for (const onWake of subscribers.get(wakeNumber) ?? []) onWake();
  }

  function wakeAll(): void {
    for (const wakeNumber of subscribers.keys()) wake(wakeNumber);
  }

  function onNotification(payload: string | undefined): void {
    const [about, word = ''] = (payload ?? '*').split(' ');
    if (about === '*') wakeAll();
    else if (about === 'stream') for (const onStream of streamSubscribers) onStream(word);
    else if (about === 'proof') word === proof.word && proof.heard();
    else {
      metrics.wakes.inc();
      for (const wakeNumber of about!.split(',')) wake(Number(wakeNumber));
    }
  }

  /** Throws when the connection is lost; resolves when the listener is closed. */
  async function listenOnce(): Promise<void> {
    const client = new pg.Client({
      connectionString: options.url,
      application_name: 'posthorn listener',
      connectionTimeoutMillis: ANSWER_MS,
      query_timeout: ANSWER_MS,
      keepAlive: true,
    });
    const lost = new AbortController();
    client.on('error', () => lost.abort());
    client.on('end', () => lost.abort());
    client.on('notification', ({ payload }) => onNotification(payload));
    const stop = AbortSignal.any([lost.signal, closing.signal]);
    try {
      await client.connect();
      await requirePrimary(client);
      await client.query(`listen ${CHANNEL}`);
      while (!stop.aborted) {
        await prove(client, stop);
        if (!stop.aborted && !isListening) {
          become(true, null);
          wakeAll(); // what was said while nobody listened
          for (const onStream of streamSubscribers) onStream('*');
        }
        await wait(HEARTBEAT_MS, undefined, { signal: stop }).catch(() => {});
      }
      if (!closing.signal.aborted) throw new NotListening('unreachable');
    } finally {
      await sayGoodbye(client);
    }
  }

  /** Says a word to the database by another way and hears it here. */
  async function prove(client: pg.Client, stop: AbortSignal): Promise<void> {
    const heard = Promise.withResolvers<'heard'>();
    const word = randomUUID();
    proof = { word, heard: () => heard.resolve('heard') };
    let isSaid = false;
    const failed = options.speak('select pg_catalog.pg_notify($1, $2)', [CHANNEL, `proof ${word}`]).then(
      () => {
        isSaid = true;
        return heard.promise;
      },
      () => 'unsaid' as const,
    );
    const late = new AbortController();
    const silence = wait(ANSWER_MS, 'silence', { signal: AbortSignal.any([stop, late.signal]) }).catch(() => 'stopped');
    const outcome = await Promise.race([heard.promise, failed, silence]);
    late.abort();
    if (outcome === 'heard' || outcome === 'stopped') return;
    await requirePrimary(client); // does the session itself still answer?
    if (isSaid) throw new NotListening('deaf');
  }

  async function run(): Promise<void> {
    for (let failures = 0; !closing.signal.aborted; failures++) {
      const startedAt = Date.now();
      try {
        await listenOnce();
      } catch (error) {
        if (!closing.signal.aborted) become(false, error instanceof NotListening ? error.problem : 'unreachable');
      }
      if (Date.now() - startedAt > 2 * HEARTBEAT_MS) failures = 0;
      const delay = RECONNECT_MS[Math.min(failures, RECONNECT_MS.length - 1)]! * (0.5 + Math.random() / 2);
      await wait(delay, undefined, { signal: closing.signal }).catch(() => {});
    }
  }

  const running = run();
  return {
    subscribe(wakeNumber, onWake) {
      const callbacks = subscribers.get(wakeNumber) ?? new Set();
      subscribers.set(wakeNumber, callbacks.add(onWake));
      return () => {
        callbacks.delete(onWake);
        if (callbacks.size === 0 && subscribers.get(wakeNumber) === callbacks) subscribers.delete(wakeNumber);
      };
    },
    subscribeStreams(onStream) {
      streamSubscribers.add(onStream);
      return () => streamSubscribers.delete(onStream);
    },
    isListening: () => isListening,
    problem: () => problem,
    async close() {
      closing.abort();
      await running;
      become(false, null);
    },
  };
}

async function requirePrimary(client: pg.Client): Promise<void> {
  const { rows } = await client.query('select pg_catalog.pg_is_in_recovery() as "isStandby"');
  if (rows[0].isStandby) throw new NotListening('standby');
}

/** An unreachable server would let end() wait for ever, and keep the socket. */
async function sayGoodbye(client: pg.Client): Promise<void> {
  const ended = client.end().catch(() => {});
  const timer = new AbortController();
  await Promise.race([ended, wait(GOODBYE_MS, undefined, { signal: timer.signal }).catch(() => {})]);
  timer.abort();
  (client as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy();
}
