import { touchConnections } from './functions.ts';
import type { Queryable } from './pool.ts';

/** How often it is written down which credentials were used, in milliseconds. */
const WRITE_MS = 60_000;

/** Connections that one call touches: it locks them meanwhile. */
const BATCH_SIZE = 500;

export interface CredentialUse {
  /** Remembers that a credential was good for a call. */
  note(credential: Buffer): void;
  /** Writes down what is left. */
  close(): Promise<void>;
}

/**
 * Collects which credentials are in use and tells the database once a minute: when each was used last, which moves on
 * the 90 days of paired devices. A write for every call would cost more than most calls; a pod that is killed forgets
 * a minute.
 *
 * @param onFailure told when a batch could not be written; it is not tried again
 */
export function createCredentialUse(db: Queryable, onFailure: (error: unknown) => void): CredentialUse {
  const used = new Map<string, Buffer>();

  async function write(): Promise<void> {
    const credentials = [...used.values()];
    used.clear();
    while (credentials.length > 0) {
      await touchConnections(db, { credentials: credentials.splice(0, BATCH_SIZE) }).catch(onFailure);
    }
  }

  let writing = Promise.resolve();
  const writeNext = () => {
    writing = writing.then(write);
    return writing;
  };
  const timer = setInterval(writeNext, WRITE_MS);
  timer.unref();
  return {
    note: (credential) => void used.set(credential.toString('latin1'), credential),
    async close() {
      clearInterval(timer);
      await writeNext();
    },
  };
}
