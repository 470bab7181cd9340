import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { link, rm } from 'node:fs/promises';
import type { Command } from 'commander';
import { writeAccount } from '../db/account-export.ts';
import { deleteAccount, ownerSettings } from '../db/functions.ts';
import { ask, canAsk } from './confirm.ts';
import { CommandError, usage } from './failure.ts';
import { answer, posthorn, remark } from './output.ts';
import { type AsOwner, addOwnerCommand, asOwner } from './person.ts';
import { harmlessLine } from './text.ts';

/** The first rows of a large account come when the database has gathered all of them, in milliseconds. */
const EXPORT_TIMEOUT_MS = 10 * 60_000;

/** The owner's account as a whole: the family `owner export|delete`. */
export function addAccount(owner: Command): void {
  addOwnerCommand(owner, 'export', 'Everything that is yours but message bodies, as lines of JSON.')
    .option('--out <file>', 'a new file that only you can read, instead of standard output')
    .action(exportAccount);
  addOwnerCommand(owner, 'delete', 'End this account for good: its key, its mail, its agents, its history.')
    .option('--confirm <label>', "the owner's label, for want of a person who could be asked")
    .action(endAccount);
}

async function exportAccount(options: AsOwner & { out?: string }): Promise<void> {
  if (options.out === undefined) {
    await asOwner(options, (db, credential) => writeAccount(db, credential, process.stdout), EXPORT_TIMEOUT_MS);
    return;
  }
  const path = options.out;
  const unfinished = `${path}.${process.pid}.unfinished`;
  const file = createWriteStream(unfinished, { flags: 'wx', mode: 0o600 });
  try {
    await once(file, 'open');
    const lines = await asOwner(options, (db, credential) => writeAccount(db, credential, file), EXPORT_TIMEOUT_MS);
    file.end();
    await once(file, 'close');
    await link(unfinished, path); // whole, and never over another file
    answer(options, { file: path, lines }, `${lines} lines are in ${path}.`);
  } catch (error) {
    file.destroy();
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') throw usage(`There is a file ${path} already.`);
    throw error;
  } finally {
    await rm(unfinished, { force: true });
  }
}

async function endAccount(options: AsOwner & { confirm?: string }): Promise<void> {
  const [owner] = await asOwner(options, (db, credential) => ownerSettings(db, { credential }));
  const { id, label } = owner!;
  if (!options.json) {
    remark(`This deletes the account of ${harmlessLine(label)} for good. No backup of ours brings it back.`);
    remark(`To keep its history, first run: ${posthorn} owner export --out FILE`);
  }
  if (options.confirm === undefined && !canAsk()) throw usage('Confirm with: --confirm LABEL, the label of the owner.');
  const typed = options.confirm ?? (await ask(`Type the owner's label to go on: `));
  if (typed !== label) throw new CommandError('not_confirmed', 'That is not the label. Nothing was deleted.');
  await asOwner({ ...options, owner: id }, (db, credential) => deleteAccount(db, { credential }));
  answer(options, { id, deleted: true }, 'Deleted: nothing of it can be read any more. A worker removes the rows.');
}
