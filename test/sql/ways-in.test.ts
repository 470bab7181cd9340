import { createHash, randomBytes } from 'node:crypto';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import * as functions from '../../src/db/functions.ts';
import { createWorld, expectInvariants, type Owner, refusal } from '../helpers/world.ts';

// What a pod's role can do with SQL of its own, having seen no answer of an authenticator and no ID token; and what
// holds when answers come at once.
const world = await createWorld();
const { app, clock, database } = world;
afterAll(() => expectInvariants(world));

let owner: Owner;
beforeEach(async () => {
  owner = await world.makeOwner();
  await clock.advance('16 minutes');
});

const sha256 = (data: Buffer | string) => createHash('sha256').update(data).digest();

async function makePasskey(credential = owner.session, signCount = 0) {
  const [challengeHash, handleHash, credentialId] = [randomBytes(32), randomBytes(32), randomBytes(32)];
  await functions.beginPasskey(app, { credential, challengeHash, handleHash });
  const made = await functions.addPasskey(app, {
    credential,
    challengeHash,
    credentialId,
    publicKey: randomBytes(77),
    signCount,
    label: 'Key',
  });
  return { id: made.id, handleHash, credentialId };
}

interface Begun {
  challengeHash: Buffer;
  browserHash: Buffer;
}

async function begin(purpose = 'use_passkey', bucket = 1): Promise<Begun> {
  const [challengeHash, browserHash] = [randomBytes(32), randomBytes(32)];
  expect(await functions.beginSignIn(app, { purpose, challengeHash, browserHash, bucket })).toBe(true);
  return { challengeHash, browserHash };
}

const SESSION = () => ({ sessionHash: randomBytes(32), label: 'Browser', bucket: 1 });

type Passkey = Awaited<ReturnType<typeof makePasskey>>;

const use = (
  { handleHash, credentialId }: Passkey,
  begun: Begun,
  changes: Partial<Parameters<typeof functions.usePasskey>[1]> = {},
) =>
  functions.usePasskey(app, {
    ...begun,
    handleHash,
    credentialId,
    isValid: true,
    signCount: 0,
    ...SESSION(),
    ...changes,
  });

describe('a passkey', () => {
  test('makes a session of its owner, and leaves who acted in the log', async () => {
    const passkey = await makePasskey();
    const session = SESSION();
    expect(await use(passkey, await begin(), session)).toBe('signed_in');
    const [signedIn] = await functions.sessionOwner(app, { credential: session.sessionHash });
    expect(signedIn).toMatchObject({ ownerId: owner.id });
    const acts = await functions.listActs(app, { credential: owner.session });
    const entry = acts.find(({ connectionId }) => connectionId === signedIn!.connectionId);
    expect(entry).toMatchObject({ act: 'passkey.use', subjectId: passkey.id, connectionId: signedIn!.connectionId });
  });

  test('is nobody without its handle, though its credential id and its owner be known', async () => {
    const passkey = await makePasskey();
    const other = await makePasskey((await world.makeOwner()).session);
    const guesses = [randomBytes(32), sha256(passkey.credentialId), sha256(owner.id), other.handleHash];
    for (const handleHash of guesses) expect(await use(passkey, await begin(), { handleHash })).toBe('not_found');
    expect(await use({ ...passkey, credentialId: other.credentialId }, await begin())).toBe('not_found');
    const [found] = await functions.findPasskey(app, {
      ...(await begin()),
      handleHash: randomBytes(32),
      credentialId: passkey.credentialId,
      bucket: 1,
    });
    expect(found).toEqual({ outcome: 'not_found', publicKey: null });
  });

  test('needs a challenge for signing in that its browser was given, has not used and is not late with', async () => {
    const passkey = await makePasskey();
    const [begun, other] = [await begin(), await begin()];
    expect(await use(passkey, { ...begun, browserHash: other.browserHash })).toBe('not_found');
    expect(await use(passkey, { ...begun, challengeHash: randomBytes(32) })).toBe('not_found');
    expect(await use(passkey, await begin('use_openid'))).toBe('not_found');
    expect(await use(passkey, begun)).toBe('signed_in');
    expect(await use(passkey, begun)).toBe('not_found');
    await functions.beginPasskey(app, {
      credential: owner.session,
      challengeHash: begun.challengeHash,
      handleHash: randomBytes(32),
    });
    expect(await use(passkey, { ...begun, browserHash: owner.session })).toBe('not_found');
    await clock.stop();
    const late = await begin();
    await clock.advance('4 minutes 59 seconds');
    expect(await functions.findPasskey(app, { ...late, ...passkey, bucket: 1 })).toMatchObject([{ outcome: 'found' }]);
    await clock.advance('1 second');
    expect(await functions.findPasskey(app, { ...late, ...passkey, bucket: 1 })).toMatchObject([
      { outcome: 'not_found' },
    ]);
    expect(await use(passkey, late)).toBe('not_found');
    await clock.go();
  });

  test('whose signature is not good signs nobody in, and uses the challenge up', async () => {
    const passkey = await makePasskey();
    const begun = await begin();
    expect(await use(passkey, begun, { isValid: false })).toBe('not_found');
    expect(await use(passkey, begun)).toBe('not_found');
    const nothing = await app.query(`select posthorn_api.use_passkey($1, $2, $3, $4, null, 0, $5, 'x', 1) as outcome`, [
      ...Object.values(await begin()),
      passkey.handleHash,
      passkey.credentialId,
      randomBytes(32),
    ]);
    expect(nothing.rows).toEqual([{ outcome: 'not_found' }]);
  });

  test('that counts is ahead of itself each time, of two at once once', async () => {
    const passkey = await makePasskey(owner.session, 3);
    const at = async (signCount: number) => use(passkey, await begin(), { signCount });
    expect([await at(3), await at(0), await at(4)]).toEqual(['not_found', 'not_found', 'signed_in']);
    const answers = await Promise.all(Array.from({ length: 6 }, () => at(5)));
    expect(answers.toSorted()).toEqual([...Array(5).fill('not_found'), 'signed_in']);
    const nothing = await app.query(
      `select posthorn_api.use_passkey($1, $2, $3, $4, true, null, $5, 'x', 1) as outcome`,
      [...Object.values(await begin()), passkey.handleHash, passkey.credentialId, randomBytes(32)],
    );
    expect(nothing.rows).toEqual([{ outcome: 'not_found' }]);
  });

  test('is worth nothing once it is removed, or its owner deleted', async () => {
    const passkey = await makePasskey();
    await functions.removePasskey(app, { credential: owner.session, passkeyId: passkey.id });
    expect(await use(passkey, await begin())).toBe('not_found');
    expect(
      await refusal(functions.removePasskey(app, { credential: owner.session, passkeyId: passkey.id })),
    ).toMatchObject({ code: 'not_found' });
    const leaving = await world.makeOwner();
    const last = await makePasskey(leaving.session);
    await functions.deleteAccount(app, { credential: leaving.session });
    expect(await use(last, await begin())).toBe('not_found');
  });

  test('is added by a person at a browser, and by nobody else', async () => {
    const service = await owner.connect();
    const hashes = { challengeHash: randomBytes(32), handleHash: randomBytes(32) };
    expect(await refusal(functions.beginPasskey(app, { credential: service.credential, ...hashes }))).toMatchObject({
      code: 'person_required',
    });
    expect(await refusal(functions.beginPasskey(app, { credential: randomBytes(32), ...hashes }))).toMatchObject({
      code: 'unauthorized',
    });
    for (const purpose of ['add_passkey', 'connect_openid', ''])
      expect(
        await refusal(
          functions.beginSignIn(app, {
            purpose,
            challengeHash: hashes.challengeHash,
            browserHash: owner.session,
            bucket: 1,
          }),
        ),
      ).toMatchObject({ code: 'invalid_request' });
  });

  test('is one of so many: of two at once before the limit one is refused', async () => {
    const passkey = await makePasskey();
    const begun = [];
    for (let time = 0; time < 2; time++) {
      const session = SESSION();
      await use(passkey, await begin(), session);
      const [credential, challengeHash] = [session.sessionHash, randomBytes(32)];
      await functions.beginPasskey(app, { credential, challengeHash, handleHash: randomBytes(32) });
      begun.push({ credential, challengeHash });
    }
    await world.setLimit('passkeys_per_owner', 2);
    const adding = begun.map((each) =>
      functions.addPasskey(app, {
        ...each,
        credentialId: randomBytes(32),
        publicKey: randomBytes(77),
        signCount: 0,
        label: 'Key',
      }),
    );
    const outcomes = await Promise.allSettled(adding);
    expect(outcomes.map(({ status }) => status).toSorted()).toEqual(['fulfilled', 'rejected']);
    expect(outcomes.find(({ status }) => status === 'rejected')).toMatchObject({ reason: { code: 'MHLIM' } });
    await world.setLimit('passkeys_per_owner', 20);
  });
});

describe('an account at the provider', () => {
  async function connect(subjectHash = randomBytes(32), credential = owner.session) {
    const stateHash = randomBytes(32);
    await functions.beginOpenidAccount(app, { credential, stateHash });
    const said = { issuer: 'https://login.example', label: 'ada' };
    return await functions.addOpenidAccount(app, { credential, stateHash, subjectHash, ...said });
  }

  const enter = async (subjectHash: Buffer, begun?: Begun) => {
    const { challengeHash: stateHash, browserHash } = begun ?? (await begin('use_openid'));
    return await functions.useOpenidAccount(app, { stateHash, browserHash, subjectHash, ...SESSION() });
  };

  test('signs in its owner, by its keyed hash alone', async () => {
    const subjectHash = randomBytes(32);
    await connect(subjectHash);
    expect(await enter(subjectHash)).toBe('signed_in');
    for (const guess of ['ada', 'https://login.example/ada', JSON.stringify(['https://login.example', 'ada'])])
      expect(await enter(sha256(guess))).toBe('not_found');
  });

  test('needs a state that its browser was given for signing in, once', async () => {
    const subjectHash = randomBytes(32);
    await connect(subjectHash);
    const begun = await begin('use_openid');
    expect(await enter(subjectHash, { ...begun, browserHash: randomBytes(32) })).toBe('expired');
    expect(await enter(subjectHash, await begin('use_passkey'))).toBe('expired');
    expect(await enter(subjectHash, begun)).toBe('signed_in');
    expect(await enter(subjectHash, begun)).toBe('expired');
  });

  test('is tied by the session that went for it, once, and to one owner', async () => {
    const subjectHash = randomBytes(32);
    await connect(subjectHash);
    const other = await world.makeOwner();
    expect(await refusal(connect(subjectHash, other.session))).toMatchObject({
      code: 'invalid_request',
      detail: { fields: ['account'] },
    });
    const given = { subjectHash: randomBytes(32), issuer: 'https://login.example', label: 'ada' };
    const stateHash = randomBytes(32);
    await functions.beginOpenidAccount(app, { credential: owner.session, stateHash });
    expect(
      await refusal(functions.addOpenidAccount(app, { credential: other.session, stateHash, ...given })),
    ).toMatchObject({ code: 'expired' });
    expect(await functions.addOpenidAccount(app, { credential: owner.session, stateHash, ...given })).toMatchObject({
      label: 'ada',
    });
    expect(
      await refusal(functions.addOpenidAccount(app, { credential: owner.session, stateHash, ...given })),
    ).toMatchObject({ code: 'expired' });
  });

  test('is worth nothing once it is untied', async () => {
    const subjectHash = randomBytes(32);
    const { id } = await connect(subjectHash);
    await functions.removeOpenidAccount(app, { credential: owner.session, accountId: id });
    expect(await enter(subjectHash)).toBe('not_found');
  });
});

test('what fails is counted by address, for either way, and what is begun too', async () => {
  const passkey = await makePasskey();
  for (let attempt = 0; attempt < 20; attempt++)
    expect(await use(passkey, await begin(), { handleHash: randomBytes(32) })).toBe('not_found');
  expect(await use(passkey, await begin())).toBe('rate_limited');
  expect(await functions.findPasskey(app, { ...(await begin()), ...passkey, bucket: 1 })).toMatchObject([
    { outcome: 'rate_limited', publicKey: null },
  ]);
  const { challengeHash: stateHash, browserHash } = await begin('use_openid');
  expect(
    await functions.useOpenidAccount(app, { stateHash, browserHash, subjectHash: randomBytes(32), ...SESSION() }),
  ).toBe('rate_limited');
  expect(await use(passkey, await begin(), { bucket: 2 })).toBe('signed_in');
  await world.setLimit('sign_ins_begun_per_hour', 1);
  await begin('use_passkey', 3);
  const again = { purpose: 'use_openid', challengeHash: randomBytes(32), browserHash: randomBytes(32), bucket: 3 };
  expect(await functions.beginSignIn(app, again)).toBe(false);
  await world.setLimit('sign_ins_begun_per_hour', 600);
});

test('a browser or session has one challenge for each purpose, and those that ended are removed', async () => {
  const count = async () =>
    (await database.admin.query('select count(*)::int as n from posthorn.challenges')).rows[0].n as number;
  const jobs = database.as('posthorn_jobs');
  await clock.advance('1 hour');
  await functions.deleteExpiredCredentials(jobs, { limit: 10_000 });
  expect(await count()).toBe(0);
  const browserHash = randomBytes(32);
  for (let time = 0; time < 3; time++)
    await functions.beginSignIn(app, {
      purpose: 'use_passkey',
      challengeHash: randomBytes(32),
      browserHash,
      bucket: 9,
    });
  expect(await count()).toBe(1);
  await functions.deleteExpiredCredentials(jobs, { limit: 10_000 });
  expect(await count()).toBe(1);
  await clock.advance('5 minutes');
  await functions.deleteExpiredCredentials(jobs, { limit: 10_000 });
  expect(await count()).toBe(0);
});
