import { setTimeout as wait } from 'node:timers/promises';
import pg from 'pg';
import { metrics } from '../metrics.ts';

const CHANNEL = 'posthorn';
const HEARTBEAT_MS = 5_000;
const ANSWER_MS = 5_000;
const RECONNECT_MS = [100, 250, 500, 1_000, 2_000, 5_000];

export interface Listener {
  /** Calls back whenever this mailbox may have changed; returns how to stop. */
  subscribe(wakeNumber: number, onWake: () => void): () => void;
  /** Whether the subscription was proved to live within the last heartbeat. */
  isListening(): boolean;
  close(): Promise<void>;
}

/**
 * The one LISTEN connection of a pod. PostgreSQL signals every listening backend at every notifying commit (500
 * listeners slowed senders a hundredfold), so the pod listens once and fans out in process. A notification only says
 * "look": after each reconnect everybody is told to look, so that none is lost, and waiting readers look by themselves
 * every few seconds besides.
 *
 * @param url a direct connection; behind a transaction pooler nothing would ever arrive
 * @param onChange told when the subscription is gained or lost, for logs and health
 */
export function createListener(url: string, onChange: (isListening: boolean) => void): Listener {
  const subscribers = new Map<number, Set<() => void>>();
  const closing = new AbortController();
  let isListening = false;

  function setListening(value: boolean): void {
    if (isListening === value) return;
    isListening = value;
    onChange(value);
  }

  function wake(wakeNumber: number): void {
    for (const onWake of subscribers.get(wakeNumber) ?? []) onWake();
  }

  function wakeAll(): void {
    for (const wakeNumber of subscribers.keys()) wake(wakeNumber);
  }

  function onNotification(payload: string | undefined): void {
    metrics.wakes.inc();
    if (!payload || payload === '*') wakeAll();
    else for (const wakeNumber of payload.split(',')) wake(Number(wakeNumber));
  }

  /** Resolves when the connection is lost or the listener is closed. */
  async function listenOnce(): Promise<void> {
    const client = new pg.Client({
      connectionString: url,
      application_name: 'posthorn listener',
      connectionTimeoutMillis: ANSWER_MS,
      query_timeout: ANSWER_MS,
      keepAlive: true,
    });
    const lost = new AbortController();
    client.on('error', () => lost.abort());
    client.on('end', () => lost.abort());
    client.on('notification', ({ payload }) => onNotification(payload));
    try {
      await client.connect();
      await client.query(`listen ${CHANNEL}`);
      setListening(true);
      wakeAll(); // what was said while nobody listened
      const stop = AbortSignal.any([lost.signal, closing.signal]);
      while (!stop.aborted) {
        await wait(HEARTBEAT_MS, undefined, { signal: stop }).catch(() => {});
        if (!stop.aborted) await proveSubscription(client);
      }
    } finally {
      setListening(false);
      // an unreachable server would let end() wait for ever
      void client.end().catch(() => {});
    }
  }

  async function run(): Promise<void> {
    for (let failures = 0; !closing.signal.aborted; failures++) {
      const startedAt = Date.now();
      await listenOnce().catch(() => {});
      if (Date.now() - startedAt > HEARTBEAT_MS) failures = 0;
      const delay = RECONNECT_MS[Math.min(failures, RECONNECT_MS.length - 1)];
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
    isListening: () => isListening,
    async close() {
      closing.abort();
      await running;
    },
  };
}

/** A socket can answer while its session no longer listens (a pooler, a reset), so the session is asked itself. */
async function proveSubscription(client: pg.Client): Promise<void> {
  const { rowCount } = await client.query(
    `select from pg_listening_channels() c where c = '${CHANNEL}' and not pg_is_in_recovery()`,
  );
  if (rowCount === 0) throw new Error('The session does not listen any more, or not on the primary.');
}
