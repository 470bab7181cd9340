import naughtyStrings from 'big-list-of-naughty-strings/blns.json' with { type: 'json' };
import { afterAll, beforeAll, expect, test } from 'vitest';
import { changeOwnerSettings, setLimit } from '../../src/db/functions.ts';
import { line, paragraph } from '../../src/operations/fields.ts';
import { ask } from '../helpers/answers.ts';
import type { Browser } from '../helpers/browser.ts';
import { signIn } from '../helpers/oauth.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';
import { askMcp, expectJsonRpc } from './json-rpc.ts';
import { endCalls } from './raw-call.ts';
import { expectRefusal } from './refusal.ts';
import { patience } from './runs.ts';

// Text that other systems stumbled over: it comes back byte for byte by every door, or its field is refused by name.

const STRINGS = [
  ...new Set([...naughtyStrings, '\u202e', '\u2066\u2069', '\u3164', '\t', '\n \n', 'a\u202eb', '\0', '\ud800']),
];

let posthorn: TestPosthorn;
let url: string;
let owner: TestOwner;
let browser: Browser;
let reader: TestAgent;
let writer: TestAgent;

beforeAll(async () => {
  posthorn = await startPosthorn();
  url = posthorn.pods[0]!.url;
  for (const name of [
    'conversation_posts',
    'group_posts_per_minute',
    'inbox_messages',
    'agents_per_owner',
    'active_groups_per_owner',
  ])
    await setLimit(posthorn.database.as('posthorn_admin'), { name, value: 100_000 });
  owner = await posthorn.owner();
  await owner.act((db, credential) => changeOwnerSettings(db, { credential, sensitiveContentCheck: false }));
  browser = await signIn(owner, url);
  [reader, writer] = [await owner.agent('reader'), await owner.agent('writer')];
  await owner.group([reader, writer]);
});
afterAll(async () => {
  endCalls();
  await posthorn.close();
});

const settings = () => ({ POSTHORN_URL: url, POSTHORN_TOKEN: reader.token, POSTHORN_AGENT_ID: reader.id });

// biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
async function callTool(name: string, input: object): Promise<any> {
  const params = { name, arguments: { agent_id: reader.id, ...input } };
  const answer = await askMcp(url, reader.token, '2025-11-25', { id: 1, method: 'tools/call', params });
  return expectJsonRpc(answer, 1).result.structuredContent;
}

/** All pages of a list by one door. */
// biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
async function pages(next: (after?: string) => Promise<any>, list: string): Promise<any[]> {
  const found = [];
  for (let after: string | undefined; ; ) {
    const page = await next(after);
    found.push(...page[list]);
    if (page.next_cursor === null) return found;
    after = page.next_cursor;
  }
}

const query = (after?: string) => `?agent_id=${reader.id}${after === undefined ? '' : `&after=${after}`}`;
const more = (after?: string) => (after === undefined ? [] : ['--after', after]);

test(
  'labels',
  async () => {
    const accepted = new Map<string, string>();
    for (const [index, label] of STRINGS.entries()) {
      const answer = await writer.call('POST', '/agents', { label, runtime: 'other', installation: `n-${index}` });
      expect(answer.status === 200, JSON.stringify(label)).toBe(line(64).safeParse(label).success);
      if (answer.status === 200) accepted.set(answer.body.id, label);
      else expect([expectRefusal(answer.body), answer.body.fields]).toEqual(['invalid_request', ['label']]);
    }
    expect(accepted.size).toBeGreaterThan(300);
    const doors = {
      HTTP: await pages(async (after) => (await reader.call('GET', `/agents${query(after)}`)).body, 'agents'),
      MCP: await pages((after) => callTool('list_agents', { after }), 'agents'),
      'command line': await pages((after) => ask(['messages', 'list', ...more(after)], settings()), 'agents'),
      owner: ((await browser.call('GET', '/owner/v1/agents')).json as { agents: object[] }).agents,
    };
    for (const [door, agents] of Object.entries(doors)) {
      const labels = new Map(agents.map(({ id, label }) => [id, label]));
      for (const [id, label] of accepted) expect(labels.get(id), door).toBe(label);
    }
    const { text } = await browser.open('/owner/agents');
    expect(text).not.toMatch(/<script>alert|<img src=x|<svg>/i);
  },
  patience(60_000),
);

test(
  'bodies',
  async () => {
    const accepted: string[] = [];
    for (const body of STRINGS) {
      const answer = await writer.send({ recipient_agent_id: reader.id, body, idempotency_key: newKey() });
      const isText = body.length > 0 && body.isWellFormed() && !body.includes('\0');
      expect(answer.status, JSON.stringify(body)).toBe(isText ? 201 : 400);
      if (isText) accepted.push(body);
      else expect([expectRefusal(answer.body), answer.body.fields]).toEqual(['invalid_request', ['body']]);
    }
    const doors = {
      HTTP: await pages(async (after) => (await reader.receive({ after, limit: 100 })).body, 'messages'),
      MCP: await pages((after) => callTool('receive_messages', { after, limit: 100 }), 'messages'),
      'command line': await pages(
        (after) => ask(['messages', 'receive', '--limit', '100', ...more(after)], settings()),
        'messages',
      ),
    };
    for (const [door, messages] of Object.entries(doors))
      expect(
        messages.map(({ body }) => body),
        door,
      ).toEqual(accepted);
  },
  patience(60_000),
);

test(
  'names, purposes and boundaries of collaborations',
  async () => {
    const accepted = new Map<string, object>();
    const rules = { name: line(80), purpose: paragraph(500), project_boundary: line(500) };
    for (const text of STRINGS) {
      const given = { name: text, purpose: text, project_boundary: text };
      const answer = await browser.call('POST', '/owner/v1/groups', { ...given, agent_ids: [reader.id, writer.id] });
      const refused = Object.entries(rules).flatMap(([field, rule]) => (rule.safeParse(text).success ? [] : [field]));
      const body = answer.json as { id: string; fields?: string[] };
      if (answer.status === 201) accepted.set(body.id, given);
      else expectRefusal(body);
      expect(body.fields ?? [], JSON.stringify(text)).toEqual(refused);
    }
    const doors = {
      HTTP: await pages(async (after) => (await reader.call('GET', `/groups${query(after)}`)).body, 'groups'),
      'command line': await pages((after) => ask(['messages', 'groups', ...more(after)], settings()), 'groups'),
      owner: ((await browser.call('GET', '/owner/v1/groups')).json as { groups: object[] }).groups,
    };
    for (const [door, groups] of Object.entries(doors)) {
      const found = new Map(groups.map((group) => [group.id, group]));
      for (const [id, given] of accepted) expect(found.get(id), door).toMatchObject(given);
    }
  },
  patience(60_000),
);

test(
  'slugs and keys',
  async () => {
    const lone = await owner.agent('lone');
    const rules: [string, RegExp, (text: string) => ReturnType<TestAgent['call']>][] = [
      [
        'runtime',
        /^[a-z][a-z0-9_-]{0,39}$/,
        (runtime) => writer.call('POST', '/agents', { label: 'x', runtime, installation: 'r' }),
      ],
      [
        'installation',
        /^[A-Za-z0-9._-]{1,64}$/,
        (installation) => writer.call('POST', '/agents', { label: 'x', runtime: 'x', installation }),
      ],
      [
        'idempotency_key',
        /^[ -~]{1,128}$/,
        (key) => lone.send({ recipient_agent_id: lone.id, body: 'x', idempotency_key: key }),
      ],
    ];
    for (const text of STRINGS) {
      for (const [field, rule, call] of rules) {
        const answer = await call(text);
        // a message to oneself gets as far as its key is one, and is stored by nobody
        if (rule.test(text)) expect(answer.body.fields ?? [], JSON.stringify(text)).not.toContain(field);
        else
          expect([expectRefusal(answer.body), answer.body.fields], JSON.stringify(text)).toEqual([
            'invalid_request',
            [field],
          ]);
      }
    }
  },
  patience(60_000),
);
