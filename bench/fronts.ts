// What a team would write around a queue library: the same request, checked by the same kind of schema, stored as a
// job. Run as a process of its own with the database's address; tells its port on stdout.
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import { Logger, makeWorkerUtils } from 'graphile-worker';
import Koa from 'koa';
import pg from 'pg';
import { PgBoss } from 'pg-boss';
import { z } from 'zod';

/** As many as our pod has. */
const POOL_SIZE = 16;

const url = process.argv[2]!;

const Send = z.strictObject({
  agent_id: z.uuid(),
  recipient_agent_id: z.uuid(),
  group_id: z.uuid(),
  body: z.string().min(1).max(20_000),
  idempotency_key: z.string().regex(/^[\x20-\x7e]{1,128}$/),
});

const pool = new pg.Pool({ connectionString: url, max: POOL_SIZE });
const worker = await makeWorkerUtils({ pgPool: pool, logger: new Logger(() => () => {}) });
await worker.migrate();
const boss = new PgBoss({ connectionString: url, max: POOL_SIZE, supervise: false, schedule: false });
boss.on('error', () => {});
await boss.start();
await boss.createQueue('mail');

const stores: Record<string, (send: z.output<typeof Send>) => Promise<string | null>> = {
  '/pg-boss': (send) => boss.send('mail', send),
  '/graphile-worker': async (send) => (await worker.addJob('mail', send)).id,
};

const app = new Koa();
app.silent = true;
app.use(async (ctx) => {
  const store = stores[ctx.path];
  if (!store) return;
  const parsed = Send.safeParse(await json(ctx.req));
  if (!parsed.success) {
    ctx.status = 400;
    ctx.body = { error: 'invalid_request' };
    return;
  }
  const { body: _, ...send } = parsed.data;
  ctx.status = 201;
  ctx.body = { id: await store(parsed.data), ...send, state: 'queued', created_at: new Date().toISOString() };
});
const server = app.listen(0, '127.0.0.1', () => {
  process.stdout.write(
    `${JSON.stringify({ event: 'ready', url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` })}\n`,
  );
});
