import { join } from 'node:path';
import type { Config } from '../config.ts';
import { ringKeys } from '../db/functions.ts';
import { readSqlFiles, SchemaTooNewError, schemaState } from '../db/migrate.ts';
import { createPool, isConnectionError } from '../db/pool.ts';
import { packageRoot } from '../package-root.ts';
import { CommandError, unreachable, usage } from './failure.ts';
import { posthorn } from './output.ts';

/** The database of POSTHORN_DATABASE_URL, for commands that cannot do without. */
export function requireDatabaseUrl({ databaseUrl }: Config): string {
  if (databaseUrl === undefined) {
    throw usage('Set POSTHORN_DATABASE_URL, such as postgres://posthorn_app:password@host:5432/posthorn.');
  }
  return databaseUrl;
}

/** A database's address without its password. */
export function nameDatabase(url: string): string {
  const { hostname, port, pathname } = new URL(url);
  return `${hostname}:${port || 5432}${pathname}`;
}

/** Runs `work` on a database, and names that database where it cannot be reached or refuses the login. */
export async function reaching<T>(url: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const { code, message, syscall } = error as NodeJS.ErrnoException;
    // our own port, which has nothing to do with the database
    if (syscall === 'listen') throw error;
    // invalid_authorization_specification, invalid_password, invalid_catalog_name
    if (code === '28000' || code === '28P01' || code === '3D000') {
      throw new CommandError('database_refused', `The database at ${nameDatabase(url)} refuses the login: ${message}.`);
    }
    if (!isConnectionError(error)) throw error;
    throw unreachable(`The database at ${nameDatabase(url)} does not answer: ${code ?? message}.`);
  }
}

/**
 * Makes sure that a database has the schema that this build needs.
 *
 * @throws CommandError if it must be migrated first
 * @throws SchemaTooNewError if this build must not run on it
 */
export async function requireSchema(url: string): Promise<void> {
  const pool = createPool({ url, max: 1 });
  try {
    return await reaching(url, async () => {
      const state = await schemaState(pool, await readSqlFiles(join(packageRoot, 'sql')));
      if (state === 'empty' || state === 'behind') {
        const what = state === 'empty' ? 'has no schema yet' : 'has an older schema than this build needs';
        throw new CommandError(
          'schema_behind',
          `The database at ${nameDatabase(url)} ${what}. Run: ${posthorn} migrate`,
        );
      }
      if (state === 'ahead_breaking') {
        throw new SchemaTooNewError(
          `A newer build has changed ${nameDatabase(url)} beyond this one. Run a newer build.`,
        );
      }
    });
  } finally {
    await pool.end();
  }
}

/** Which keys the ring must hold; for whoever holds one. */
export async function knownRingKeys(url: string): Promise<{ ringKeyId: string; proof: Buffer }[]> {
  const pool = createPool({ url, max: 1 });
  try {
    return await reaching(url, () => ringKeys(pool));
  } finally {
    await pool.end();
  }
}
