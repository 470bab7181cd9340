import { randomBytes } from 'node:crypto';
import { link, mkdir, open, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';

/** A file with a secret in it that other users of the machine could read. */
export class ExposedFileError extends Error {
  override name = 'ExposedFileError';
}

/**
 * Reads a file that holds a secret.
 *
 * @returns its text, or undefined if there is none
 * @throws ExposedFileError if anybody but its owner may read or write it
 */
export async function readPrivateFile(path: string): Promise<string | undefined> {
  const file = await open(path, 'r').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (!file) return undefined;
  try {
    // of the file that is open: the name may lead to another one by now
    const { mode } = await file.stat();
    if (isExposed(mode)) throw new ExposedFileError(`Other users can read ${path}. Run: chmod 600 '${path}'`);
    return await file.readFile('utf8');
  } finally {
    await file.close();
  }
}

/** Whether a mode gives anybody but the owner something; Windows has no such modes. */
export function isExposed(mode: number): boolean {
  return process.platform !== 'win32' && (mode & 0o077) !== 0;
}

/** Writes a file that only its owner can read. Whatever happens meanwhile, the old text is there or the new one, whole. */
export async function writePrivateFile(path: string, text: string): Promise<void> {
  await writeBeside(path, text, (unfinished) => rename(unfinished, path));
}

/**
 * Makes a file that only its owner can read, whole or not at all.
 *
 * @throws Error EEXIST if there is one already, which stays as it is
 */
export async function createPrivateFile(path: string, text: string): Promise<void> {
  await writeBeside(path, text, async (unfinished) => {
    await link(unfinished, path);
    await rm(unfinished);
  });
}

async function writeBeside(
  path: string,
  text: string,
  putInPlace: (unfinished: string) => Promise<void>,
): Promise<void> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  const unfinished = `${path}.${randomBytes(6).toString('hex')}`;
  try {
    const file = await open(unfinished, 'wx', 0o600);
    try {
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    await putInPlace(unfinished);
  } catch (error) {
    await rm(unfinished, { force: true });
    throw error;
  }
}
