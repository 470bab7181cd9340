import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import type { Browser, Page } from '../helpers/browser.ts';
import { signIn } from '../helpers/oauth.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner } from '../helpers/posthorn.ts';

const posthorn = await startPosthorn();
afterAll(posthorn.close);
const url = posthorn.pods[0]!.url;

let owner: TestOwner;
let browser: Browser;
let one: TestAgent;
let other: TestAgent;
beforeEach(async () => {
  owner = await posthorn.owner('Ada');
  browser = await signIn(owner, url);
  [one, other] = [await owner.agent('one'), await owner.agent('other')];
});

/** Sends a form of the page that is at a path, as it would stand there. */
async function send(path: string, fields: Record<string, string>, headers: Record<string, string> = {}): Promise<Page> {
  const { text } = await browser.open('/owner');
  const token = /name="form_token" value="([^"]+)"/.exec(text)![1]!;
  const form = { status: 200, headers: new Headers(), url: `${url}/owner`, text: `<form action="${path}"></form>` };
  return await browser.submit(form, { form_token: token, ...fields }, headers);
}

async function request(): Promise<string> {
  const words = { body: 'x', purpose: 'To test', idempotency_key: newKey() };
  return (await one.send({ recipient_agent_id: other.id, ...words })).body.proposal_id;
}

/** Every row of the owner, to see that nothing changed. */
async function rows(): Promise<unknown> {
  const { rows } = await posthorn.database.admin.query(
    `select (select jsonb_agg(to_jsonb(p) order by p.proposal_id) from posthorn.proposals p) as proposals,
            (select jsonb_agg(to_jsonb(g) order by g.group_id) from posthorn.groups g) as groups,
            (select jsonb_agg(to_jsonb(a) order by a.agent_id) from posthorn.agents a) as agents,
            (select jsonb_agg(to_jsonb(c) - 'last_used_at' order by c.connection_id) from posthorn.connections c) as connections,
            (select jsonb_agg(to_jsonb(o) order by o.id) from posthorn.owners o) as owners`,
  );
  return rows[0];
}

describe('no other site can send', () => {
  test('any form of a page', async () => {
    const proposal = await request();
    const group = await owner.group([one, other]);
    const forms = [
      `/owner/requests/${proposal}/approve`,
      `/owner/requests/${proposal}/deny`,
      `/owner/requests/${proposal}/lift`,
      '/owner/groups',
      `/owner/groups/${group.id}/renew`,
      `/owner/groups/${group.id}/revoke`,
      `/owner/agents/${one.id}/revoke`,
      `/owner/agents/${one.id}/restore`,
      '/owner/agents/automatic-approval',
      '/owner/settings/automatic-approval',
      '/owner/settings/sensitive-content-check',
      '/owner/connections',
      `/owner/connections/${one.connectionId}/revoke`,
      `/owner/connections/${one.connectionId}/rotate`,
      '/owner/settings/delete-account',
      `/owner/webhooks/${one.id}/disable`,
      `/owner/webhooks/${one.id}/lift`,
    ];
    const fields = { name: 'x', purpose: 'x', value: 'on', label: 'x', scope: 'messaging', confirm: 'Ada' };
    const before = await rows();
    for (const form of forms) {
      expect((await send(form, { ...fields, form_token: 'guessed' })).status, form).toBe(403);
      const foreign = { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' };
      expect((await send(form, fields, foreign)).status, form).toBe(403);
      expect((await send(form, fields, { origin: 'null', 'sec-fetch-site': '' })).status, form).toBe(403);
    }
    expect(await rows()).toEqual(before);
  });
});

describe('a refusal', () => {
  test('is said on the page of the form, in words, and changes nothing', async () => {
    const before = await rows();
    const alone = await send('/owner/groups', { name: 'G', purpose: 'P', duration: '24', agent: one.id });
    expect(alone.status).toBe(400);
    expect(alone.text).toContain('Please look at this again: Agents.');
    const long = await send('/owner/groups', { name: 'x'.repeat(81), purpose: '', duration: 'other', hours: '' });
    expect(long.text).toContain('Please look at this again: Name, Purpose, How long, Agents.');
    expect(await rows()).toEqual(before);
  });

  test('says what a request is that was decided before', async () => {
    const proposal = await request();
    await send(`/owner/requests/${proposal}/deny`, {});
    const late = await send(`/owner/requests/${proposal}/approve`, {});
    expect(late).toMatchObject({ status: 409 });
    expect(late.text).toContain('This was decided before: it is denied.');
  });

  test('of what is another owner’s reads like that of what is not there', async () => {
    const stranger = await posthorn.owner('Eve');
    const [theirs, friend] = [await stranger.agent('theirs'), await stranger.agent('friend')];
    const group = await stranger.group([theirs, friend]);
    const before = await rows();
    for (const path of [
      `/owner/groups/${group.id}/revoke`,
      `/owner/agents/${theirs.id}/revoke`,
      `/owner/connections/${theirs.connectionId}/revoke`,
      `/owner/connections/${theirs.connectionId}/rotate`,
    ])
      expect((await send(path, {})).status, path).toBe(404);
    expect(await rows()).toEqual(before);
    for (const path of ['/owner', '/owner/agents', '/owner/connections', '/owner/activity'])
      expect((await browser.open(path)).text, path).not.toContain(theirs.id);
  });
});

describe('a form', () => {
  test('approves with another name, purpose and any number of hours', async () => {
    const proposal = await request();
    const edited = { name: ' New name ', purpose: 'New\r\npurpose', duration: 'other', hours: '5' };
    expect((await send(`/owner/requests/${proposal}/approve`, edited)).url).toBe(`${url}/owner?said=approved`);
    const { rows: groups } = await posthorn.database.admin.query(
      `select name, purpose, round(extract(epoch from expires_at - approved_at) / 3600)::int as hours
         from posthorn.groups where group_id = (select group_id from posthorn.proposals where proposal_id = $1)`,
      [proposal],
    );
    expect(groups).toEqual([{ name: 'New name', purpose: 'New\npurpose', hours: 5 }]);
  });

  test('deletes the account for its label alone, and signs out', async () => {
    const wrong = await send('/owner/settings/delete-account', { confirm: 'ada' });
    expect(wrong.text).toContain('Nothing was deleted.');
    const right = await send('/owner/settings/delete-account', { confirm: 'Ada' });
    expect(right.text).toContain('Your account is gone.');
    expect((await browser.open('/owner')).text).toContain('posthorn owner link');
    expect((await one.receive()).status).toBe(401);
  });

  test('gives an agent back what was revoked, and a connection nothing', async () => {
    await send(`/owner/agents/${one.id}/revoke`, {});
    expect((await one.receive()).status).toBe(403);
    await send(`/owner/agents/${one.id}/restore`, {});
    expect((await one.receive()).status).toBe(200);
    await send(`/owner/connections/${one.connectionId}/revoke`, {});
    expect((await one.receive()).status).toBe(401);
  });
});

test('a webhook is stopped and used again', async () => {
  const { status } = await one.call('PUT', '/webhook', {
    agent_id: one.id,
    url: 'https://hooks.example.com/secret-path',
  });
  expect(status).toBe(200);
  const before = await browser.open('/owner/agents');
  expect(before.text).toContain('Webhook at <strong>hooks.example.com</strong>');
  expect(before.text).not.toContain('secret-path');
  const [, id] = /action="\/owner\/webhooks\/([^/]+)\/disable"/.exec(before.text)!;
  expect((await send(`/owner/webhooks/${id}/disable`, {})).text).toContain('Stopped by you');
  expect((await send(`/owner/webhooks/${id}/lift`, {})).text).toContain('Works');
  const { json } = await browser.call('GET', '/owner/v1/webhooks');
  expect(json).toMatchObject({ webhooks: [{ id, agent_id: one.id, url_host: 'hooks.example.com', status: 'active' }] });
});

describe('a page', () => {
  test('is answered in full only if something changed', async () => {
    const first = await browser.open('/owner/agents');
    const version = { 'if-none-match': first.headers.get('etag')! };
    expect((await browser.open('/owner/agents', version)).status).toBe(304);
    await owner.agent('third');
    expect((await browser.open('/owner/agents', version)).status).toBe(200);
  });

  test('of the log goes on where the one before ended', async () => {
    for (let act = 0; act < 60; act++)
      await send('/owner/settings/automatic-approval', { value: act % 2 ? 'off' : 'on' });
    const first = await browser.open('/owner/activity');
    const older = /href="(\/owner\/activity\?before=[^"]+)"/.exec(first.text)![1]!;
    const second = await browser.open(older);
    const entries = ({ text }: Page) => [...text.matchAll(/id="act-([^"]+)"/g)].map(([, id]) => id);
    expect(entries(first)).toHaveLength(50);
    expect(entries(second).length).toBeGreaterThan(10);
    expect(entries(first).filter((id) => entries(second).includes(id))).toEqual([]);
    expect((await browser.open('/owner/activity?before=x')).status).toBe(400);
  });

  test('that nobody knows is not there', async () => {
    expect((await browser.open('/owner/connect/nobody')).status).toBe(404);
    expect((await browser.open('/owner/assets/style.old.css')).status).toBe(404);
  });
});
