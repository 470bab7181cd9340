import { mkdtempSync, rmSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { makeKeyRing, parseKeyRing, serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { loadServerSecrets } from '../../src/crypto/server-secrets.ts';
import { makeOwner } from '../../src/new-owner.ts';
import { ask } from '../helpers/answers.ts';
import { createTestDatabase } from '../helpers/database.ts';

const database = await createTestDatabase();
const app = database.as('posthorn_app');
const folder = mkdtempSync(join(tmpdir(), 'posthorn-secrets-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const ringFile = join(folder, 'keyring.json');
const readRing = async () => parseKeyRing(await readFile(ringFile, 'utf8'), ringFile);

test('the secrets are the same for all pods that start at once, and outlive every key of the ring', async () => {
  const ring = makeKeyRing();
  await writeFile(ringFile, serializeKeyRing(ring), { mode: 0o600 });
  await makeOwner(database.as('posthorn_admin'), ring, 'Owner');
  const [one, other] = await Promise.all([loadServerSecrets(app, readRing), loadServerSecrets(app, readRing)]);
  const sealed = one.seal('here', { secret: 'planted' });
  expect(other.open('here', sealed)).toEqual({ secret: 'planted' });
  expect(() => other.open('elsewhere', sealed)).toThrow();
  expect(other.successorOf('token')).toBe(one.successorOf('token'));
  expect(other.cookieKey).toBe(one.cookieKey);
  expect(one.successorOf('token')).not.toBe(one.successorOf('another'));
  expect(other.pushKeys).toEqual(one.pushKeys);
  expect(one.pushKeys.publicKey).toMatch(/^B[\w-]{86}$/);
  expect(one.pushKeys.privateKey).toMatch(/^[\w-]{43}$/);

  await ask(['keys', 'rotate'], { POSTHORN_DATABASE_URL: database.url, POSTHORN_DATA_DIR: folder });
  const { currentId, keys } = await readRing();
  expect(currentId).not.toBe(ring.currentId);
  const alone = { currentId, keys: new Map([[currentId, keys.get(currentId)!]]) };
  const later = await loadServerSecrets(app, async () => alone);
  expect(later.open('here', sealed)).toEqual({ secret: 'planted' });
  expect(later.pushKeys).toEqual(one.pushKeys);
  // a worker reads what a pod has made
  const worker = await loadServerSecrets(database.as('posthorn_jobs'), async () => alone);
  expect(worker.pushKeys).toEqual(one.pushKeys);
  const { rows } = await database.admin.query('select ring_key_id from posthorn.ring_keys');
  expect(rows).toEqual([{ ring_key_id: currentId }]);
});
