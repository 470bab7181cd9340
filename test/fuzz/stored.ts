import type { TestDatabase } from '../helpers/database.ts';

/** Leases, heartbeats, counts of attempts, and what a server makes for itself on first use: no act of a caller is in them. */
const PASSING = ['streams', 'presence', 'worker_heartbeats', 'attempts', 'server', 'server_secrets'];

/** When a connection was used last is written down now and then, whatever came of its calls. */
const ROW: Record<string, string> = { connections: `(to_jsonb(t) - 'last_used_at')` };

/** A digest of each table of the product. Two that are equal say that nothing was stored in between. */
export async function digestStored({ admin }: TestDatabase): Promise<Record<string, string>> {
  const { rows: tables } = await admin.query(
    `select relname as name from pg_catalog.pg_class where relnamespace = 'posthorn'::regnamespace and relkind = 'r' and relname <> all ($1) order by 1`,
    [PASSING],
  );
  const digests = tables.map(
    ({ name }) =>
      `select '${name}' as name, concat_ws(' ', count(*), sum(hashtextextended(${ROW[name] ?? 't'}::text, 0))) as digest from posthorn.${name} t`,
  );
  const { rows } = await admin.query(digests.join(' union all '));
  return Object.fromEntries(rows.map(({ name, digest }) => [name, digest]));
}

/** The tables that differ between two digests. */
export function changedTables(before: Record<string, string>, after: Record<string, string>): string[] {
  return Object.keys(after).filter((name) => before[name] !== after[name]);
}
