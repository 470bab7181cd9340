import { afterEach, expect, test, vi } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { makeKeyRing, withNewKey } from '../../src/crypto/key-ring.ts';
import { createOwnerKeys } from '../../src/crypto/owner-keys.ts';
import * as functions from '../../src/db/functions.ts';
import { makeOwner } from '../../src/new-owner.ts';
import { createTestDatabase } from '../helpers/database.ts';
import { inTransaction } from '../helpers/world.ts';

const database = await createTestDatabase();
const admin = database.as('posthorn_admin');
const app = database.as('posthorn_app');

const old = makeKeyRing();
const rotated = withNewKey(old.keys);

afterEach(() => {
  vi.useRealTimers();
});

/** An owner whose key is wrapped by the ring's current key, and a credential of theirs. */
async function newcomer(ring = rotated): Promise<{ id: string; credential: Buffer }> {
  const id = await makeOwner(admin, ring, 'Owner');
  const { hash: credential } = makeCredential('service');
  await inTransaction(admin, async (db) =>
    functions.createServiceConnection(db, {
      credential: await functions.actAsOwner(db, { ownerId: id }),
      label: 'token',
      scopes: ['messaging'],
      credentialHash: credential,
    }),
  );
  return { id, credential };
}

test('the ring is read anew for a key that it lacks, and only then', async () => {
  const readRing = vi.fn(async () => rotated);
  const keysOf = createOwnerKeys(app, old, readRing);
  const [first, second] = [await newcomer(), await newcomer()];
  expect(await keysOf(first.id, first.credential)).toMatchObject({ ownerId: first.id });
  expect(await keysOf(second.id, second.credential)).toMatchObject({ ownerId: second.id });
  await keysOf(first.id, first.credential);
  expect(readRing).toHaveBeenCalledTimes(1);
});

test('a ring that does not have it is not read again for five seconds, and then it is', async () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  let ring = old;
  const readRing = vi.fn(async () => ring);
  const keysOf = createOwnerKeys(app, old, readRing);
  const { id, credential } = await newcomer();
  await expect(keysOf(id, credential)).rejects.toThrow(rotated.currentId);
  ring = rotated;
  await expect(keysOf(id, credential)).rejects.toThrow(rotated.currentId);
  expect(readRing).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(5_000);
  expect(await keysOf(id, credential)).toMatchObject({ ownerId: id });
  expect(readRing).toHaveBeenCalledTimes(2);
});

test('a key that has left the file still opens what was read before', async () => {
  const newest = withNewKey(new Map());
  const keysOf = createOwnerKeys(app, rotated, async () => newest);
  const late = await newcomer(); // wrapped by a key that the file no longer has
  const ahead = await newcomer(newest);
  expect(await keysOf(ahead.id, ahead.credential)).toMatchObject({ ownerId: ahead.id });
  expect(await keysOf(late.id, late.credential)).toMatchObject({ ownerId: late.id });
});
