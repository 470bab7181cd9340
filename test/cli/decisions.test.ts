import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ask, askApart } from '../helpers/answers.ts';
import { runHere, type Settings } from '../helpers/command-line.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

let posthorn: TestPosthorn;
let folder: string;
let settings: Settings;

beforeAll(async () => {
  posthorn = await startPosthorn();
  folder = await mkdtemp(join(tmpdir(), 'posthorn-decisions-'));
  settings = {
    POSTHORN_DATABASE_URL: posthorn.database.url,
    POSTHORN_DATA_DIR: folder,
    POSTHORN_URL: posthorn.pods[0]!.url,
  };
});

afterAll(async () => {
  await posthorn.close();
  await rm(folder, { recursive: true });
});

async function strangers(label: string): Promise<{ owner: TestOwner; anna: TestAgent; bert: TestAgent }> {
  const owner = await posthorn.owner(label);
  return { owner, anna: await owner.agent('anna'), bert: await owner.agent('bert') };
}

const request = async (from: TestAgent, to: TestAgent, purpose = 'Review the change'): Promise<string> =>
  (await from.send({ recipient_agent_id: to.id, body: 'hello', purpose, idempotency_key: newKey() })).body.proposal_id;

const asAgent = (agent: TestAgent) => ({ ...settings, POSTHORN_TOKEN: agent.token, POSTHORN_AGENT_ID: agent.id });

test('a person reads who asks for what, changes it, and says yes', async () => {
  const { owner, anna, bert } = await strangers('reader');
  const purpose = 'Look at this\n\u001b[31mApproved.\u001b[0m';
  const id = await request(anna, bert, purpose);
  await request(anna, bert);

  const { stdout } = await runHere(['owner', 'proposals', '--owner', owner.id], settings);
  expect(stdout).toContain(
    'anna asks to talk with bert for 7 days:\n  > Look at this\n  > \\x1b[31mApproved.\\x1b[0m\n2 messages wait. Time left: 23 h.\n',
  );
  expect(stdout).toContain(id);
  const { proposals } = await ask(['owner', 'proposals', '--owner', owner.id], settings);
  expect(proposals).toMatchObject([
    { id, kind: 'new', state: 'pending', purpose, held_messages: 2, agent_ids: [anna.id, bert.id].sort() },
  ]);

  const approved = await ask(
    ['owner', 'approve', id, '--owner', owner.id, '--name', 'Reviews', '--purpose', 'Ours', '--hours', '36'],
    settings,
  );
  expect(approved).toMatchObject({ id, state: 'approved', name: 'Reviews', purpose: 'Ours', duration_hours: 36 });
  expect((await bert.receive()).body.messages).toHaveLength(2);
  expect(await ask(['owner', 'proposals', '--owner', owner.id], settings)).toEqual({ proposals: [] });
  const all = await runHere(['owner', 'proposals', '--all', '--owner', owner.id], settings);
  expect(all.stdout).toMatch(/^anna asks to talk with bert for 36 h:\n {2}> Ours\nApproved \d{4}-/);
});

test('of decisions made at once one wins, and the others hear which', async () => {
  const { owner, anna, bert } = await strangers('racer');
  const id = await request(anna, bert);
  const decisions = await Promise.all(
    ['approve', 'deny', 'approve'].map((word) => askApart(['owner', word, id, '--owner', owner.id], settings)),
  );
  const won = decisions.filter((decision) => decision.exit_code === undefined);
  expect(won).toHaveLength(1);
  const lost = decisions.filter((decision) => decision.exit_code !== undefined);
  for (const decision of lost)
    expect(decision).toMatchObject({ exit_code: 1, error: 'already_decided', state: won[0].state });
});

test('who was denied may ask again when the person lifts it', async () => {
  const { owner, anna, bert } = await strangers('lifter');
  const id = await request(anna, bert);
  expect(await ask(['owner', 'deny', id, '--owner', owner.id], settings)).toMatchObject({ state: 'denied' });
  const again = { recipient_agent_id: bert.id, body: 'again', purpose: 'please', idempotency_key: newKey() };
  expect((await anna.send(again)).body.error).toBe('recently_denied');
  expect(await ask(['owner', 'lift', id, '--owner', owner.id], settings)).toMatchObject({ id, state: 'denied' });
  expect((await anna.send(again)).body.state).toBe('held');
});

test('what is mistyped or unknown is refused before anything is decided', async () => {
  const { owner } = await strangers('typist');
  const decide = (...args: string[]) => ask(['owner', ...args, '--owner', owner.id], settings);
  const unknown = '019ad5a0-0000-7000-8000-000000000000';
  expect(await decide('approve', 'this')).toMatchObject({ error: 'invalid_request', fields: ['id'] });
  expect(await decide('approve', unknown, '--hours', '721')).toMatchObject({
    error: 'invalid_request',
    fields: ['hours'],
  });
  expect(await decide('deny')).toMatchObject({ error: 'usage', exit_code: 2 });
});

test('an agent asks and looks by its own commands, and can decide nothing', async () => {
  const { anna, bert } = await strangers('asker');
  const made = await ask(
    ['proposals', 'create', '--peer-agent-id', bert.id, '--name', 'Two', '--purpose', 'to talk'],
    asAgent(anna),
  );
  expect(made).toMatchObject({ kind: 'new', state: 'pending', name: 'Two' });
  expect(await ask(['proposals', 'status', made.id], asAgent(anna))).toMatchObject({
    id: made.id,
    purpose: 'to talk',
  });
  const { proposals } = await ask(['proposals', 'list'], asAgent(bert));
  expect(proposals, 'to the other it has no words yet').toMatchObject([{ id: made.id, name: null, purpose: null }]);
  const { stdout } = await runHere(['proposals', 'list'], asAgent(bert));
  expect(stdout).toContain(`${anna.id} asks to talk with ${bert.id}.\nTime left: 23 h.`);
  const { stderr, code } = await runHere(['proposals', 'approve', made.id], asAgent(anna));
  expect([code, stderr]).toEqual([2, expect.stringContaining('unknown command')]);
});

test('an account is exported whole, without bodies and credentials, and then deleted for good', async () => {
  const { owner, anna, bert } = await strangers('leaver');
  await owner.group([anna, bert]);
  await anna.send({ recipient_agent_id: bert.id, body: 'a body to keep', idempotency_key: newKey() });
  // more than the cursor hands over at once
  await posthorn.database.admin.query(
    `insert into posthorn.audit_entries (owner_id, act, subject_id, occurred_at)
     select o.owner_id, 'test', o.id, now() from posthorn.owners o cross join generate_series(1, 2500) where o.id = $1`,
    [owner.id],
  );
  const file = join(folder, 'export.jsonl');
  const { lines } = await ask(['owner', 'export', '--out', file, '--owner', owner.id], settings);
  const text = await readFile(file, 'utf8');
  const rows = text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(rows).toHaveLength(lines);
  expect((await stat(file)).mode & 0o777).toBe(0o600);
  expect(
    Object.fromEntries(
      Object.entries(Object.groupBy(rows, ({ kind }) => kind)).map(([kind, of]) => [kind, of!.length]),
    ),
  ).toMatchObject({ owners: 1, connections: 2, agents: 2, groups: 1, members: 2, conversations: 1, messages: 1 });
  expect(text).not.toMatch(/a body to keep|ciphertext|credential_hash|wrapped_key|fingerprint/);
  expect(await ask(['owner', 'export', '--out', file, '--owner', owner.id], settings)).toMatchObject({
    error: 'usage',
    exit_code: 2,
  });
  const piped = await runHere(['owner', 'export', '--owner', owner.id], settings);
  expect(piped.stdout.trimEnd().split('\n').length).toBe(lines);

  const remove = (...args: string[]) => ask(['owner', 'delete', '--owner', owner.id, ...args], settings);
  expect(await remove()).toMatchObject({ error: 'usage', exit_code: 2 });
  expect(await remove('--confirm', 'Leaver')).toMatchObject({ error: 'not_confirmed', exit_code: 1 });
  expect((await bert.receive()).body.messages).toHaveLength(1);
  const said = await runHere(['owner', 'delete', '--owner', owner.id, '--confirm', 'leaver'], settings);
  expect(said.code).toBe(0);
  expect(said.stderr).toContain('owner export --out FILE');
  expect((await bert.receive()).status).toBe(401);
  const { owners } = await ask(['owner', 'list'], settings);
  expect(owners.map(({ id }: { id: string }) => id)).not.toContain(owner.id);
  expect(await remove('--confirm', 'leaver')).toMatchObject({ error: 'not_found' });
  const left = await posthorn.database.admin.query(
    'select (select count(*) from posthorn.owner_keys k where k.owner_id = o.owner_id) as keys, (select count(*) from posthorn.bodies b where b.owner_id = o.owner_id) as bodies from posthorn.owners o where o.id = $1',
    [owner.id],
  );
  expect(left.rows).toEqual([{ keys: 0, bodies: 0 }]);
});
