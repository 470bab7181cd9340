import { makeCredential } from './crypto/credentials.ts';
import { createSignInLink } from './db/functions.ts';
import type { Queryable } from './db/pool.ts';

/**
 * Makes a link that signs in whoever uses it first, within 15 minutes.
 *
 * @param db acts as the person at the server
 * @param credential the owner's ticket
 */
export async function makeSignInUrl(db: Queryable, publicUrl: string, credential: Buffer): Promise<string> {
  const { token, hash } = makeCredential('link');
  await createSignInLink(db, { credential, linkHash: hash });
  return `${publicUrl}/owner/sign-in?link=${token}`;
}
