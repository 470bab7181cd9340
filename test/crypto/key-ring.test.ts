import { randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { makeId } from '../../src/crypto/ids.ts';
import {
  checkKeyRing,
  type KeyRing,
  loadKeyRing,
  makeKeyRing,
  makeRingProof,
  parseKeyRing,
  serializeKeyRing,
  unwrapDataKey,
  wrapDataKey,
} from '../../src/crypto/key-ring.ts';

const folder = await mkdtemp(join(tmpdir(), 'posthorn-ring-'));
afterAll(() => rm(folder, { recursive: true }));

const keyText = randomBytes(32).toString('base64');

describe('reading a ring', () => {
  test('what was written is read again', () => {
    const ring = makeKeyRing();
    expect(parseKeyRing(serializeKeyRing(ring), 'the test')).toEqual(ring);
  });

  test('a setting may be the JSON itself or a path', async () => {
    const ring = makeKeyRing();
    const path = join(folder, 'given.json');
    await writeFile(path, serializeKeyRing(ring));
    expect(await loadKeyRing(`  ${serializeKeyRing(ring)}`)).toEqual(ring);
    expect(await loadKeyRing(path)).toEqual(ring);
  });

  test('a path that leads nowhere is named', async () => {
    await expect(loadKeyRing(join(folder, 'nowhere.json'))).rejects.toThrow(/key ring cannot be read.*nowhere\.json/);
  });

  test.each([
    ['no JSON', 'keys!', /is not JSON/],
    ['JSON of another shape', '{"keys": []}', /must look like/],
    ['an unknown property', JSON.stringify({ current: 'a', keys: { a: keyText }, old: 'b' }), /must look like/],
    [
      'a key of 31 bytes',
      JSON.stringify({ current: 'a', keys: { a: randomBytes(31).toString('base64') } }),
      /must look like/,
    ],
    [
      'a key of 33 bytes',
      JSON.stringify({ current: 'a', keys: { a: randomBytes(33).toString('base64') } }),
      /must look like/,
    ],
    [
      'a key that is no base64',
      JSON.stringify({ current: 'a', keys: { a: `${keyText.slice(1)}!` } }),
      /must look like/,
    ],
    ['an empty id', JSON.stringify({ current: '', keys: { '': keyText } }), /must look like/],
    ['a current key that is not there', JSON.stringify({ current: 'b', keys: { a: keyText } }), /names "b" as current/],
  ])('%s is refused without showing a key', (_, text, message) => {
    const error = catchError(() => parseKeyRing(text, 'the test'));
    expect(error.message).toMatch(message);
    expect(error.message).toContain('the test');
    expect(error.message).not.toContain(keyText.slice(1, 20));
  });
});

describe("wrapping an owner's data key", () => {
  const ring = makeKeyRing();
  const ownerId = makeId();
  const dataKey = randomBytes(32);
  const { ringKeyId, wrappedKey } = wrapDataKey(ring, ownerId, dataKey);

  test('the ring unwraps what it wrapped, of a size that the table takes', () => {
    expect(ringKeyId).toBe(ring.currentId);
    expect(wrappedKey).toHaveLength(60);
    expect(wrappedKey.includes(dataKey)).toBe(false);
    expect(unwrapDataKey(ring, ownerId, ringKeyId, wrappedKey)).toEqual(dataKey);
  });

  test('an older key of the ring still unwraps after a rotation', () => {
    const next = makeKeyRing();
    const rotated: KeyRing = { currentId: next.currentId, keys: new Map([...ring.keys, ...next.keys]) };
    expect(unwrapDataKey(rotated, ownerId, ringKeyId, wrappedKey)).toEqual(dataKey);
    expect(wrapDataKey(rotated, ownerId, dataKey).ringKeyId).toBe(next.currentId);
  });

  test('it is bound to the owner', () => {
    expect(() => unwrapDataKey(ring, makeId(), ringKeyId, wrappedKey)).toThrow();
  });

  test('another ring does not unwrap it', () => {
    expect(() => unwrapDataKey(makeKeyRing(), ownerId, ringKeyId, wrappedKey)).toThrow(
      `The key ring lacks key "${ringKeyId}".`,
    );
    const imposter: KeyRing = { currentId: ringKeyId, keys: new Map([[ringKeyId, randomBytes(32)]]) };
    expect(() => unwrapDataKey(imposter, ownerId, ringKeyId, wrappedKey)).toThrow();
  });

  test('a change of any byte, or a cut, is noticed', () => {
    for (let index = 0; index < wrappedKey.length; index++) {
      const altered = Buffer.from(wrappedKey);
      altered[index]! ^= 0x80;
      expect(() => unwrapDataKey(ring, ownerId, ringKeyId, altered), `byte ${index}`).toThrow();
      expect(() => unwrapDataKey(ring, ownerId, ringKeyId, wrappedKey.subarray(0, index)), `cut at ${index}`).toThrow();
    }
  });
});

describe('telling the right ring from another', () => {
  const ring = makeKeyRing();
  const known = [{ ringKeyId: ring.currentId, proof: makeRingProof(ring, ring.currentId) }];

  test('the right ring passes, and so does one with more keys', () => {
    checkKeyRing(ring, known);
    checkKeyRing({ ...ring, keys: new Map([...ring.keys, ['k2', randomBytes(32)]]) }, known);
    checkKeyRing(makeKeyRing(), []);
  });

  test('a ring without the key is refused by name', () => {
    expect(() => checkKeyRing(makeKeyRing(), known)).toThrow(`The key ring lacks key "${ring.currentId}"`);
  });

  test('a ring with another key of that name is refused by name', () => {
    const imposter: KeyRing = { currentId: ring.currentId, keys: new Map([[ring.currentId, randomBytes(32)]]) };
    expect(() => checkKeyRing(imposter, known)).toThrow(`Key "${ring.currentId}" of the key ring is not the one`);
  });

  test('a proof holds for its own id only, and wraps no data key', () => {
    const renamed: KeyRing = { currentId: 'k2', keys: new Map([['k2', ring.keys.get(ring.currentId)!]]) };
    expect(() => checkKeyRing(renamed, [{ ringKeyId: 'k2', proof: known[0]!.proof }])).toThrow('Key "k2"');
    expect(() => unwrapDataKey(ring, makeId(), ring.currentId, known[0]!.proof)).toThrow();
  });
});

function catchError(work: () => unknown): Error {
  try {
    work();
  } catch (error) {
    return error as Error;
  }
  throw new Error('Nothing was thrown.');
}
