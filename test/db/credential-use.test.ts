import { afterEach, expect, test, vi } from 'vitest';
import { createCredentialUse } from '../../src/db/credential-use.ts';
import { listConnections } from '../../src/db/functions.ts';
import { createWorld, type Owner } from '../helpers/world.ts';

const world = await createWorld();
const { app, clock } = world;

afterEach(() => {
  vi.useRealTimers();
});

/** When each connection of the owner was used last, and how many days it has left. */
async function uses(owner: Owner): Promise<Record<string, { isUsed: boolean; daysLeft: number | null }>> {
  const [rows, now] = [await owner.act((db, credential) => listConnections(db, { credential })), await clock.now()];
  return Object.fromEntries(
    rows.map(({ id, lastUsedAt, expiresAt }) => [
      id,
      {
        isUsed: lastUsedAt !== null,
        daysLeft: expiresAt && Math.round((expiresAt.getTime() - now.getTime()) / 86_400_000),
      },
    ]),
  );
}

test('what was used is written down once a minute, and moves on the 90 days of a device, not the end of a token', async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  const owner = await world.makeOwner();
  const device = await owner.connect({ kind: 'device' });
  const idle = await owner.connect({ kind: 'device' });
  const token = await owner.connect({ expiresAt: new Date(Date.now() + 90 * 86_400_000) });
  await clock.advance('30 days');

  const failures: unknown[] = [];
  const use = createCredentialUse(app, (error) => failures.push(error));
  for (const { credential } of [device, token, device]) use.note(credential);
  use.note(Buffer.alloc(32)); // nobody's
  expect((await uses(owner))[device.id]).toEqual({ isUsed: false, daysLeft: 60 });
  vi.advanceTimersByTime(60_000);
  await use.close();
  expect(failures).toEqual([]);
  expect(await uses(owner)).toMatchObject({
    [device.id]: { isUsed: true, daysLeft: 90 },
    [idle.id]: { isUsed: false, daysLeft: 60 },
    [token.id]: { isUsed: true, daysLeft: 60 },
  });
});

test('what was used last is written down when the pod closes', async () => {
  const owner = await world.makeOwner();
  const token = await owner.connect();
  const use = createCredentialUse(app, (error) => expect.fail(String(error)));
  use.note(token.credential);
  await use.close();
  expect((await uses(owner))[token.id]).toEqual({ isUsed: true, daysLeft: null });
});

test('a batch that cannot be written is told and forgotten, and the next one is written', async () => {
  const owner = await world.makeOwner();
  const token = await owner.connect();
  const failures: unknown[] = [];
  let isBroken = true;
  const use = createCredentialUse(
    { query: (text, values) => (isBroken ? Promise.reject(new Error('away')) : app.query(text, values)) },
    (error) => failures.push(error),
  );
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  use.note(token.credential);
  await use.close();
  expect(failures).toHaveLength(1);
  isBroken = false;
  use.note(token.credential);
  await use.close();
  expect((await uses(owner))[token.id]).toMatchObject({ isUsed: true });
});
