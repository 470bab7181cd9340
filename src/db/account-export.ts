import { once } from 'node:events';
import type { Writable } from 'node:stream';
import type { Queryable } from './pool.ts';

/** What the database hands over at once. */
const ROWS_AT_ONCE = 1_000;

/**
 * Writes everything of an owner but bodies and credentials, one JSON object a line, however much it is.
 *
 * @param db one session, inside a transaction
 * @returns how many lines
 * @throws Error if the reader has gone
 */
export async function writeAccount(db: Queryable, credential: Buffer, out: Writable): Promise<number> {
  await db.query(
    `declare account no scroll cursor for
     select json_build_object('kind', e.kind, 'content', e.content)::text as line from posthorn_api.export_account($1) e`,
    [credential],
  );
  for (let lines = 0; ; ) {
    const { rows } = await db.query(`fetch ${ROWS_AT_ONCE} from account`);
    if (rows.length === 0) return lines;
    lines += rows.length;
    if (!out.write(rows.map(({ line }) => `${line}\n`).join(''))) await drained(out);
  }
}

/** @throws Error if the reader has gone, who would be waited for for ever */
async function drained(out: Writable): Promise<void> {
  const gone = new AbortController();
  const cut = () => gone.abort();
  out.once('close', cut);
  try {
    await once(out, 'drain', { signal: gone.signal });
  } finally {
    out.off('close', cut);
  }
}
