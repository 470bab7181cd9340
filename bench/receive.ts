// Reading mail and acknowledging it in pages, next to fetching and completing jobs in pages.
import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { PgBoss } from 'pg-boss';
import { readInbox } from '../src/db/functions.ts';
import { createPool } from '../src/db/pool.ts';
import { createReceiptLane } from '../src/db/receipt-lane.ts';
import { drive, type Measurement } from './rounds.ts';
import { fillInboxes, type Sender } from './tenants.ts';

const CLIENTS = 8;
const PAGE = 20;
const PAGES_PER_INBOX = 2;
const JOBS = 30_000;

export interface PageReader {
  /** Pages for the next slice, made before its time runs. */
  fill(): Promise<void>;
  /** Messages read and settled per second. */
  measure(seconds: number): Promise<Measurement>;
  end(): Promise<void>;
}

/** As a pod does it: pages by their readers, receipts of all of them through the lane. */
export function createInboxReader(url: string, agents: Sender[]): PageReader {
  const pool = createPool({ url, role: 'posthorn_app', max: CLIENTS });
  const lane = createReceiptLane(pool);
  let pages: Sender[] = [];
  return {
    async fill() {
      await fillInboxes(url, PAGE * PAGES_PER_INBOX);
      pages = Array.from({ length: PAGES_PER_INBOX }, () => agents).flat();
    },
    async measure(seconds) {
      let settled = 0;
      const run = await drive(CLIENTS, seconds, async () => {
        const agent = pages.pop();
        if (!agent) throw new Error('the slice read all mail; fill more');
        const { credentialHash: credential, agentId } = agent;
        const rows = await readInbox(pool, { credential, agentId, after: 0, limit: PAGE });
        const messageIds = rows.map(({ id }) => id);
        await lane.advance({ credential, agentId, level: 'delivered', messageIds });
        const receipts = await lane.advance({ credential, agentId, level: 'acknowledged', messageIds });
        settled += receipts.filter(({ state }) => state === 'acknowledged').length;
      });
      if (settled !== run.calls * PAGE) throw new Error(`${settled} of ${run.calls * PAGE} messages were acknowledged`);
      return { figure: settled / run.seconds };
    },
    end: () => pool.end(),
  };
}

export async function createJobReader(url: string): Promise<PageReader> {
  const boss = new PgBoss({ connectionString: url, max: CLIENTS, supervise: false, schedule: false });
  boss.on('error', () => {});
  await boss.start();
  const queue = 'mail';
  await boss.createQueue(queue);
  return {
    async fill() {
      await boss.deleteAllJobs(queue);
      const body = randomUUID().repeat(30).slice(0, 1024);
      const jobs = Array.from({ length: 1000 }, () => ({ data: { body } }));
      for (let inserted = 0; inserted < JOBS; inserted += jobs.length) await boss.insert(queue, jobs);
      await vacuum(url);
    },
    async measure(seconds) {
      let settled = 0;
      const run = await drive(CLIENTS, seconds, async () => {
        const jobs = await boss.fetch(queue, { batchSize: PAGE });
        if (jobs.length < PAGE) throw new Error('the slice fetched all jobs; insert more');
        await boss.complete(
          queue,
          jobs.map(({ id }) => id),
        );
        settled += jobs.length;
      });
      return { figure: settled / run.seconds };
    },
    end: () => boss.stop({ graceful: false }),
  };
}

/** What a fill leaves behind is not what a slice shall pay for. */
async function vacuum(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query('vacuum (analyze)');
  await client.end();
}
