import { join } from 'node:path';
import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { migrate } from '../db/migrate.ts';
import { packageRoot } from '../package-root.ts';
import { nameDatabase, reaching, requireDatabaseUrl } from './database.ts';
import { addCommand, answer, type Output, remark } from './output.ts';

export function addMigrate(program: Command): void {
  addCommand(
    program,
    'migrate',
    'Bring the database of POSTHORN_LISTEN_URL, or else POSTHORN_DATABASE_URL, up to date, as a login that may create roles.',
  ).action(run);
}

async function run(output: Output): Promise<void> {
  const config = readConfig(process.env);
  requireDatabaseUrl(config);
  // past the pooler, which would hand the session's lock to somebody else
  const url = config.listenUrl!;
  const result = await reaching(url, () => migrate({ url, sqlDirectory: join(packageRoot, 'sql'), log: remark }));
  const { applied, rebuilt } = result;
  const lines = [
    ...applied.map((name) => `applied  ${name}`),
    ...(rebuilt ? ['rebuilt  functions, policies, grants and views'] : []),
  ];
  answer(output, result, lines.length > 0 ? lines.join('\n') : `${nameDatabase(url)} is up to date.`);
}
