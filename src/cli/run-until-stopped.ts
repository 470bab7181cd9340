import { setTimeout as wait } from 'node:timers/promises';
import type { Logger } from 'pino';
import { readConfig, unknownSettings } from '../config.ts';
import { startMetricsServer } from '../metrics-server.ts';
import { startTracing } from '../tracing.ts';

/** How long a start that is no longer wanted may take to end by itself, in milliseconds. */
const UNWANTED_START_MS = 15_000;

/** What may still be open when all is closed (a socket of a client, say) keeps us no longer than this, in milliseconds. */
const LINGER_MS = 1_000;

export interface Running {
  close(): Promise<void>;
  /** Rejects if it cannot go on. */
  failed?: Promise<never>;
}

/**
 * Starts a server, says that it is ready, and closes it at the first SIGTERM, SIGINT or SIGHUP. Every further signal
 * finds it closing already: Ctrl-C under npm, for one, arrives twice.
 *
 * @param start given what aborts at that signal, for a start that waits for others
 * @throws Error if it could not start, or could not go on
 */
export async function runUntilStopped<Server extends Running>(
  log: Logger,
  start: (stopping: AbortSignal) => Promise<Server>,
  onReady: (server: Server) => void,
): Promise<void> {
  const stopping = new AbortController();
  const stopped = new Promise<undefined>((resolve) => {
    stopping.signal.addEventListener('abort', () => resolve(undefined));
  });
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(signal, () => stopping.abort());
  process.on('uncaughtException', (err) => {
    log.fatal({ err }, 'a mistake in the program');
    process.exit(1);
  });

  for (const name of unknownSettings(process.env)) log.warn(`${name} is no setting of Posthorn`);
  const stopWatching = await startWatching(log);
  try {
    await runUntil(stopped, () => start(stopping.signal), onReady);
  } finally {
    await stopWatching();
    setTimeout(() => process.exit(), LINGER_MS).unref();
  }
}

/** Lets operators look into this process: metrics and traces, each if it is configured. */
async function startWatching(log: Logger): Promise<() => Promise<void>> {
  const { host, metricsPort } = readConfig(process.env);
  const metricsServer = metricsPort === undefined ? undefined : await startMetricsServer({ host, port: metricsPort });
  if (metricsServer) log.info({ port: metricsServer.port }, 'metrics are served');
  const stopTracing = await startTracing(process.env);
  return async () => {
    await metricsServer?.close();
    await stopTracing().catch((err) => log.warn({ err }, 'the last traces could not be sent'));
  };
}

async function runUntil<Server extends Running>(
  stopped: Promise<undefined>,
  start: () => Promise<Server>,
  onReady: (server: Server) => void,
): Promise<void> {
  const starting = start();
  const server = await Promise.race([starting, stopped]);
  if (!server) {
    const unwanted = starting.catch(() => undefined);
    const late = await Promise.race([unwanted, wait(UNWANTED_START_MS, undefined, { ref: false })]);
    await late?.close();
    return;
  }
  onReady(server);
  try {
    await Promise.race(server.failed ? [stopped, server.failed] : [stopped]);
  } finally {
    await server.close();
  }
}
