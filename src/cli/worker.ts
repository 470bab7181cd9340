import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { createLog } from '../log.ts';
import { startWorker } from '../worker.ts';
import { reaching, requireDatabaseUrl, requireSchema } from './database.ts';
import { addCommand, type Output } from './output.ts';
import { runUntilStopped } from './run-until-stopped.ts';

export function addWorker(program: Command): void {
  addCommand(
    program,
    'worker',
    'Run the jobs alone, on POSTHORN_DATABASE_URL, until SIGTERM. Any number may run.',
  ).action(work);
}

async function work(output: Output): Promise<void> {
  const config = readConfig(process.env);
  requireDatabaseUrl(config);
  const databaseUrl = config.listenUrl!;
  const log = createLog();
  await runUntilStopped(
    log,
    async () => {
      await requireSchema(databaseUrl);
      return await reaching(databaseUrl, () => startWorker({ databaseUrl, log }));
    },
    () => {
      const ready = JSON.stringify({ event: 'ready', pid: process.pid });
      process.stdout.write(output.json ? `${ready}\n` : 'The worker runs.\n');
    },
  );
}
