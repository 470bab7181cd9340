import type { Command } from 'commander';
import { type Config, readConfig } from '../config.ts';
import { asAdmin } from '../db/as-admin.ts';
import { actAsOwner, listOwners } from '../db/functions.ts';
import type { Queryable } from '../db/pool.ts';
import { readServerFile } from '../server-file.ts';
import { reaching } from './database.ts';
import { CommandError, unreachable, usage } from './failure.ts';
import { addCommand, type Output, posthorn } from './output.ts';

/** What every command of a person takes that acts as one owner. */
export interface AsOwner extends Output {
  owner?: string;
}

/** Adds a command of the person at the server that acts as one owner. */
export function addOwnerCommand(parent: Command, nameAndArguments: string, about: string): Command {
  return addCommand(parent, nameAndArguments, about).option(
    '--owner <id|label>',
    'which owner, where the server has several',
  );
}

/**
 * Runs `act` as an owner, in one transaction.
 *
 * @param act is given the ticket that stands in for a credential in that transaction
 * @param queryTimeoutMs how long one answer of the database may take, where that is longer than usual
 */
export async function asOwner<T>(
  options: AsOwner,
  act: (db: Queryable, ticket: Buffer, config: Config) => Promise<T>,
  queryTimeoutMs?: number,
): Promise<T> {
  return await asPerson(async (db, config) => {
    const ownerId = chooseOwner(await listOwners(db), options.owner);
    return await act(db, await actAsOwner(db, { ownerId }), config);
  }, queryTimeoutMs);
}

/** Runs `act` with the rights of the person at the server: on a running `start`, else on POSTHORN_DATABASE_URL. */
export async function asPerson<T>(
  act: (db: Queryable, config: Config) => Promise<T>,
  queryTimeoutMs?: number,
): Promise<T> {
  const config = readConfig(process.env);
  const url = (await readServerFile(config.dataDirectory))?.database_url ?? config.databaseUrl;
  if (url === undefined) {
    throw unreachable(
      `No server runs on ${config.dataDirectory}. Run: ${posthorn} start\n` +
        '(Elsewhere? Set POSTHORN_DATA_DIR to its folder, or POSTHORN_DATABASE_URL to its database.)',
    );
  }
  return await reaching(url, () => asAdmin(url, (db) => act(db, config), queryTimeoutMs));
}

function chooseOwner(owners: { id: string; label: string }[], wanted: string | undefined): string {
  const known = owners.map(({ id, label }) => `\n  ${id}  ${label}`).join('');
  if (wanted !== undefined) {
    const matching = owners.filter(({ id, label }) => id === wanted || label === wanted);
    if (matching.length === 1) return matching[0]!.id;
    if (matching.length > 1) throw usage(`Several owners are called "${wanted}"; name one by its id:${known}`);
    throw new CommandError('not_found', `There is no owner "${wanted}". There are:${known || ' none'}`);
  }
  if (owners.length === 1) return owners[0]!.id;
  if (owners.length === 0)
    throw new CommandError('not_found', `There is no owner yet. Run: ${posthorn} owner create --label NAME`);
  throw usage(`This server has several owners. Say which with --owner:${known}`);
}
