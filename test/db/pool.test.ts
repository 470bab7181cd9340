import type { AddressInfo } from 'node:net';
import net from 'node:net';
import { expect, test } from 'vitest';
import { createPool, isConnectionError, withClient } from '../../src/db/pool.ts';
import { createTestDatabase } from '../helpers/database.ts';

const database = await createTestDatabase();

test('every statement runs as the role, and reset role leads back to it', async () => {
  const { rows } = await database.as('posthorn_app').query('select current_user as "user"');
  expect(rows).toEqual([{ user: 'posthorn_app' }]);
  await withClient(database.as('posthorn_app'), async (client) => {
    await client.query('reset role');
    expect((await client.query('select current_user as "user"')).rows).toEqual([{ user: 'posthorn_app' }]);
  });
});

test('settings in the URL do not take the role away', async () => {
  const url = `${database.url}?options=-c%20work_mem%3D1MB`;
  const pool = createPool({ url, role: 'posthorn_app', max: 1 });
  const { rows } = await pool.query(`select current_user as "user", current_setting('work_mem') as memory`);
  expect(rows).toEqual([{ user: 'posthorn_app', memory: '1MB' }]);
  await pool.end();
});

test('a connection that cannot have the role runs nothing', async () => {
  const pool = createPool({ url: database.url, role: 'posthorn_nobody', max: 1 });
  await expect(pool.query('select 1')).rejects.toMatchObject({ code: '22023' });
  await pool.end();
});

test('a login as the role itself sends no settings, which a transaction pooler would refuse', async () => {
  const packets: Buffer[] = [];
  const server = net.createServer((socket) =>
    socket.once('data', (data) => {
      packets.push(data);
      socket.destroy();
    }),
  );
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
  const { port } = server.address() as AddressInfo;
  const pool = createPool({ url: `postgres://posthorn_app@127.0.0.1:${port}/postgres`, role: 'posthorn_app', max: 1 });
  await expect(pool.query('select 1')).rejects.toSatisfy(isConnectionError);
  const sent = packets[0]!.toString('latin1').split('\0');
  expect(sent).toContain('posthorn_app');
  expect(sent).not.toContain('options');
  expect(sent).not.toContain('statement_timeout');
  await pool.end();
  server.close();
});

test('a statement that the server refuses leaves the connection in the pool', async () => {
  const pool = createPool({ url: database.url, role: 'posthorn_app', max: 1 });
  const pid = async () => (await pool.query('select pg_backend_pid() as pid')).rows[0].pid;
  const before = await pid();
  const refusal = await pool.query('select 1 / 0').catch((error: unknown) => error);
  expect(refusal).toMatchObject({ code: '22012' });
  expect(isConnectionError(refusal)).toBe(false);
  expect(await pid()).toBe(before);
  await pool.end();
});

test('a query without an answer in time costs its connection', async () => {
  const pool = createPool({ url: database.url, role: 'posthorn_app', max: 1, queryTimeoutMs: 100 });
  const { rows } = await pool.query('select pg_backend_pid() as pid');
  const error = await pool.query('select pg_sleep(5)').catch((error: unknown) => error);
  expect(isConnectionError(error)).toBe(true);
  const next = await pool.query('select pg_backend_pid() as pid');
  expect(next.rows[0].pid).not.toBe(rows[0].pid);
  expect(pool.totalCount).toBe(1);
  await pool.end();
  await database.admin.query('select pg_terminate_backend($1)', [rows[0].pid]);
});

test('a borrowed connection whose query timed out is not lent again', async () => {
  const pool = createPool({ url: database.url, role: 'posthorn_app', max: 1, queryTimeoutMs: 100 });
  const slow = withClient(pool, async (client) => {
    const { rows } = await client.query('select pg_backend_pid() as pid');
    await client
      .query('select pg_sleep(5)')
      .catch((error) => Promise.reject(Object.assign(error, { pid: rows[0].pid })));
  });
  const error = await slow.catch((error: { pid: number }) => error);
  const next = await pool.query('select pg_backend_pid() as pid');
  expect(next.rows[0].pid).not.toBe(error!.pid);
  await pool.end();
  await database.admin.query('select pg_terminate_backend($1)', [error!.pid]);
});

test('connections may die, idle or lent, and the pool goes on', async () => {
  const pool = createPool({ url: database.url, role: 'posthorn_app', max: 2 });
  const kill = (pid: number) => database.admin.query('select pg_terminate_backend($1)', [pid]);

  const idle = await pool.query('select pg_backend_pid() as pid');
  const removed = new Promise((done) => pool.once('remove', done));
  await kill(idle.rows[0].pid);
  await removed;
  expect(pool.totalCount).toBe(0);

  const client = await pool.connect();
  const lent = await client.query('select pg_backend_pid() as pid');
  const ended = new Promise((done) => client.once('end', done));
  await kill(lent.rows[0].pid);
  await ended;
  const error = await client.query('select 1').catch((error: unknown) => error);
  expect(isConnectionError(error)).toBe(true);
  client.release(error as Error);

  expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
  await pool.end();
});

test('a statement cut off by the server counts as unreachable', async () => {
  const pool = createPool({ url: database.url, role: 'posthorn_app', max: 1 });
  const pid = (await pool.query('select pg_backend_pid() as pid')).rows[0].pid;
  const cut = pool.query('select pg_sleep(30)').catch((error: unknown) => error);
  await waitUntilActive(pid);
  await database.admin.query('select pg_terminate_backend($1)', [pid]);
  expect(isConnectionError(await cut)).toBe(true);
  await pool.end();
});

test('an address where nobody listens counts as unreachable', async () => {
  const server = net.createServer();
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
  const { port } = server.address() as AddressInfo;
  await new Promise((closed) => server.close(closed));
  const pool = createPool({ url: `postgres://posthorn_app@127.0.0.1:${port}/postgres`, role: 'posthorn_app', max: 1 });
  await expect(pool.query('select 1')).rejects.toSatisfy(isConnectionError);
  await pool.end();
});

test('errors of our own are not connection errors', () => {
  expect(isConnectionError(new TypeError('x is not a function'))).toBe(false);
  expect(isConnectionError('Connection terminated')).toBe(false);
});

test('values arrive as numbers, dates and buffers', async () => {
  const { rows } = await database.admin.query(
    `select 9007199254740991::int8 as big, array[1, null, 3]::int8[] as bigs, '\\x00ff'::bytea as bytes,
       '2026-11-30 12:00:00.123+00'::timestamptz as at, array['a', null]::text[] as texts`,
  );
  expect(rows).toEqual([
    {
      big: Number.MAX_SAFE_INTEGER,
      bigs: [1, null, 3],
      bytes: Buffer.from([0, 255]),
      at: new Date('2026-11-30T12:00:00.123Z'),
      texts: ['a', null],
    },
  ]);
});

test('what fits into no number or date is an error, not a wrong value', async () => {
  await expect(database.admin.query('select 9007199254740993::int8')).rejects.toThrow('does not fit');
  await expect(database.admin.query(`select 'infinity'::timestamptz`)).rejects.toThrow('is no date');
  expect((await database.admin.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
});

async function waitUntilActive(pid: number): Promise<void> {
  for (;;) {
    const { rows } = await database.admin.query(`select wait_event from pg_catalog.pg_stat_activity where pid = $1`, [
      pid,
    ]);
    if (rows[0].wait_event === 'PgSleep') return;
  }
}
