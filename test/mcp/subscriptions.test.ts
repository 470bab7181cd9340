import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import { revokeConnection } from '../../src/db/functions.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

// `subscriptions/listen` of the 2026-07-28 revision, by the SDK's own client: the same event log by another door.
let posthorn: TestPosthorn;
let owner: TestOwner;
let a: TestAgent;
let b: TestAgent;

beforeAll(async () => {
  posthorn = await startPosthorn({ pods: 2 });
  owner = await posthorn.owner();
  [a, b] = [await owner.agent('a'), await owner.agent('b')];
  await owner.group([a, b]);
});
afterAll(() => posthorn.close());

async function connect(agent: { token: string }, pod = 0) {
  const client = new Client({ name: 'posthorn-test', version: '1' }, { versionNegotiation: { mode: 'auto' } });
  const transport = new StreamableHTTPClientTransport(new URL(`${posthorn.pods[pod]!.url}/mcp`), {
    requestInit: { headers: { authorization: `Bearer ${agent.token}` } },
  });
  await client.connect(transport);
  const updates: string[] = [];
  let tell = () => {};
  client.setNotificationHandler('notifications/resources/updated', ({ params }) => {
    updates.push(params.uri);
    tell();
  });
  const heard = (count: number) =>
    new Promise<string[]>((resolve) => {
      tell = () => updates.length >= count && resolve(updates);
      tell();
    });
  return { client, heard };
}

const inboxOf = ({ id }: TestAgent) => `posthorn://inbox/${id}`;
const say = () => a.send({ recipient_agent_id: b.id, body: 'words', idempotency_key: newKey() }, 1);

test('an inbox is a resource that tells of mail and can be read', async () => {
  const { client, heard } = await connect(b);
  const uri = inboxOf(b);
  const subscription = await client.listen({
    resourceSubscriptions: [uri, 'posthorn://unknown'],
    toolsListChanged: true,
  });
  expect(subscription.honoredFilter).toEqual({ resourceSubscriptions: [uri] });
  const sent = await say();
  expect(await heard(1)).toEqual([uri]);
  const { contents } = await client.readResource({ uri });
  expect(JSON.parse((contents[0] as { text: string }).text)).toEqual({
    agent_id: b.id,
    pending_count: 1,
    message_ids: [sent.body.id],
    proposal_ids: [],
  });
  expect((await b.call('GET', `/status?agent_id=${b.id}`)).body.presence_kind).toBe('events');
  const [template] = (await client.listResourceTemplates()).resourceTemplates;
  expect(template!.uriTemplate).toBe('posthorn://inbox/{agent_id}');
  expect((await client.listResources()).resources.map((resource) => resource.uri)).toEqual(['posthorn://inbox']);
  await subscription.close();
  await client.close();
  await expect.poll(streamCount).toBe(0);

  // whoever comes back is told that mail waits
  const again = await connect(b, 1);
  await again.client.listen({ resourceSubscriptions: [uri] });
  expect(await again.heard(1)).toEqual([uri]);
  await again.client.close();
  await expect.poll(streamCount).toBe(0);
});

const streamCount = async () => (await posthorn.database.admin.query('select from posthorn.streams')).rowCount;

test('a subscription that names no inbox is promised nothing and ends at once', async () => {
  const { client } = await connect(b);
  for (const uri of ['x', '', `${inboxOf(b)}/`, 'posthorn://inbox/']) {
    const subscription = await client.listen({ resourceSubscriptions: [uri] });
    expect(subscription.honoredFilter).toEqual({});
    expect(await subscription.closed).toBe('graceful');
  }
  await client.close();
  expect(await streamCount()).toBe(0);
});

test('every address by which an inbox was named is told', async () => {
  const agent = await owner.agent('d');
  const child = makeCredential('child');
  await posthorn.database.admin.query(
    `insert into posthorn.connections (owner_id, kind, label, credential_hash, scopes, parent_connection_id, agent_id, created_at)
     select owner_id, 'child', 'child', $1, '{messaging}', connection_id, $2, now() from posthorn.connections where connection_id = $3`,
    [child.hash, agent.id, agent.connectionId],
  );
  await owner.group([a, agent]);
  const uris = ['posthorn://inbox', inboxOf(agent), inboxOf({ ...agent, id: agent.id.toUpperCase() })];
  const { client, heard } = await connect(child);
  const subscription = await client.listen({ resourceSubscriptions: uris });
  expect(subscription.honoredFilter).toEqual({ resourceSubscriptions: uris });
  await a.send({ recipient_agent_id: agent.id, body: 'words', idempotency_key: newKey() });
  expect([...(await heard(3))].sort()).toEqual([...uris].sort());
  await client.close();
  // its parent acts as no one agent, so that an inbox of its own is not promised
  const parent = await connect(agent);
  await expect(parent.client.listen({ resourceSubscriptions: uris })).rejects.toThrow(/agent_required/);
  await parent.client.close();
});

test('more inboxes than a stream has agents are refused by name', async () => {
  const { client } = await connect(b);
  const uris = Array.from({ length: 101 }, () => `posthorn://inbox/${makeId()}`);
  await expect(client.listen({ resourceSubscriptions: uris })).rejects.toThrow(/notifications\.resourceSubscriptions/);
  await client.close();
});

test("another agent's inbox can be neither heard nor read", async () => {
  const { client } = await connect(a);
  await expect(client.listen({ resourceSubscriptions: [inboxOf(b)] })).rejects.toThrow();
  await expect(client.readResource({ uri: inboxOf(b) })).rejects.toThrow();
  await expect(client.readResource({ uri: 'posthorn://unknown' })).rejects.toThrow();
  await client.close();
});

test('a subscription ends when its connection is revoked, and when the pod stops', async () => {
  const c = await owner.agent('c');
  const revoked = await connect(c);
  const ending = await revoked.client.listen({ resourceSubscriptions: [inboxOf(c)] });
  await owner.act((db, credential) => revokeConnection(db, { credential, connectionId: c.connectionId }));
  expect(await ending.closed).toBe('graceful');
  const stopped = await connect(b, 1);
  const draining = await stopped.client.listen({ resourceSubscriptions: [inboxOf(b)] });
  await posthorn.pods.pop()!.close();
  expect(await draining.closed).toBe('graceful');
});
