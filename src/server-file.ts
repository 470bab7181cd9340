import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { readPrivateFile, writePrivateFile } from './private-file.ts';

const ServerFile = z.object({
  pid: z.int(),
  url: z.string(),
  mcp_url: z.string(),
  /** With the rights of the person at the server. */
  database_url: z.string(),
});

/** Where a running `start` can be reached; it leaves this in its data directory for the person's commands. */
export type ServerFile = z.infer<typeof ServerFile>;

const pathIn = (dataDirectory: string) => join(dataDirectory, 'server.json');

/**
 * The server that runs on a data directory, as far as its file tells.
 *
 * @returns undefined if there is no file, or the process that wrote it is gone
 */
export async function readServerFile(dataDirectory: string): Promise<ServerFile | undefined> {
  const text = await readPrivateFile(pathIn(dataDirectory));
  if (text === undefined) return undefined;
  const parsed = ServerFile.safeParse(JSON.parse(text));
  return parsed.success && isAlive(parsed.data.pid) ? parsed.data : undefined;
}

export async function writeServerFile(dataDirectory: string, server: ServerFile): Promise<void> {
  await writePrivateFile(pathIn(dataDirectory), `${JSON.stringify(server, null, 2)}\n`);
}

export async function removeServerFile(dataDirectory: string): Promise<void> {
  await rm(pathIn(dataDirectory), { force: true });
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
