import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hashCredential, makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import * as functions from '../../src/db/functions.ts';
import { createPool } from '../../src/db/pool.ts';
import { OPERATIONS } from '../../src/operations/index.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';
import { connectors, type ToolClient } from '../mcp/clients.ts';

// Only the person decides: an agent tries by every door, and with SQL of its own as the pods' role.
let posthorn: TestPosthorn;
let owner: TestOwner;
let asker: TestAgent;
let peer: TestAgent;
let outsider: TestAgent;
let proposalId: string;
let heldId: string;
let groupId: string;
let app: ReturnType<typeof createPool>;

const BODY = 'the words that wait';
const credential = () => hashCredential(asker.token);

beforeAll(async () => {
  posthorn = await startPosthorn({ pods: 2 });
  app = createPool({ url: posthorn.database.url, role: 'posthorn_app', max: 4 });
  owner = await posthorn.owner();
  [asker, peer, outsider] = [await owner.agent('asker'), await owner.agent('peer'), await owner.agent('outsider')];
  groupId = (await owner.group([peer, outsider], 20)).id;
  const held = await asker.send(letter());
  [proposalId, heldId] = [held.body.proposal_id, held.body.id];
  expect(held.body.state).toBe('held');
});
afterAll(async () => {
  expect((await posthorn.database.admin.query('select * from ops.invariants')).rows).toEqual([]);
  await app.end();
  await posthorn.close();
});

const letter = (fields: object = {}) => ({
  recipient_agent_id: peer.id,
  purpose: 'To ask',
  body: BODY,
  idempotency_key: newKey(),
  ...fields,
});

/** All that is stored of decisions: nothing of it may change by what an agent does. */
async function decisions(): Promise<unknown> {
  const { rows } = await posthorn.database.admin.query(`
    select (select jsonb_agg(p order by p.proposal_id) from posthorn.proposals p) as proposals,
           (select jsonb_agg(g order by g.group_id) from posthorn.groups g) as groups,
           (select jsonb_agg(m order by m.group_id, m.agent_id) from posthorn.members m) as members,
           (select jsonb_agg(o order by o.owner_id) from posthorn.owners o) as owners,
           (select count(*) from posthorn.messages m where m.state <> 'held') as not_held`);
  return rows[0];
}

async function unchanged(work: () => Promise<unknown>): Promise<void> {
  const before = await decisions();
  await work();
  expect(await decisions()).toEqual(before);
}

describe('over HTTP', () => {
  test.each([
    ['POST', () => `/proposals/${proposalId}/approve`],
    ['POST', () => `/proposals/${proposalId}/deny`],
    ['POST', () => `/proposals/${proposalId}/lift`],
    ['PATCH', () => `/proposals/${proposalId}`],
    ['PUT', () => `/proposals/${proposalId}`],
    ['DELETE', () => `/proposals/${proposalId}`],
    ['POST', () => '/groups'],
    ['PATCH', () => `/groups/${groupId}`],
    ['DELETE', () => `/groups/${groupId}`],
    ['POST', () => `/groups/${groupId}/renew`],
    ['POST', () => `/groups/${groupId}/members`],
    ['PUT', () => '/settings'],
    ['GET', () => '/export'],
    ['DELETE', () => '/account'],
  ])('%s %s is not for an agent', async (method, path) => {
    await unchanged(async () => {
      // the owner's calls take a session of the browser alone
      for (const [base, refusals] of [
        ['', [404, 405]],
        ['/../../owner/v1', [403, 404, 405]],
      ] as const) {
        const answer = await asker.call(
          method,
          `${base}${path()}`,
          method === 'GET' ? undefined : { agent_id: asker.id },
        );
        expect(refusals, `${base}${path()}`).toContain(answer.status);
      }
    });
  });

  test('what may be asked for decides nothing', async () => {
    const acts = OPERATIONS.map(({ name }) => name);
    expect(acts.filter((name) => /approve|deny|decide|lift|renew|export|member|account|setting/.test(name))).toEqual(
      [],
    );
  });

  test('a request cannot be made with its answer', async () => {
    await unchanged(async () => {
      for (const extra of [
        { state: 'approved' },
        { approved: true },
        { is_automatic: true },
        { auto_approved: true },
        { agent_ids: [asker.id, outsider.id] },
        { expires_at: '2099-01-01T00:00:00Z' },
      ]) {
        const body = { agent_id: asker.id, peer_agent_ids: [outsider.id], purpose: 'x', ...extra };
        expect((await asker.call('POST', '/proposals', body)).body.error, JSON.stringify(extra)).toBe(
          'invalid_request',
        );
        expect((await asker.send(letter(extra))).body.error, JSON.stringify(extra)).toBe('invalid_request');
      }
    });
  });

  test('nobody asks themselves into a group of others', async () => {
    await unchanged(async () => {
      const renew = await asker.call('POST', '/proposals', { agent_id: asker.id, kind: 'renew', group_id: groupId });
      expect(renew.body.error).toBe('not_found');
      expect(
        (await asker.send(letter({ recipient_agent_id: undefined, purpose: undefined, group_id: groupId }))).body.error,
      ).toBe('not_found');
      expect((await asker.send(letter({ group_id: groupId }))).body.error).toBe('not_found');
    });
  });

  test('what waits is read by nobody, and its receipt has no words', async () => {
    for (const pod of [0, 1]) {
      for (const agent of [asker, peer, outsider]) expect((await agent.receive({}, pod)).body.messages).toEqual([]);
      const receipt = await asker.call('GET', `/messages/${heldId}?agent_id=${asker.id}`, undefined, pod);
      expect(receipt.body).toMatchObject({ id: heldId, state: 'held' });
      const told = [
        receipt,
        await peer.call('GET', `/messages/${heldId}?agent_id=${peer.id}`, undefined, pod),
        await peer.call('GET', `/proposals/${proposalId}?agent_id=${peer.id}`, undefined, pod),
        await peer.call('GET', `/agents?agent_id=${peer.id}`, undefined, pod),
        await peer.ack([heldId], {}, pod),
      ];
      for (const { body } of told) expect(JSON.stringify(body)).not.toContain(BODY);
      expect(told[2]!.body, 'nor words of the proposer').toMatchObject({
        name: null,
        purpose: null,
        held_messages: null,
      });
    }
    const other = await posthorn.owner().then((one) => one.agent('of another owner'));
    for (const id of [heldId, proposalId]) {
      expect((await outsider.call('GET', `/messages/${id}?agent_id=${outsider.id}`)).status).toBe(404);
      expect((await outsider.call('GET', `/proposals/${id}?agent_id=${outsider.id}`)).status).toBe(404);
      expect((await other.call('GET', `/messages/${id}?agent_id=${other.id}`)).status).toBe(404);
      expect((await other.call('GET', `/proposals/${id}?agent_id=${other.id}`)).status).toBe(404);
    }
  });
});

describe.each(Object.keys(connectors))('over MCP, %s', (name) => {
  let client: ToolClient;

  beforeAll(async () => {
    client = await connectors[name]!(`${posthorn.pods[1]!.url}/mcp`, asker.token);
  });
  afterAll(() => client.close());

  test.each([
    'approve_proposal',
    'deny_proposal',
    'lift_denial',
    'renew_group',
    'create_group',
    'change_owner_settings',
    'export_account',
    'delete_account',
  ])('there is no tool %s', async (tool) => {
    await unchanged(async () => {
      const answer = await client
        .call(tool, { proposal_id: proposalId })
        .catch((error: Error) => ({ isError: true, error }));
      expect(answer.isError).toBe(true);
    });
  });

  test('tools that an agent has approve nothing and read nothing that waits', async () => {
    await unchanged(async () => {
      const status = await client.call('proposal_status', { agent_id: asker.id, proposal_id: proposalId });
      expect(status.structuredContent).toMatchObject({ state: 'pending' });
      const extra = await client
        .call('propose_collaboration', {
          agent_id: asker.id,
          peer_agent_ids: [outsider.id],
          purpose: 'x',
          state: 'approved',
        })
        .catch(() => ({ isError: true }));
      expect(extra.isError).toBe(true);
      const received = await client.call('receive_messages', { agent_id: asker.id });
      expect(received.structuredContent.messages).toEqual([]);
      const receipt = await client.call('message_status', { agent_id: asker.id, message_id: heldId });
      expect(JSON.stringify(receipt)).not.toContain(BODY);
    });
  });
});

describe("with SQL as the pods' role", () => {
  /** Functions of posthorn_api, with what each calls, directly or not. */
  async function reach(): Promise<Map<string, Set<string>>> {
    const { rows } = await posthorn.database.admin.query(`
      select format('%s.%s', n.nspname, p.proname) as name, p.prosrc as text
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname in ('posthorn_api', 'posthorn_impl')`);
    const texts = new Map<string, string>(rows.map(({ name, text }) => [name, text]));
    const calls = (name: string) => [...texts.keys()].filter((other) => texts.get(name)!.includes(`${other}(`));
    const reached = new Map<string, Set<string>>();
    for (const name of texts.keys()) {
      const found = new Set<string>([name]);
      for (const one of found) for (const other of calls(one)) found.add(other);
      reached.set(name, found);
    }
    return reached;
  }

  test('whatever decides asks for the owner, but for the switch that the owner set', async () => {
    const reached = await reach();
    const deciding = ['apply_approval', 'close_groups', 'follow_expiry', 'insert_group', 'supersede_proposals'];
    const free = [...reached].filter(
      ([name, found]) =>
        name.startsWith('posthorn_api.') &&
        !found.has('posthorn_impl.identify_owner') &&
        deciding.some((one) => found.has(`posthorn_impl.${one}`)),
    );
    expect(free.map(([name]) => name).toSorted()).toEqual([
      // by ask_owner
      'posthorn_api.propose_collaboration',
      // an agent that goes ends the groups that would be left with one
      'posthorn_api.revoke_own_agent',
      // by ask_owner
      'posthorn_api.send_messages',
    ]);
  });

  test('every function that asks for the owner refuses a service, a device and a child', async () => {
    const { rows } = await posthorn.database.admin.query(`
      select p.oid::regproc::text || '($1' || coalesce((select string_agg(', null::' || t::regtype, '' order by n) from unnest(p.proargtypes[1:]) with ordinality x(t, n)), '') || ')' as call
        from pg_proc p where p.pronamespace = 'posthorn_api'::regnamespace and p.prosrc like '%identify_owner(p_credential)%'`);
    expect(rows.length).toBeGreaterThan(18);
    const device = await owner.token({ kind: 'device' });
    const agent = await functions.registerAgent(app, {
      credential: hashCredential(device.token),
      installation: 'x',
      label: 'x',
      runtime: 'other',
    });
    const child = makeCredential('child').hash;
    await functions.mintChildConnection(app, {
      credential: hashCredential(device.token),
      agentId: agent.id,
      label: 'child',
      credentialHash: child,
    });
    await unchanged(async () => {
      for (const { call } of rows) {
        for (const presented of [credential(), hashCredential(device.token), child]) {
          await expect(app.query(`select * from ${call}`, [presented]), call).rejects.toMatchObject({ code: 'MHPER' });
        }
      }
    });
  });

  /** The arguments of a send that the pod planned, and what it would say instead. */
  async function forge(change: Partial<Parameters<typeof functions.sendMessages>[1]>): Promise<string> {
    const ciphertext = Buffer.alloc(40, 7);
    const [row] = await functions.sendMessages(app, {
      credentials: [credential()],
      agentIds: [asker.id],
      keys: [newKey()],
      fingerprints: [Buffer.alloc(32)],
      recipientAgentIds: [peer.id],
      groupIds: [null],
      conversationIds: [null],
      repliesTo: [null],
      purposes: ['x'],
      names: [null],
      durationsHours: [null],
      sensitive: [false],
      plannedGroupIds: [null],
      plannedGenerations: [null],
      holdIds: [makeId()],
      postIds: [null],
      copyItems: [1],
      copyRecipients: [peer.id],
      copyMessageIds: [makeId()],
      copyCiphertexts: [ciphertext],
      ...change,
    });
    return row!.outcome;
  }

  test.each<[string, () => Partial<Parameters<typeof functions.sendMessages>[1]>]>([
    ['claims that nothing needs to be held', () => ({ holdIds: [null] })],
    ['claims a group of others', () => ({ holdIds: [null], plannedGroupIds: [groupId], plannedGenerations: [1] })],
    ['holds for a group of others', () => ({ plannedGroupIds: [groupId] })],
    ['seals for somebody else than it asks for', () => ({ copyRecipients: [outsider.id] })],
    [
      'seals for somebody else besides',
      () => ({
        copyItems: [1, 1],
        copyRecipients: [peer.id, outsider.id],
        copyMessageIds: [makeId(), makeId()],
        copyCiphertexts: [Buffer.alloc(40), Buffer.alloc(40)],
      }),
    ],
    ['seals for nobody', () => ({ copyItems: [], copyRecipients: [], copyMessageIds: [], copyCiphertexts: [] })],
    ['calls it a post', () => ({ postIds: [makeId()] })],
  ])('a pod that %s is sent back to plan', async (_, change) => {
    await unchanged(async () => {
      expect(await forge(change())).toBe('stale_plan');
    });
  });

  test('and one that plans honestly holds', async () => {
    await unchanged(async () => {
      expect(await forge({})).toBe('held');
    });
  });

  test('sealed mail that waits, was denied, expired or fenced is answered to nobody', async () => {
    const admin = posthorn.database.admin;
    const ciphers = await admin.query('select ciphertext from posthorn.held_bodies');
    expect(ciphers.rowCount).toBeGreaterThan(0);
    const inboxes = async () =>
      (
        await Promise.all(
          [asker, peer, outsider].map(({ token, id }) =>
            functions.readInbox(app, { credential: hashCredential(token), agentId: id, after: 0, limit: 100 }),
          ),
        )
      ).flat();
    expect(await inboxes()).toEqual([]);

    // of each way that a message ends, one that could be read before
    const session = makeCredential('service').hash;
    await admin.query(
      `insert into posthorn.connections (owner_id, kind, label, credential_hash, scopes, created_at)
       select o.owner_id, 'session', 'session', $2, array['owner'], posthorn_impl.clock() from posthorn.owners o where o.id = $1`,
      [owner.id, session],
    );
    const late = await asker.send(letter({ recipient_agent_id: outsider.id }));
    await functions.denyProposal(app, { credential: session, proposalId: late.body.proposal_id });
    await functions.approveProposal(app, { credential: session, proposalId });
    expect((await inboxes()).length).toBeGreaterThan(0);
    const [first, ...rest] = await inboxes();
    await peer.ack([first!.id]);
    expect((await inboxes()).map(({ id }) => id)).toEqual(rest.map(({ id }) => id));
    await admin.query(`update posthorn_test.clock set shift = shift + interval '24 hours'`);
    expect(await inboxes(), 'expired by the clock').toEqual([]);
    expect((await peer.receive()).body.messages).toEqual([]);
  });
});
