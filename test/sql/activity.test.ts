import { afterAll, describe, expect, test } from 'vitest';
import * as functions from '../../src/db/functions.ts';
import { advance, createWorld, expectInvariants, type Owner, readInbox, send } from '../helpers/world.ts';

const world = await createWorld();
const { app } = world;
afterAll(() => expectInvariants(world));

const history = async ({ session }: Owner, hours = 4) =>
  await functions.mailHistory(app, { credential: session, hours });

describe('the history of mail', () => {
  test('counts what was sent in each hour, what waited at its end, and how long the oldest did', async () => {
    const owner = await world.makeOwner();
    const [anna, bert] = await owner.agents(2);
    await owner.group([anna!, bert!]);
    await world.clock.stop();
    for (let message = 0; message < 2; message++) await send(world, { from: anna!, to: bert! });
    await world.clock.advance('90 minutes');
    await send(world, { from: bert!, to: anna! });
    await world.clock.advance('90 minutes');
    const [first] = await readInbox(world, bert!);
    await advance(world, bert!, 'acknowledged', [first!.id]);
    const rows = await history(owner);
    const now = await world.clock.now();
    await world.clock.go();
    // the points are an hour apart and the last is now: 4, 3, 2 and 1 hours ago
    expect(rows.map(({ sent }) => sent)).toEqual([0, 2, 0, 1, 0]);
    expect(rows.map(({ waiting }) => waiting)).toEqual([0, 2, 2, 3, 2]);
    expect(rows.map(({ oldestSeconds }) => oldestSeconds)).toEqual([0, 0, 3_600, 7_200, 10_800]);
    expect(rows.at(-1)!.at).toEqual(now);
  });

  test('counts what is held for the owner, and nothing that ended', async () => {
    const owner = await world.makeOwner();
    const [anna, bert] = await owner.agents(2);
    await send(world, { from: anna!, to: bert!, purpose: 'To test' });
    await world.clock.advance('1 hour');
    expect((await history(owner)).at(-1)).toMatchObject({ sent: 0, waiting: 1 });
    await world.clock.advance('24 hours');
    expect((await history(owner)).at(-1)).toMatchObject({ waiting: 0, oldestSeconds: 0 });
  });

  test('is of 1 to 168 hours', async () => {
    const owner = await world.makeOwner();
    expect(await history(owner, 0)).toHaveLength(2);
    expect(await history(owner, 1_000)).toHaveLength(169);
  });
});

describe('what became of requests', () => {
  test('is how far each message got, by the clock', async () => {
    const owner = await world.makeOwner();
    const [anna, bert] = await owner.agents(2);
    const ask = () => send(world, { from: anna!, to: bert!, purpose: 'To test' });
    const { detail } = await ask();
    for (let message = 0; message < 3; message++) await ask();
    const { proposal_id: proposalId } = detail as { proposal_id: string };
    await functions.approveProposal(app, { credential: owner.session, proposalId });
    const [first, second, third] = await readInbox(world, bert!);
    await advance(world, bert!, 'delivered', [first!.id]);
    await advance(world, bert!, 'acknowledged', [second!.id]);
    await send(world, { from: bert!, conversation: third!.conversationId, replyTo: third!.id });
    const progress = () => functions.requestProgress(app, { credential: owner.session, proposalIds: [proposalId] });
    const counts = { queued: 1, delivered: 1, acknowledged: 1, replied: 1, ended: 0 };
    expect(await progress()).toEqual([{ proposalId, mayBeLifted: false, ...counts }]);
    await world.clock.advance('25 hours');
    expect(await progress()).toMatchObject([{ queued: 0, delivered: 0, ended: 2 }]);
  });

  test('a denial can be lifted once, within 24 hours', async () => {
    const owner = await world.makeOwner();
    const [anna, bert, carl] = await owner.agents(3);
    const credential = owner.session;
    const denied = async (peer: typeof bert) => {
      const { detail } = await send(world, { from: anna!, to: peer!, purpose: 'To test' });
      const { proposal_id: proposalId } = detail as { proposal_id: string };
      await functions.denyProposal(app, { credential, proposalId });
      return proposalId;
    };
    const proposalIds = [await denied(bert), await denied(carl)];
    const may = async () =>
      (await functions.requestProgress(app, { credential, proposalIds })).map(({ mayBeLifted }) => mayBeLifted);
    expect(await may()).toEqual([true, true]);
    await functions.liftDenial(app, { credential, proposalId: proposalIds[0]! });
    expect(await may()).toEqual([false, true]);
    await world.clock.advance('24 hours');
    expect(await may()).toEqual([false, false]);
  });
});

test('the log has the latest first, in pages that neither repeat nor leave out', async () => {
  const owner = await world.makeOwner();
  const credential = owner.session;
  for (let act = 0; act < 7; act++) await owner.agent();
  const whole = await functions.listActs(app, { credential, limit: 200 });
  expect(whole.length).toBeGreaterThan(14);
  const pages: functions.ListActsRow[] = [];
  for (let before: string | undefined; ; before = pages.at(-1)!.entryId) {
    const page = await functions.listActs(app, { credential, before, limit: 4 });
    if (page.length === 0) break;
    pages.push(...page);
  }
  expect(pages).toEqual(whole);
  const times = whole.map(({ occurredAt }) => occurredAt.getTime());
  expect(times).toEqual(times.toSorted((one, other) => other - one));
});
