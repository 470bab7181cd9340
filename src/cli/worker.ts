import type { Command } from 'commander';
import { type Config, readConfig } from '../config.ts';
import { createLog } from '../log.ts';
import { hasKeyRing, openKeyRing, readKeyRing } from '../open-key-ring.ts';
import { type DeliveryOptions, startWorker } from '../worker.ts';
import { knownRingKeys, reaching, requireDatabaseUrl, requireSchema } from './database.ts';
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
      if (!hasKeyRing(config))
        log.warn(
          'There is no key ring yet: this worker delivers no webhooks and notifies no browsers until there is one.',
        );
      const openDelivery = () => openDeliveryOf(config);
      return await reaching(databaseUrl, () => startWorker({ databaseUrl, openDelivery, log }));
    },
    () => {
      const ready = JSON.stringify({ event: 'ready', pid: process.pid });
      process.stdout.write(output.json ? `${ready}\n` : 'The worker runs.\n');
    },
  );
}

/** Webhooks' secrets open with the key ring alone. A worker without one does everything else. */
async function openDeliveryOf(config: Config): Promise<DeliveryOptions | undefined> {
  if (!hasKeyRing(config)) return undefined;
  const keyRing = await openKeyRing(config, await knownRingKeys(config.listenUrl!));
  const { webhookAllow: allow, publicUrl } = config;
  return { keyRing, readKeyRing: () => readKeyRing(config), allow, publicUrl };
}
