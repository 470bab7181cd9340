import { createPool, type Queryable, withClient } from './pool.ts';

/** This login cannot act as the person at the server, or the database was not migrated. */
export class NotAdminError extends Error {
  override name = 'NotAdminError';
}

/**
 * Runs `work` as the person at the server (role posthorn_admin), in one transaction: a ticket of ops.act_as_owner holds
 * no longer. The role is taken on inside the transaction, so that a transaction pooler may stand in between.
 *
 * @param url a login that may become posthorn_admin: the one that migrates, or a superuser
 * @throws NotAdminError if the login may not, or there is nothing to act on
 */
export async function asAdmin<T>(url: string, work: (db: Queryable) => Promise<T>): Promise<T> {
  const pool = createPool({ url, max: 1 });
  try {
    return await withClient(pool, async (client) => {
      await client.query('begin');
      try {
        await client.query('set local role posthorn_admin').catch(explain);
        const result = await work(client).catch(explain);
        await client.query('commit');
        return result;
      } catch (error) {
        await client.query('rollback').catch(() => {});
        throw error;
      }
    });
  } finally {
    await pool.end();
  }
}

function explain(error: { code?: string; message?: string }): never {
  if (error.code === '42501' && error.message?.includes('set role')) {
    throw new NotAdminError(
      'This database login may not act as the person at the server. Use the login that ran `posthorn migrate`.',
    );
  }
  // a role, a schema or a function that a migration makes
  if (['22023', '3F000', '42883'].includes(error.code ?? '')) {
    throw new NotAdminError('This database has no schema of this build yet. Run `posthorn migrate` first.');
  }
  throw error;
}
