import { EventEmitter } from 'node:events';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import {
  Logger as JobLogger,
  type LogLevel,
  parseCrontab,
  type Runner,
  run,
  type Task,
  type WorkerEvents,
} from 'graphile-worker';
import type { Logger } from 'pino';
import { beatWorker, endWorker } from './db/functions.ts';
import { createPool } from './db/pool.ts';
import { fenceIfRestored } from './db/restored-server.ts';
import { metrics, showPool } from './metrics.ts';
import { packageRoot } from './package-root.ts';

/** Jobs that run at once in one worker. */
const CONCURRENCY = 4;

/** One connection for each job, one to listen, one for the schedule and one for heartbeats. */
const POOL_SIZE = CONCURRENCY + 3;

/** How often a worker says that it lives and looks for dead ones, in milliseconds; three missed beats are a death. */
const BEAT_MS = 10_000;

/** How long after a failure (the database restarts, say) the worker starts again, in milliseconds. */
const RESTART_MS = 2_000;

/** Beside this file's folder, both as jobs/ and, published, as dist/jobs/. */
const TASK_FOLDER = join(import.meta.dirname, '..', 'jobs');

export interface Worker {
  /** Lets the jobs under way finish, then closes everything. */
  close(): Promise<void>;
}

/**
 * Runs the tasks of jobs/ and its schedule, as role posthorn_jobs. Any number of workers may run; a killed one loses
 * nothing, since every task finds what is due by itself, and the jobs that it held are freed within a minute.
 *
 * @param options.databaseUrl a direct connection: the worker listens for jobs
 * @throws Error if the database cannot be reached now; later failures are logged and tried again
 */
export async function startWorker(options: { databaseUrl: string; log: Logger }): Promise<Worker> {
  const { log } = options;
  const [taskList, crontab] = await Promise.all([loadTasks(), readFile(join(packageRoot, 'jobs', 'crontab'), 'utf8')]);
  const pool = createPool({ url: options.databaseUrl, role: 'posthorn_jobs', max: POOL_SIZE });
  showPool('worker', pool);
  const events: WorkerEvents = new EventEmitter();
  countJobs(events);
  let workerId: string | undefined;
  // by this the jobs are locked; a new one with each run
  events.on('pool:create', ({ workerPool }) => {
    workerId = workerPool.id;
  });
  const start = () =>
    run({
      events,
      pgPool: pool,
      taskList,
      parsedCronItems: parseCrontab(crontab),
      concurrency: CONCURRENCY,
      noHandleSignals: true,
      noPreparedStatements: true,
      logger: jobLogger(log),
    });

  const closing = new AbortController();
  let runner: Runner;
  try {
    if (await fenceIfRestored(pool)) log.warn('this database was restored; all mail in it was fenced');
    runner = await start();
    await beat();
  } catch (error) {
    await pool.end();
    throw error;
  }

  async function keepRunning(): Promise<void> {
    for (let next: Runner | undefined = runner; next; next = await startAgain()) {
      runner = next;
      // closed while it was starting
      if (closing.signal.aborted) await runner.stop();
      await runner.promise.catch((err) => log.error({ err }, 'the worker stopped'));
    }
  }

  /** @returns undefined when nobody wants it any more */
  async function startAgain(): Promise<Runner | undefined> {
    while (!closing.signal.aborted) {
      await wait(RESTART_MS, undefined, { signal: closing.signal }).catch(() => {});
      if (closing.signal.aborted) return undefined;
      try {
        return await start();
      } catch (err) {
        log.error({ err }, 'the worker could not start again');
      }
    }
    return undefined;
  }

  async function beat(): Promise<void> {
    const dead = await beatWorker(pool, { workerId: workerId! });
    if (dead > 0) log.warn({ dead }, 'jobs of workers that had died were freed');
  }

  const beating = setInterval(() => void beat().catch((err) => log.error({ err }, 'a heartbeat failed')), BEAT_MS);
  const running = keepRunning();
  return {
    async close() {
      closing.abort();
      clearInterval(beating);
      await runner.stop().catch(() => {}); // it may have stopped by itself
      await running;
      await endWorker(pool, { workerId: workerId! }).catch(() => {}); // or it falls silent
      await pool.end();
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

/** Each file `noun__verb.ts` exports its task as default. */
async function loadTasks(): Promise<Record<string, Task>> {
  const files = (await readdir(TASK_FOLDER)).filter((name) => /^[a-z_]+__[a-z_]+\.(ts|js)$/.test(name));
  const tasks = await Promise.all(
    files.map(async (name) => [name.slice(0, -3), (await import(join(TASK_FOLDER, name))).default as Task]),
  );
  return Object.fromEntries(tasks);
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
    log[levels[level]]({ task: taskIdentifier, jobId, err: meta?.error }, isFailure ? 'a job failed' : message);
  });
}
