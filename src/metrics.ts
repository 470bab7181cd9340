import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';

/**
 * All that this process counts, as Prometheus scrapes it. Labels have few values, known beforehand: no owner, agent, id
 * or text is in any, so that a page tells nothing about anybody and stays small. docs/metrics.md is generated from here.
 */
export const registry = new Registry();
const registers = [registry];

collectDefaultMetrics({ register: registry });

/** From a fast commit to the database's statement timeout, in seconds. */
const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10];

export const metrics = {
  sends: new Counter({
    name: 'posthorn_sends_total',
    help: 'Sends of messages and posts, by what became of them: queued, held, replayed or the code of the refusal.',
    labelNames: ['outcome'],
    registers,
  }),
  sendSeconds: new Histogram({
    name: 'posthorn_send_seconds',
    help: 'How long a send took, from its arguments to its outcome.',
    buckets: SECONDS,
    registers,
  }),
  laneWaiting: new Gauge({
    name: 'posthorn_lane_waiting',
    help: 'Calls that wait in a lane for the next batch.',
    labelNames: ['lane'],
    registers,
  }),
  laneBatchSize: new Histogram({
    name: 'posthorn_lane_batch_size',
    help: 'Calls that a lane made as one, with one commit.',
    labelNames: ['lane'],
    buckets: [1, 2, 5, 10, 20, 50, 100],
    registers,
  }),
  laneBatchSeconds: new Histogram({
    name: 'posthorn_lane_batch_seconds',
    help: 'How long the database took for a batch of a lane, with what had to be repeated.',
    labelNames: ['lane'],
    buckets: SECONDS,
    registers,
  }),
  wakes: new Counter({
    name: 'posthorn_wakes_total',
    help: 'Notifications that this pod received from the database.',
    registers,
  }),
  listening: new Gauge({
    name: 'posthorn_listener_listening',
    help: '1 while this pod hears notifications; otherwise its readers look every few seconds.',
    registers,
  }),
  listenerConnects: new Counter({
    name: 'posthorn_listener_connects_total',
    help: 'How often this pod began to listen: once at its start, and after each loss.',
    registers,
  }),
  streams: new Gauge({
    name: 'posthorn_streams',
    help: 'Event streams that are open.',
    registers,
  }),
  streamsEnded: new Counter({
    name: 'posthorn_streams_ended_total',
    help: 'Event streams that ended, by the reason: gone is a reader that left, the others are those of stream.closing.',
    labelNames: ['reason'],
    registers,
  }),
  webhookAttempts: new Counter({
    name: 'posthorn_webhook_attempts_total',
    help: 'Attempts to deliver to a webhook, by outcome: succeeded, the class of the status such as 4xx, or the failure.',
    labelNames: ['outcome'],
    registers,
  }),
  webhookSeconds: new Histogram({
    name: 'posthorn_webhook_attempt_seconds',
    help: 'How long an attempt to deliver to a webhook took.',
    buckets: SECONDS,
    registers,
  }),
  pushes: new Counter({
    name: 'posthorn_pushes_total',
    help: "Attempts to notify an owner's browser, by outcome: succeeded, the class of the status such as 4xx, or the failure.",
    labelNames: ['outcome'],
    registers,
  }),
  jobs: new Counter({
    name: 'posthorn_jobs_total',
    help: 'Jobs that this worker ran, by task and outcome: completed or failed.',
    labelNames: ['task', 'outcome'],
    registers,
  }),
  jobSeconds: new Histogram({
    name: 'posthorn_job_seconds',
    help: 'How long a job took.',
    labelNames: ['task'],
    buckets: [0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60],
    registers,
  }),
};

/** What a pool of connections tells of itself. */
interface Pool {
  totalCount: number;
  idleCount: number;
  waitingCount: number;
  ended: boolean;
}

const pools = new Map<Pool, string>();

/** Shows a pool of database connections under a name until it has ended. */
export function showPool(name: string, pool: Pool): void {
  pools.set(pool, name);
}

/** Sums over the pools of one name, since pods of one process (in tests) have one each. */
function collectPools(gauge: Gauge<'pool'>, count: (pool: Pool) => number): void {
  gauge.reset();
  for (const [pool, name] of pools) {
    if (pool.ended) pools.delete(pool);
    else gauge.inc({ pool: name }, count(pool));
  }
}

new Gauge({
  name: 'posthorn_pool_connections',
  help: 'Connections to the database that a pool has open.',
  labelNames: ['pool'],
  registers,
  collect() {
    collectPools(this, (pool) => pool.totalCount);
  },
});

new Gauge({
  name: 'posthorn_pool_idle',
  help: 'Connections of a pool that nobody uses at the moment.',
  labelNames: ['pool'],
  registers,
  collect() {
    collectPools(this, (pool) => pool.idleCount);
  },
});

new Gauge({
  name: 'posthorn_pool_waiting',
  help: 'Calls that wait for a connection of a pool.',
  labelNames: ['pool'],
  registers,
  collect() {
    collectPools(this, (pool) => pool.waitingCount);
  },
});
