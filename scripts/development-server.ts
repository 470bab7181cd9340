import { join } from 'node:path';
import { findEmbeddedPostgres, startEmbeddedPostgres } from '../src/db/embedded.ts';
import { packageRoot } from '../src/package-root.ts';

/** Where `npm run dev` keeps its server too: `start` with POSTHORN_DATA_DIR=.posthorn. */
export const developmentDataDirectory = join(packageRoot, '.posthorn', 'postgres');

/**
 * Runs `work` with the address of the development server: the one that runs, or else one started for the time.
 */
export async function withDevelopmentServer<T>(work: (url: string) => Promise<T>): Promise<T> {
  const running = await findEmbeddedPostgres(developmentDataDirectory);
  if (running) return await work(running);
  const server = await startEmbeddedPostgres({ dataDirectory: developmentDataDirectory });
  try {
    return await work(server.url);
  } finally {
    await server.stop();
  }
}
