import { EventEmitter } from 'node:events';
import { readdir, readFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import {
  Logger as JobLogger,
  type LogLevel,
  type ParsedCronItem,
  parseCrontab,
  type Runner,
  run,
  type Task,
  type WorkerEvents,
} from 'graphile-worker';
import type pg from 'pg';
import type { Logger } from 'pino';
import type { KeyRing } from './crypto/key-ring.ts';
import { createUnwrapper } from './crypto/owner-keys.ts';
import { loadServerSecrets } from './crypto/server-secrets.ts';
import { beatWorker, endWorker } from './db/functions.ts';
import { createPool } from './db/pool.ts';
import { fenceIfRestored } from './db/restored-server.ts';
import { metrics, showPool } from './metrics.ts';
import type { AllowList } from './net/allow-list.ts';
import { createEgress } from './net/egress.ts';
import { packageRoot } from './package-root.ts';
import { contactOf } from './pushes/push-request.ts';
import { createPushSender } from './pushes/send-pushes.ts';
import { createDrain, DELIVERY_LANES } from './webhooks/drain.ts';

/** Jobs that run at once in one worker. */
const CONCURRENCY = 4;

/** One connection for each job, one to listen, one for the schedule and one for heartbeats. */
const POOL_SIZE = CONCURRENCY + 3;

/**
 * Endpoints that one worker delivers to at once. Each may keep us waiting for ten seconds, and costs nothing meanwhile
 * but a socket: enough of them that a few hundred dead ones, found out together, do not delay the living.
 */
const DELIVERY_CONCURRENCY = 500;

/** One connection to listen, one for the jobs, one to end them, one for pushes, and the lanes of claims and records. */
const DELIVERY_POOL_SIZE = 4 + 2 * DELIVERY_LANES;

/** Jobs are taken and ended many at a time: one query for each would cost more than a delivery does. */
const DELIVERY_BATCHES = { localQueue: { size: DELIVERY_CONCURRENCY }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

/** How often a worker says that it lives and looks for dead ones, in milliseconds; three missed beats are a death. */
const BEAT_MS = 10_000;

/** How long after a failure (the database restarts, say) the worker starts again, in milliseconds. */
const RESTART_MS = 2_000;

/** Beside this file's folder, both as jobs/ and, published, as dist/jobs/. */
const TASK_FOLDER = join(import.meta.dirname, '..', 'jobs');

/** Tasks that are made for what they send with. */
const SENDING_TASKS = ['webhook__deliver', 'push__send'] as const;

export interface Worker {
  /** Lets the jobs under way finish, then closes everything. */
  close(): Promise<void>;
}

/** What opens the secrets of webhooks and browsers, and where requests may go. */
export interface DeliveryOptions {
  keyRing: KeyRing;
  readKeyRing: () => Promise<KeyRing>;
  allow: AllowList;
  /** Where people reach this server; push services are told. */
  publicUrl: string | undefined;
}

/**
 * Runs the tasks of jobs/ and its schedule, as role posthorn_jobs. Any number of workers may run; a killed one loses
 * nothing, since every task finds what is due by itself, and the jobs that it held are freed within a minute.
 *
 * @param options.databaseUrl a direct connection: the worker listens for jobs
 * @param options.openDelivery asked at the start, and again with each heartbeat while it answers undefined: until then
 *   this worker leaves webhooks and pushes to others
 * @throws Error if the database cannot be reached now; later failures are logged and tried again
 */
export async function startWorker(options: {
  databaseUrl: string;
  openDelivery: () => Promise<DeliveryOptions | undefined>;
  log: Logger;
}): Promise<Worker> {
  const { log } = options;
  const openPool = (max: number) => createPool({ url: options.databaseUrl, role: 'posthorn_jobs', max });
  const [taskList, crontab] = await Promise.all([loadTasks(), readFile(join(packageRoot, 'jobs', 'crontab'), 'utf8')]);
  const closing = new AbortController();
  const pool = openPool(POOL_SIZE);
  showPool('worker', pool);
  const parsedCronItems = parseCrontab(crontab);
  const crews = [openCrew({ pool, taskList, parsedCronItems, concurrency: CONCURRENCY }, log, closing.signal)];
  let endDelivery: (() => Promise<void>) | undefined;
  let isBeating = false;

  async function startDelivery(): Promise<void> {
    const delivery = await options.openDelivery();
    if (!delivery || closing.signal.aborted) return;
    const deliveryPool = openPool(DELIVERY_POOL_SIZE);
    showPool('deliveries', deliveryPool);
    const egress = createEgress({ allow: delivery.allow });
    const end = async () => {
      await egress.close();
      await deliveryPool.end();
    };
    const unwrap = createUnwrapper(delivery.keyRing, delivery.readKeyRing);
    const drain = createDrain({ pool: deliveryPool, egress, unwrap, closing: closing.signal });
    const sendPushes = createPushSender({
      pool: deliveryPool,
      egress,
      unwrap,
      loadPushKeys: async () => (await loadServerSecrets(deliveryPool, delivery.readKeyRing)).pushKeys,
      contact: contactOf(delivery.publicUrl),
      log,
    });
    const crew = openCrew(
      {
        pool: deliveryPool,
        taskList: {
          webhook__deliver: await loadSendingTask('webhook__deliver', drain),
          push__send: await loadSendingTask('push__send', sendPushes),
        },
        parsedCronItems: [],
        concurrency: DELIVERY_CONCURRENCY,
        preset: { worker: DELIVERY_BATCHES },
      },
      log,
      closing.signal,
    );
    try {
      await crew.start();
    } catch (error) {
      await end();
      throw error;
    }
    crews.push(crew);
    endDelivery = end;
  }

  async function beat(): Promise<void> {
    for (const { workerId } of crews) {
      const dead = await beatWorker(pool, { workerId: workerId() });
      if (dead > 0) log.warn({ dead }, 'jobs of workers that had died were freed');
    }
  }

  async function beatOn(): Promise<void> {
    if (isBeating) return; // the database takes its time
    isBeating = true;
    try {
      await beat();
      if (!endDelivery) await startDelivery();
    } catch (err) {
      log.error({ err }, 'a heartbeat failed');
    } finally {
      isBeating = false;
    }
  }

  async function close(): Promise<void> {
    closing.abort();
    clearInterval(beating);
    await Promise.all(crews.map((crew) => crew.stop()));
    for (const { workerId } of crews) await endWorker(pool, { workerId: workerId() }).catch(() => {}); // or it falls silent
    await endDelivery?.();
    await pool.end();
  }

  let beating: NodeJS.Timeout | undefined;
  try {
    if (await fenceIfRestored(pool)) log.warn('this database was restored; all mail in it was fenced');
    await crews[0]!.start();
    await startDelivery();
    await beat();
  } catch (error) {
    await close();
    throw error;
  }
  beating = setInterval(() => void beatOn(), BEAT_MS);
  return { close };
}

interface CrewOptions {
  pool: pg.Pool;
  taskList: Record<string, Task>;
  parsedCronItems: ParsedCronItem[];
  concurrency: number;
  preset?: GraphileConfig.Preset;
}

interface Crew {
  /** @throws Error if the database cannot be reached now */
  start(): Promise<void>;
  /** By this it locks its jobs; a new one with each run. */
  workerId(): string;
  /** Resolves when the jobs under way are done. */
  stop(): Promise<void>;
}

/** A number of workers for some tasks, started again whenever they end by themselves. */
function openCrew({ pool, ...options }: CrewOptions, log: Logger, closing: AbortSignal): Crew {
  const events: WorkerEvents = new EventEmitter();
  countJobs(events);
  let workerId = '';
  let runner: Runner | undefined;
  let running: Promise<void> | undefined;
  events.on('pool:create', ({ workerPool }) => {
    workerId = workerPool.id;
  });
  const startRunner = () =>
    run({
      ...options,
      events,
      pgPool: pool,
      noHandleSignals: true,
      noPreparedStatements: true,
      logger: jobLogger(log),
    });

  async function keepRunning(first: Runner): Promise<void> {
    for (let next: Runner | undefined = first; next; next = await startAgain()) {
      runner = next;
      // closed while it was starting
      if (closing.aborted) await runner.stop();
      await runner.promise.catch((err) => log.error({ err }, 'the worker stopped'));
    }
  }

  /** @returns undefined when nobody wants it any more */
  async function startAgain(): Promise<Runner | undefined> {
    while (!closing.aborted) {
      await wait(RESTART_MS, undefined, { signal: closing }).catch(() => {});
      if (closing.aborted) return undefined;
      try {
        return await startRunner();
      } catch (err) {
        log.error({ err }, 'the worker could not start again');
      }
    }
    return undefined;
  }

  return {
    async start() {
      runner = await startRunner();
      running = keepRunning(runner);
    },
    workerId: () => workerId,
    async stop() {
      await runner?.stop().catch(() => {}); // it may have stopped by itself
      await running;
    },
  };
}

function countJobs(events: WorkerEvents): void {
  const timers = new Map<string, () => void>();
  events.on('job:start', ({ job }) => {
    timers.set(job.id, metrics.jobSeconds.startTimer({ task: job.task_identifier }));
  });
  events.on('job:complete', ({ job, error }) => {
    timers.get(job.id)?.();
    timers.delete(job.id);
    metrics.jobs.inc({ task: job.task_identifier, outcome: error ? 'failed' : 'completed' });
  });
}

/** Each file `noun__verb.ts` exports its task as default; but those that send, which are made for what they send with. */
async function loadTasks(): Promise<Record<string, Task>> {
  const files = (await readdir(TASK_FOLDER)).filter(
    (name) => /^[a-z_]+__[a-z_]+\.(ts|js)$/.test(name) && !SENDING_TASKS.some((task) => name.startsWith(task)),
  );
  const tasks = await Promise.all(
    files.map(async (name) => [name.slice(0, -3), (await import(join(TASK_FOLDER, name))).default as Task]),
  );
  return Object.fromEntries(tasks);
}

async function loadSendingTask(
  task: (typeof SENDING_TASKS)[number],
  send: (id: string) => Promise<void>,
): Promise<Task> {
  const { default: createTask } = await import(join(TASK_FOLDER, task + extname(import.meta.filename)));
  return createTask(send);
}

/** Each finished job is news to nobody; its failure is. Messages hold task names, ids and times. */
function jobLogger(log: Logger): JobLogger {
  const levels: Record<LogLevel, 'debug' | 'warn' | 'error'> = {
    debug: 'debug',
    info: 'debug',
    warning: 'warn',
    error: 'error',
  };
  return new JobLogger(({ taskIdentifier, jobId }) => (level, message, meta) => {
    const isFailure = meta?.error !== undefined;
    // it holds our pool to be too small for so many jobs at once, which wait for endpoints and not for connections
    const isAboutPool = meta?.max !== undefined && meta.concurrency !== undefined;
    log[isAboutPool ? 'debug' : levels[level]](
      { task: taskIdentifier, jobId, err: meta?.error },
      isFailure ? 'a job failed' : message,
    );
  });
}
