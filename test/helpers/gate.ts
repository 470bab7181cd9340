import pg from 'pg';
import { expect } from 'vitest';
import type { TestDatabase } from './database.ts';

/** Advisory locks of this class; nothing of the product takes any with two numbers. */
const GATE = 77;

export interface Gate {
  close(): Promise<void>;
  open(): Promise<void>;
  /** Resolves when calls of exactly these functions wait. */
  reached(functions: string[]): Promise<void>;
  /** Ends the sessions that wait: what they did never happened. */
  cut(): Promise<void>;
  /** Lets through what waits now, and nothing else. */
  letThrough(): Promise<void>;
  end(): Promise<void>;
}

/**
 * Holds up calls of these functions of posthorn_api where they delete from one of these tables: by a trigger that needs
 * a lock which the test holds. So a worker stops in the middle of a transaction, as if its machine did.
 */
export async function buildGate({ admin, url }: TestDatabase, functions: string[], tables: string[]): Promise<Gate> {
  await admin.query(`
    create function posthorn_test.pass_gate() returns trigger language plpgsql security definer as $$
    declare
      v_function text := (regexp_match(current_query(), 'posthorn_api\\.([a-z_]+)'))[1];
    begin
      if v_function = any (tg_argv) then
        perform pg_advisory_xact_lock_shared(${GATE}, hashtext(v_function));
      end if;
      return null;
    end $$`);
  const quoted = functions.map((name) => `'${name}'`).join(', ');
  for (const table of tables) {
    await admin.query(
      `create trigger pass_gate before delete on posthorn.${table} for each statement execute function posthorn_test.pass_gate(${quoted})`,
    );
  }
  const keeper = new pg.Client({ connectionString: url });
  await keeper.connect();
  const each = (act: string) =>
    keeper.query(`select ${act}(${GATE}, hashtext(f)) from unnest($1::text[]) f`, [functions]);
  const close = async () => void (await each('pg_advisory_lock'));
  const open = async () => void (await each('pg_advisory_unlock'));
  const waiting = async (): Promise<{ name: string; pid: number }[]> => {
    const { rows } = await admin.query(
      `select f as name, l.pid from pg_catalog.pg_locks l join unnest($1::text[]) f on hashtext(f) = l.objid::bigint::bit(32)::int
        where l.locktype = 'advisory' and l.classid = ${GATE} and not l.granted
          and l.database = (select oid from pg_catalog.pg_database where datname = current_database())`,
      [functions],
    );
    return rows;
  };
  const namesWaiting = async () => [...new Set((await waiting()).map(({ name }) => name))].sort();
  return {
    close,
    open,
    async reached(wanted) {
      await expect.poll(namesWaiting, { timeout: 25_000, interval: 20 }).toEqual([...wanted].sort());
    },
    async cut() {
      // with a time to wait, it answers when they are gone
      await admin.query('select pg_terminate_backend(p, 10000) from unnest($1::int[]) p', [
        (await waiting()).map(({ pid }) => pid),
      ]);
    },
    async letThrough() {
      const pids = (await waiting()).map(({ pid }) => pid);
      await open();
      const alive = async () =>
        (await admin.query('select from pg_catalog.pg_stat_activity where pid = any ($1)', [pids])).rowCount;
      await expect.poll(alive, { timeout: 10_000, interval: 20 }).toBe(0);
      await close();
    },
    end: () => keeper.end(),
  };
}
