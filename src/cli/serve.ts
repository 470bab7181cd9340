import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { createLog } from '../log.ts';
import { openKeyRing, readKeyRing } from '../open-key-ring.ts';
import { startPod } from '../pod.ts';
import { knownRingKeys, reaching, requireDatabaseUrl, requireSchema } from './database.ts';
import { addCommand, type Output } from './output.ts';
import { runUntilStopped } from './run-until-stopped.ts';

export function addServe(program: Command): void {
  addCommand(
    program,
    'serve',
    'Run the API alone, on POSTHORN_DATABASE_URL, until SIGTERM. Any number may run.',
  ).action(serve);
}

async function serve(output: Output): Promise<void> {
  const config = readConfig(process.env);
  const databaseUrl = requireDatabaseUrl(config);
  const log = createLog();
  await runUntilStopped(
    log,
    async () => {
      await requireSchema(databaseUrl);
      const keyRing = await openKeyRing(config, await knownRingKeys(databaseUrl));
      const { host, port, publicUrl, listenUrl, webhookAllow, openid } = config;
      const read = () => readKeyRing(config);
      const options = {
        databaseUrl,
        listenUrl: listenUrl!,
        publicUrl,
        host,
        port,
        keyRing,
        readKeyRing: read,
        webhookAllow,
        openid,
        log,
      };
      return await reaching(databaseUrl, () => startPod(options));
    },
    (pod) => {
      const url = config.publicUrl ?? pod.url;
      const ready = { event: 'ready', pid: process.pid, url, mcp_url: `${url}/mcp`, owner_url: `${url}/owner` };
      process.stdout.write(
        output.json ? `${JSON.stringify(ready)}\n` : `Posthorn serves at ${url} (MCP: ${url}/mcp).\n`,
      );
    },
  );
}
