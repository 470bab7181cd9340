import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { asAdmin } from '../db/as-admin.ts';
import { startEmbeddedPostgres } from '../db/embedded.ts';
import { declareRestored } from '../db/functions.ts';
import { createPool } from '../db/pool.ts';
import { fenceIfRestored } from '../db/restored-server.ts';
import { readServerFile } from '../server-file.ts';
import { ask, canAsk } from './confirm.ts';
import { reaching } from './database.ts';
import { CommandError, unreachable, usage } from './failure.ts';
import { addCommand, answer, type Output, posthorn, remark } from './output.ts';

export function addRestore(program: Command): void {
  addCommand(
    program,
    'restore',
    'After you put back an older state of the database: fence all mail in it, since some was fenced since.',
  )
    .option('--confirm <word>', 'fence, for want of a person who could be asked')
    .action(run);
}

async function run(options: Output & { confirm?: string }): Promise<void> {
  remark('All mail that waits in the database, held mail too, becomes unreadable for good; its senders are told.');
  if (options.confirm === undefined && !canAsk()) throw usage('Confirm with: --confirm fence');
  const typed = options.confirm ?? (await ask('Type fence to go on: '));
  if (typed !== 'fence') throw new CommandError('not_confirmed', 'Nothing was changed.');
  await onDatabase(async (url) => {
    await asAdmin(url, (db) => declareRestored(db));
    const pool = createPool({ url, role: 'posthorn_admin', max: 1 });
    try {
      await fenceIfRestored(pool);
    } finally {
      await pool.end();
    }
  });
  answer(options, { fenced: true }, 'Every body in the database is fenced. The server may serve now.');
}

/** On a running server's database, else POSTHORN_DATABASE_URL, else the embedded one, started for the time. */
async function onDatabase(work: (url: string) => Promise<void>): Promise<void> {
  const { dataDirectory, listenUrl } = readConfig(process.env);
  const url = (await readServerFile(dataDirectory))?.database_url ?? listenUrl;
  if (url !== undefined) return await reaching(url, () => work(url));
  const embedded = join(dataDirectory, 'postgres');
  if (!existsSync(embedded)) {
    throw unreachable(
      `There is no database in ${dataDirectory}. Set POSTHORN_DATA_DIR or POSTHORN_DATABASE_URL, or make one: ${posthorn} start`,
    );
  }
  const server = await startEmbeddedPostgres({ dataDirectory: embedded });
  try {
    await work(server.url);
  } finally {
    await server.stop();
  }
}
