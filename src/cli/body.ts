import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { buffer } from 'node:stream/consumers';
import { invalidRequest } from '../errors.ts';
import { usage } from './failure.ts';

export interface BodyOptions {
  message?: string;
  messageFile?: string;
}

/**
 * A message's body: the option's text, or the bytes of a file or of standard input (`-`). Every byte counts: nothing is
 * trimmed, and what is not UTF-8 is refused instead of repaired.
 */
export async function readBody({ message, messageFile }: BodyOptions): Promise<string> {
  if ((message === undefined) === (messageFile === undefined)) {
    throw usage('Give the body as --message TEXT or as --message-file PATH, where - is standard input.');
  }
  if (message !== undefined) {
    refuseRepaired(message);
    return message;
  }
  return decode(messageFile === '-' ? await buffer(process.stdin) : await readFileNamed(messageFile!));
}

async function readFileNamed(path: string): Promise<Buffer> {
  try {
    return await readFile(path);
  } catch (error) {
    throw usage(`The message cannot be read: ${(error as Error).message}.`);
  }
}

function decode(bytes: Buffer): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    const place = firstBadByte(bytes);
    throw invalidRequest(['body'], `body: is not valid UTF-8 (byte ${place + 1}, 0x${bytes[place]!.toString(16)})`);
  }
}

/** Where what is valid ends: the longest start of the bytes that survives a round trip. */
function firstBadByte(bytes: Buffer): number {
  const repaired = Buffer.from(bytes.toString('utf8'));
  const place = bytes.findIndex((byte, index) => byte !== repaired[index]);
  return place === -1 ? bytes.length - 1 : place;
}

/**
 * Node repairs arguments that are not UTF-8 before we see them, each bad byte to U+FFFD. Linux still has the original.
 */
function refuseRepaired(text: string): void {
  if (!text.includes('\ufffd') || process.platform !== 'linux') return;
  const given = readFileSync('/proc/self/cmdline');
  if (!Buffer.from(given.toString('utf8')).equals(given)) throw invalidRequest(['body'], 'body: is not valid UTF-8');
}
