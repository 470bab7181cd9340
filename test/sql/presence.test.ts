import { beforeEach, expect, test } from 'vitest';
import { makeId } from '../../src/crypto/ids.ts';
import { agentStatus, openStream, renewStreams } from '../../src/db/functions.ts';
import { createWorld, type World } from '../helpers/world.ts';

let world: World;
beforeEach(async () => {
  world = await createWorld();
});

const podId = makeId();

async function reader() {
  const owner = await world.makeOwner();
  const [agent] = await owner.agents(1);
  const { credential, id } = agent!;
  const open = () => {
    const streamId = makeId();
    return openStream(world.app, { credential, streamId, podId, agentIds: [id] }).then(() => streamId);
  };
  const isPresent = async () =>
    (await agentStatus(world.app, { credential, agentId: id }))[0]!.presenceKind === 'events';
  const renew = (streamId: string) =>
    renewStreams(world.app, { credentials: [credential], streamIds: [streamId], written: [true], epoch: 1 });
  return { open, isPresent, renew };
}

test('whoever listens is present for 45 seconds after the last renewal, though its pod was killed', async () => {
  const { open, isPresent, renew } = await reader();
  const stream = await open();
  await world.clock.advance('30 seconds');
  await renew(stream);
  await world.clock.advance('44 seconds');
  expect(await isPresent()).toBe(true);
  await world.clock.advance('1 second');
  expect(await isPresent()).toBe(false);
});

test('streams of a killed pod hold their slots until their leases lapse', async () => {
  const { open } = await reader();
  for (let slot = 0; slot < 8; slot++) await open();
  await expect(open()).rejects.toThrow('stream_limit');
  await world.clock.advance('29 seconds');
  await expect(open()).rejects.toThrow('stream_limit');
  await world.clock.advance('16 seconds');
  await open();
});
