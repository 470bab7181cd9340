import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { readConfig } from '../src/config.ts';
import { makeKeyRing, makeRingProof, parseKeyRing, serializeKeyRing } from '../src/crypto/key-ring.ts';
import { KeyRingError, openKeyRing, openOrMakeKeyRing } from '../src/open-key-ring.ts';

const folder = await mkdtemp(join(tmpdir(), 'posthorn-ring-'));
afterAll(() => rm(folder, { recursive: true }));

let folders = 0;

/** A data folder that is not there yet. */
function newPlace(settings: NodeJS.ProcessEnv = {}) {
  const dataDirectory = join(folder, String(++folders));
  return {
    config: readConfig({ POSTHORN_DATA_DIR: dataDirectory, ...settings }),
    path: join(dataDirectory, 'keyring.json'),
  };
}

const proofsOf = (ring: ReturnType<typeof makeKeyRing>) => [
  { ringKeyId: ring.currentId, proof: makeRingProof(ring, ring.currentId) },
];

test('the first ring is made once, readable by its user alone', async () => {
  const { config, path } = newPlace();
  const made = await openOrMakeKeyRing(config, []);
  expect(made.madeAt).toBe(path);
  expect((await stat(path)).mode & 0o777).toBe(0o600);
  expect(parseKeyRing(await readFile(path, 'utf8'), path)).toEqual(made.ring);
  expect(await openOrMakeKeyRing(config, proofsOf(made.ring))).toEqual({ ring: made.ring, madeAt: undefined });
});

test('none is made for a database that depends on another, nor where a setting names one', async () => {
  const { config, path } = newPlace();
  await expect(openOrMakeKeyRing(config, proofsOf(makeKeyRing()))).rejects.toThrow(KeyRingError);
  expect(existsSync(path)).toBe(false);
  const elsewhere = newPlace({ POSTHORN_KEYRING: join(folder, 'none.json') });
  await expect(openOrMakeKeyRing(elsewhere.config, [])).rejects.toThrow(/none\.json/);
  expect(existsSync(elsewhere.path)).toBe(false);
});

test('none is made over a file that cannot be read as one', async () => {
  const { config, path } = newPlace();
  await openOrMakeKeyRing(config, []);
  await writeFile(path, 'not a ring');
  await expect(openOrMakeKeyRing(config, [])).rejects.toThrow(/is not JSON/);
  expect(await readFile(path, 'utf8')).toBe('not a ring');
});

test('of two that make the first ring at once, one does, and both go on with it or stop', async () => {
  const { config, path } = newPlace();
  const results = await Promise.allSettled([openOrMakeKeyRing(config, []), openOrMakeKeyRing(config, [])]);
  const onDisk = parseKeyRing(await readFile(path, 'utf8'), path);
  const opened = results.flatMap((result) => (result.status === 'fulfilled' ? [result.value.ring] : []));
  expect(opened.length).toBeGreaterThan(0);
  for (const ring of opened) expect(ring).toEqual(onDisk);
});

test('a ring in the setting itself is held against the database', async () => {
  const ring = makeKeyRing();
  const { config } = newPlace({ POSTHORN_KEYRING: serializeKeyRing(ring) });
  expect(await openKeyRing(config, proofsOf(ring))).toEqual(ring);
  await expect(openKeyRing(config, proofsOf(makeKeyRing()))).rejects.toThrow(KeyRingError);
});
