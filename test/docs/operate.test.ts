import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { makeId } from '../../src/crypto/ids.ts';
import { claimDeliveries, recordAttempts, requeueJobs, setWebhook, testWebhook } from '../../src/db/functions.ts';
import { withClient } from '../../src/db/pool.ts';
import { packageRoot } from '../../src/package-root.ts';
import { type Agent, createWorld, type Owner, send, type World } from '../helpers/world.ts';

// The recipes of docs/operate.md, as the roles that they are for, on a database where each has something to show.

interface Recipe {
  role: string;
  sql: string;
}

const page = await readFile(join(packageRoot, 'docs', 'operate.md'), 'utf8');
const recipes: Recipe[] = [...page.matchAll(/^```sql (\w+)\n(.*?)^```/gms)].map(([, role, sql]) => ({
  role: role!,
  sql: sql!,
}));

/** What nobody but the owner and the agents may read. */
const SECRETS = ['secret owner', 'secret agent', 'secret purpose', 'secret body', 'secret.example'];

let world: World;
let owner: Owner;
let delivery: string;

beforeAll(async () => {
  world = await createWorld();
  owner = await world.makeOwner('secret owner');
  const [anna, bert, carl] = await Promise.all([1, 2, 3].map(() => owner.agent('secret agent')));
  await owner.group([anna!, bert!]);
  await send(world, { from: anna!, to: bert!, body: 'secret body' });
  await world.clock.advance('25 hours'); // what is there so far is overdue
  await send(world, { from: bert!, to: anna!, body: 'secret body' });
  await send(world, { from: anna!, to: carl!, body: 'secret body', purpose: 'secret purpose' });
  const jobs = world.database.as('posthorn_jobs');
  await jobs.query(`select posthorn_api.beat_worker('worker')`);
  await jobs.query(`select graphile_worker.add_job('messages__expire')`);
  delivery = await failDelivery(carl!);
});

/** Gives an agent a webhook, and that a delivery that failed. */
async function failDelivery({ credential, id: agentId }: Agent): Promise<string> {
  const { app, database } = world;
  const [sealedUrl, sealedSecret, events] = [Buffer.alloc(40), Buffer.alloc(40), ['call.updated']];
  await setWebhook(app, { credential, agentId, urlHost: 'secret.example', sealedUrl, sealedSecret, events });
  const { webhookId, id } = await testWebhook(app, { credential, agentId });
  const leaseIds = [makeId()];
  const jobs = database.as('posthorn_jobs');
  await claimDeliveries(jobs, { webhookIds: [webhookId], leaseIds });
  await recordAttempts(jobs, {
    webhookIds: [webhookId],
    leaseIds,
    deliveryIds: [id],
    httpStatuses: [null],
    problems: ['dns'],
    milliseconds: [1],
    retryAfterSeconds: [null],
    goOn: [true],
  });
  await database.admin.query(`delete from graphile_worker._private_jobs where key like 'webhook:%'`);
  return id;
}

test('there are recipes of both kinds', () => {
  expect(new Set(recipes.map(({ role }) => role))).toEqual(new Set(['posthorn_ops', 'posthorn_admin']));
});

test.each(recipes)('$sql', async ({ role, sql }) => {
  const holder = await world.database.admin.connect();
  // somebody's open snapshot
  await holder.query('begin isolation level repeatable read; select 1');
  try {
    const { rows } = await inRolledBackTransaction(
      role,
      sql.replaceAll('OWNER-ID', owner.id).replaceAll('DELIVERY-ID', delivery),
    );
    if (sql.includes('ops.invariants')) expect(rows).toEqual([]);
    else expect(rows.length).toBeGreaterThan(0);
    expect(JSON.stringify(rows)).not.toMatch(new RegExp(SECRETS.join('|')));
  } finally {
    await holder.query('rollback');
    holder.release();
  }
});

test('no view shows what somebody wrote, or a credential', async () => {
  const { rows: views } = await world.database.admin.query(
    `select viewname as name from pg_catalog.pg_views where schemaname = 'ops' order by 1`,
  );
  expect(views.length).toBeGreaterThan(10);
  for (const { name } of views) {
    const { rows } = await world.database.as('posthorn_ops').query(`select * from ops.${name}`);
    expect(JSON.stringify(rows), name).not.toMatch(new RegExp(SECRETS.join('|')));
  }
});

test('every view is on the page', async () => {
  const { rows: views } = await world.database.admin.query(
    `select viewname as name from pg_catalog.pg_views where schemaname = 'ops'`,
  );
  expect(views.filter(({ name }) => !page.includes(`ops.${name}`))).toEqual([]);
});

test('what is overdue and what waits is counted', async () => {
  const ops = world.database.as('posthorn_ops');
  const behind = await ops.query(
    `select kind, due, behind >= '1 hour' as late from ops.deadlines_behind where due > 0`,
  );
  expect(behind.rows).toEqual([{ kind: 'message past its deadline', due: 1, late: true }]);
  const proposals = await ops.query('select owner_id, pending, held_messages from ops.proposals');
  expect(proposals.rows).toEqual([{ owner_id: owner.id, pending: 1, held_messages: 1 }]);
  const jobs = await ops.query('select task, waiting, running, failed from ops.jobs');
  expect(jobs.rows).toEqual([{ task: 'messages__expire', waiting: 1, running: 0, failed: 0 }]);
});

test('jobs that failed for good run again when the person says so, and no others are touched', async () => {
  const jobs = world.database.as('posthorn_jobs');
  const add = async (task: string) => (await jobs.query('select (graphile_worker.add_job($1)).id', [task])).rows[0].id;
  const failed = await add('proposals__expire');
  const waiting = await add('accounts__delete');
  await jobs.query('select graphile_worker.permanently_fail_jobs(array[$1::bigint])', [failed]);
  await jobs.query(`update graphile_worker._private_jobs set attempts = 3 where id = $1`, [waiting]);
  const ops = world.database.as('posthorn_ops');
  const failures = () => ops.query('select task from ops.jobs where failed > 0').then(({ rows }) => rows);
  expect(await failures()).toEqual([{ task: 'proposals__expire' }]);

  const admin = world.database.as('posthorn_admin');
  expect(await requeueJobs(admin, { task: 'outdated__delete' })).toBe(0);
  expect(await requeueJobs(admin, {})).toBe(1);
  expect(await failures()).toEqual([]);
  const { rows } = await jobs.query('select attempts from graphile_worker.jobs where id = $1', [waiting]);
  expect(rows).toEqual([{ attempts: 3 }]);
});

async function inRolledBackTransaction(role: string, sql: string): Promise<{ rows: unknown[] }> {
  return await withClient(world.database.as(role), async (client) => {
    await client.query('begin');
    try {
      return await client.query(sql);
    } finally {
      await client.query('rollback');
    }
  });
}
