import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { denyProposal, revokeAgent, revokeConnection, revokeGroup } from '../../src/db/functions.ts';
import { encodeCursor } from '../../src/operations/fields.ts';
import type { Browser } from '../helpers/browser.ts';
import { signIn } from '../helpers/oauth.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

const LISTS = ['proposals', 'groups', 'agents', 'connections', 'webhooks'] as const;
type List = (typeof LISTS)[number];

interface Row {
  id: string;
  state?: string;
  revoked_at?: string | null;
}

let posthorn: TestPosthorn;
let owner: TestOwner;
let browser: Browser;
let agents: TestAgent[];

beforeAll(async () => {
  posthorn = await startPosthorn();
  const { url } = posthorn.pods[0]!;
  owner = await posthorn.owner();
  browser = await signIn(owner, url);
  agents = await Promise.all(Array.from({ length: 8 }, (_, index) => owner.agent(`agent ${index}`)));
  for (const agent of agents.slice(0, 6)) {
    const webhook = { agent_id: agent.id, url: 'https://hooks.example.com/x' };
    expect((await agent.call('PUT', '/webhook', webhook)).status).toBeLessThan(300);
  }
  for (let index = 0; index < 6; index++) {
    const [from, to] = [agents[index % 3]!, agents[3 + (index % 2)]!];
    const asked = await from.send({ recipient_agent_id: to.id, body: 'x', purpose: 'Y', idempotency_key: newKey() });
    if (index % 2 === 0)
      await owner.act((db, credential) => denyProposal(db, { credential, proposalId: asked.body.proposal_id }));
    const group = await owner.group([agents[5]!, agents[6]!]);
    if (index % 3 === 0) await owner.act((db, credential) => revokeGroup(db, { credential, groupId: group.id }));
    const { connectionId } = await owner.token();
    if (index % 2 === 0) await owner.act((db, credential) => revokeConnection(db, { credential, connectionId }));
  }
  for (const agentId of [agents[7]!.id, agents[2]!.id])
    await owner.act((db, credential) => revokeAgent(db, { credential, agentId }));
});
afterAll(() => posthorn.close());

async function get(list: List, query: Record<string, string | number> = {}) {
  const { status, json } = await browser.call('GET', `/owner/v1/${list}?${new URLSearchParams(query as never)}`);
  const body = json as Record<string, unknown>;
  return { status, body, rows: body[list] as Row[], next: body.next_cursor as string | null };
}

/** Every page of a list, one after the other. */
async function readAll(list: List, limit: number): Promise<Row[][]> {
  const pages: Row[][] = [];
  for (let after: string | null | undefined; after !== null; ) {
    const page = await get(list, { limit, ...(after === undefined ? {} : { after }) });
    expect(page.status).toBe(200);
    pages.push(page.rows);
    after = page.next;
    expect(pages.length).toBeLessThan(100);
  }
  return pages;
}

const isCurrent = ({ state, revoked_at }: Row) =>
  state === undefined ? revoked_at === null || revoked_at === undefined : ['pending', 'active'].includes(state);
const idsOf = (rows: Row[]) => rows.map(({ id }) => id);

describe.each(LISTS)('%s', (list) => {
  test('are read page by page, whatever the size, as they are read at once', async () => {
    const whole = await get(list);
    expect(whole.next).toBeNull();
    expect(whole.rows.length).toBeGreaterThan(4);
    for (const limit of [1, 2, 3, whole.rows.length]) {
      const pages = await readAll(list, limit);
      expect(pages.flat()).toEqual(whole.rows);
      for (const page of pages.slice(0, -1)) expect(page).toHaveLength(limit);
    }
  });

  test('begin with what is current, the oldest first, and go on with what is past, the latest first', async () => {
    const { rows } = await get(list);
    const current = idsOf(rows.filter(isCurrent));
    const past = idsOf(rows.filter((row) => !isCurrent(row)));
    if (list !== 'webhooks') expect(past.length).toBeGreaterThan(1);
    expect(idsOf(rows)).toEqual([...current.toSorted(), ...past.toSorted().toReversed()]);
  });

  test('refuse a cursor of another list, one that is broken, and a page of no size', async () => {
    const other = LISTS.find((each) => each !== list)!;
    const { next } = await get(other, { limit: 1 });
    for (const after of [next!, 'rubbish', encodeCursor(`owner_${list}`, 'past x'), encodeCursor(`owner_${list}`, '')])
      expect(await get(list, { after })).toMatchObject({ status: 400, body: { error: 'invalid_cursor' } });
    for (const limit of [0, 101, 'x'])
      expect(await get(list, { limit })).toMatchObject({ status: 400, body: { error: 'invalid_request' } });
  });

  test('show nothing of another owner, whosever cursor it is', async () => {
    const stranger = await signIn(await posthorn.owner(), posthorn.pods[0]!.url);
    const { next, rows } = await get(list, { limit: 2 });
    for (const query of ['', `?after=${next}`]) {
      const { json } = await stranger.call('GET', `/owner/v1/${list}${query}`);
      const theirs = idsOf((json as Record<string, Row[]>)[list]!);
      expect(theirs.filter((id) => idsOf(rows).includes(id))).toEqual([]);
      expect(theirs.length).toBeLessThanOrEqual(list === 'connections' ? 1 : 0);
    }
  });
});

test('what ends between two pages is on one of them, and nothing else is lost by it', async () => {
  const made = [];
  for (let index = 0; index < 4; index++) made.push(await owner.group([agents[0]!, agents[1]!]));
  const whole = idsOf((await get('groups')).rows);
  const first = await get('groups', { limit: 3 });
  // the last that was seen, so that its place is not among the active ones any more, and one still to come
  for (const groupId of [first.rows.at(-1)!.id, made[2]!.id])
    await owner.act((db, credential) => revokeGroup(db, { credential, groupId }));
  const seen = idsOf(first.rows);
  for (let next = first.next; next !== null; ) {
    const page = await get('groups', { limit: 3, after: next });
    seen.push(...idsOf(page.rows));
    next = page.next;
  }
  expect(new Set(seen)).toEqual(new Set(whole));
});

test('a page of the web app shows 50 of what is past, with links that work without a script', async () => {
  const revoked: string[] = [];
  for (let index = 0; index < 101; index++) {
    const { connectionId } = await owner.token();
    await owner.act((db, credential) => revokeConnection(db, { credential, connectionId }));
    revoked.push(connectionId);
  }
  const shown: string[] = [];
  let link: string | undefined = '/owner/connections';
  for (let pages = 0; link !== undefined; pages++) {
    expect(pages).toBeLessThan(4);
    const { text, status } = await browser.open(link);
    expect(status).toBe(200);
    const ended = text.slice(text.indexOf('<details id="ended"'));
    const here = [...ended.matchAll(/id="connection-([^"]+)"/g)].map(([, id]) => id!);
    expect(here.length).toBeLessThanOrEqual(50);
    shown.push(...here);
    link = /href="([^"]+)">Older</.exec(ended)?.[1];
  }
  expect(shown).toEqual([...new Set(shown)]);
  expect(shown.slice(0, 101)).toEqual(revoked.toReversed());
  expect((await browser.open('/owner/connections?before=x')).status).toBe(400);
});
