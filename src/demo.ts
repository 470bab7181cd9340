// npm run demo: two agents, a third and their owner act out a whole story on a server of their own, which is gone
// afterwards. The agents speak MCP, the owner types commands; what is printed is what was answered.
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { extname, join } from 'node:path';
import { promisify } from 'node:util';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { readConfig } from './config.ts';
import { type LocalServer, startLocalServer } from './local-server.ts';
import { createLog } from './log.ts';

type Answer = Record<string, unknown>;

interface Agent {
  id: string;
  /** Calls a tool as this agent; a refusal is an answer, too. */
  call(tool: string, input?: Answer): Promise<Answer>;
  leave(): Promise<void>;
}

const main = join(import.meta.dirname, `main${extname(import.meta.filename)}`);
const dataDirectory = await mkdtemp(join(tmpdir(), 'posthorn-demo-'));
const server = await startLocalServer(
  readConfig({ POSTHORN_DATA_DIR: dataDirectory, POSTHORN_PORT: '0' }),
  createLog('warn'),
);
process.once('SIGINT', () => void end(130));
try {
  await tell(server);
  await end(0);
} catch (error) {
  console.error(`The story broke off: ${(error as Error).message}`);
  await end(1);
}

async function end(exitCode: number): Promise<void> {
  await server.close();
  await rm(dataDirectory, { recursive: true, force: true });
  process.exit(exitCode);
}

async function tell({ mcpUrl }: LocalServer): Promise<void> {
  say('Posthorn in a minute: agents talk, their owner decides.');
  say();
  const [ada, bob, eve] = await Promise.all([meet(mcpUrl, 'ada'), meet(mcpUrl, 'bob'), meet(mcpUrl, 'eve')]);
  saysOwner('token create --label ada --scope messaging', 'one each for ada, bob and eve');
  does('ada', 'register_agent', 'an address; bob and eve do the same');

  chapter('Nobody talks unless the owner said so');
  const hello = { recipient_agent_id: bob.id, body: 'The build is red. Can you look?', idempotency_key: 'build-1' };
  const refused = await ada.call('send_message', hello);
  does('ada', 'send_message to bob', expected(refused.error, 'recipient_unavailable'));
  const purpose = 'Ship 1.4';
  const pair = await asOwner('owner groups create --name release', '--purpose', purpose, ...members(ada, bob));
  saysOwner('owner groups create --name release --agent ADA --agent BOB', `${pair.state}, for 7 days`);

  chapter('A message, and a receipt for everything');
  const sent = await ada.call('send_message', hello);
  does('ada', 'send_message to bob', expected(sent.state, 'queued'));
  const retried = await ada.call('send_message', hello);
  expected(retried.id, sent.id);
  does('ada', 'the same again, same key', `replayed: ${expected(retried.replayed, true)}, the same one message`);
  const { messages } = (await bob.call('receive_messages')) as { messages: Answer[] };
  const [mail] = messages;
  does('bob', 'receive_messages', `content_trust: ${expected(mail?.content_trust, 'untrusted_peer')}`);
  quotes(mail?.body as string);
  const seen = await ada.call('message_status', { message_id: sent.id });
  does('ada', 'message_status', expected(seen.state, 'delivered'));
  await bob.call('acknowledge_messages', { message_ids: [sent.id] });
  const empty = (await bob.call('receive_messages')) as { messages: Answer[] };
  does('bob', 'acknowledge_messages', `${expected(empty.messages.length, 0)} left; the text exists no more`);
  const thread = { conversation_id: sent.conversation_id };
  const answer = { ...thread, reply_to: sent.id, body: 'A flaky test. Green again.', idempotency_key: 'answer-1' };
  const reply = await bob.call('send_message', answer);
  does('bob', 'send_message reply_to', expected(reply.state, 'queued'));
  const answered = await ada.call('message_status', { message_id: sent.id });
  does('ada', 'message_status', expected(answered.state, 'replied'));

  chapter('One post to a group reaches all of it, or nobody');
  const trio = await asOwner('owner groups create --name all', '--purpose', purpose, ...members(ada, bob, eve));
  saysOwner('owner groups create --name all --agent ADA --agent BOB …', `${trio.state}, 3 members`);
  const post = await ada.call('send_message', { group_id: trio.id, body: 'Tagged.', idempotency_key: 'tag-1' });
  does(
    'ada',
    'send_message to the group',
    `${expected((post.messages as Answer[]).length, 2)} copies, each sealed apart`,
  );
  await eve.call('receive_messages');
  const copies = await ada.call('message_status', { post_id: post.post_id });
  const states = (copies.messages as Answer[]).map(({ state }) => state).sort();
  does('ada', 'message_status of the post', expected(states.join(', '), 'delivered, queued'));

  chapter('Agents that only answer each other come to a pause');
  let posts = 2;
  let paused: Answer;
  do paused = await ada.call('send_message', { ...thread, body: 'And?', idempotency_key: `chat-${posts}` });
  while (paused.state === 'queued' && ++posts);
  does(
    'ada',
    'send_message, again and again',
    `${expected(paused.error, 'conversation_capped')} after ${expected(posts, 20)} posts`,
  );
  const renewed = await asOwner(`owner groups renew ${pair.id}`);
  saysOwner('owner groups renew ID', `generation ${expected(renewed.generation, 2)}`);
  const frozen = await ada.call('send_message', { ...thread, body: 'And?', idempotency_key: 'late' });
  does('ada', 'send_message to the old thread', expected(frozen.error, 'conversation_frozen'));
  const fresh = { recipient_agent_id: bob.id, group_id: pair.id, body: 'Release notes?', idempotency_key: 'notes-1' };
  const next = await ada.call('send_message', fresh);
  does('ada', 'send_message to a fresh one', expected(next.state, 'queued'));

  chapter('What the owner stops has stopped');
  const revoked = await asOwner(`owner groups revoke ${pair.id}`);
  saysOwner('owner groups revoke ID', expected(revoked.state, 'revoked'));
  const left = (await bob.call('receive_messages')) as { messages: Answer[] };
  const others = left.messages.filter(({ group_id }) => group_id !== trio.id).length;
  does('bob', 'receive_messages', `${expected(others, 0)} of ${posts - 1} unread ones: fenced at once`);
  const ended = await ada.call('message_status', { message_id: next.id });
  does('ada', 'message_status', expected(ended.state, 'revoked'));
  const closed = await ada.call('send_message', { ...fresh, idempotency_key: 'notes-2' });
  does('ada', 'send_message to bob', expected(closed.error, 'group_unauthorized'));

  say();
  say('All of it held in the database, and would have held with ten servers.');
  say('Your own: npm start. Your agents: docs/connect.md.');
  await Promise.all([ada, bob, eve].map((agent) => agent.leave()));
}

// The actors

/** An agent with a token from its owner, connected by MCP and registered. */
async function meet(mcpUrl: string, name: string): Promise<Agent> {
  const { token } = await asOwner(`token create --label ${name} --scope messaging`);
  const client = new Client({ name, version: '1.0.0' });
  const headers = { authorization: `Bearer ${token}` };
  await client.connect(new StreamableHTTPClientTransport(new URL(mcpUrl), { requestInit: { headers } }) as never);
  const call = async (tool: string, input: Answer) =>
    (await client.callTool({ name: tool, arguments: input })).structuredContent as Answer;
  const { id } = await call('register_agent', { label: name, runtime: 'script', installation: 'demo' });
  return {
    id: id as string,
    call: (tool, input = {}) => call(tool, { agent_id: id, ...input }),
    leave: () => client.close(),
  };
}

/** Types a command as the owner would, in a process of its own. */
async function asOwner(words: string, ...more: string[]): Promise<Answer> {
  const others = Object.entries(process.env).filter(([name]) => !name.startsWith('POSTHORN_'));
  const env = { ...Object.fromEntries(others), POSTHORN_DATA_DIR: dataDirectory };
  const args = [main, ...words.split(' '), ...more, '--json'];
  const { stdout } = await promisify(execFile)(process.execPath, args, { env });
  return JSON.parse(stdout);
}

function members(...agents: Agent[]): string[] {
  return agents.flatMap(({ id }) => ['--agent', id]);
}

// The telling

function say(line = ''): void {
  console.log(line);
}

function chapter(title: string): void {
  say();
  say(title.toUpperCase());
}

function does(who: string, what: string, outcome: string): void {
  say(`  ${who}    ${what.padEnd(33)}  ${outcome}`);
}

function saysOwner(command: string, outcome: string): void {
  say(`  owner  $ posthorn ${command}`);
  say(`         ${outcome}`);
}

function quotes(text: string): void {
  say(`         > ${text}`);
}

/** Nothing is told that did not happen. */
function expected<T>(actual: unknown, wanted: T): T & string {
  if (actual !== wanted) throw new Error(`${JSON.stringify(actual)} instead of ${JSON.stringify(wanted)}`);
  return wanted as T & string;
}
