import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import { makeKeyRing } from '../../src/crypto/key-ring.ts';
import { createOwnerKeys } from '../../src/crypto/owner-keys.ts';
import type { Queryable } from '../../src/db/pool.ts';
import { createWorld } from '../helpers/world.ts';

const world = await createWorld();

/** The pods' connections, counting how often they are asked. */
function counted(): { db: Queryable; asked: () => number } {
  let asked = 0;
  const query: Queryable['query'] = (text, values) => {
    asked++;
    return world.app.query(text, values);
  };
  return { db: { query }, asked: () => asked };
}

test("an owner's keys are read once, by whichever of its credentials comes first", async () => {
  const owner = await world.makeOwner();
  const [one, two] = [await owner.connect(), await owner.connect()];
  const { db, asked } = counted();
  const keysOf = createOwnerKeys(db, world.ring);
  const [first, again] = await Promise.all([keysOf(owner.id, one.credential), keysOf(owner.id, one.credential)]);
  expect(again).toBe(first);
  expect(await keysOf(owner.id, two.credential)).toBe(first);
  expect(asked()).toBe(1);
  expect(first).toMatchObject({ ownerId: owner.id });
});

test('owners have different keys', async () => {
  const [one, two] = [await world.makeOwner(), await world.makeOwner()];
  const [a, b] = [await world.ownerKeysOf(one.id, one.session), await world.ownerKeysOf(two.id, two.session)];
  expect(a.body.equals(b.body)).toBe(false);
  expect(a.fingerprint.equals(b.fingerprint)).toBe(false);
});

test("another owner's credential reads no key, and a failure is not remembered", async () => {
  const [owner, other] = [await world.makeOwner(), await world.makeOwner()];
  const keysOf = createOwnerKeys(world.app, world.ring);
  await expect(keysOf(owner.id, other.session)).rejects.toThrow('another owner');
  await expect(keysOf(owner.id, randomBytes(32))).rejects.toThrow('unauthorized');
  expect(await keysOf(owner.id, owner.session)).toMatchObject({ ownerId: owner.id });
});

test('a ring that lacks the key says which', async () => {
  const owner = await world.makeOwner();
  const keysOf = createOwnerKeys(world.app, makeKeyRing());
  await expect(keysOf(owner.id, owner.session)).rejects.toThrow(`The key ring lacks key "${world.ring.currentId}".`);
});
