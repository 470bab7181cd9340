// The callers of the conversation bench, in a process of their own: each pair of agents writes, reads, acknowledges and
// answers, again and again, ours over HTTP or MCP and the peer by its library's calls.
import { randomUUID } from 'node:crypto';
import { PgBoss } from 'pg-boss';
import type { CallReport } from './callers.ts';
import { bodyOf, openKeepAlive } from './keep-alive.ts';
import { drive } from './rounds.ts';
import type { Sender } from './tenants.ts';

export interface ConversationOrder {
  by: keyof typeof OPENERS;
  /** Of our pod, or of the peer's database. */
  url: string;
  callers: number;
  seconds: number;
}

/** Two agents that share a collaboration. Whoever answered writes first the next time, so that no inbox fills up. */
type Pair = [Sender, Sender];

/** The four steps of one conversation. */
type Converse = (from: Sender, to: Sender) => Promise<void>;

interface Callers {
  converse: Converse[];
  end(): Promise<void>;
}

const PAGE = 20;
const BODY = 'The second half of the change is ready to read; the tests of the parser pass. '.repeat(14).slice(0, 1024);

let pairs: Pair[] = [];

process.on('message', async (message: { senders: Sender[] } | ConversationOrder) => {
  if ('senders' in message) {
    pairs = pairUp(message.senders);
    return;
  }
  process.send?.(
    await call(message).catch((error: Error) => ({ perSecond: 0, latencies: [], failure: error.message })),
  );
});

/** The first two of each group. */
function pairUp(senders: Sender[]): Pair[] {
  const groups = Map.groupBy(senders, ({ groupId }) => groupId);
  return [...groups.values()].map(([first, second]) => [first!, second!]);
}

async function call({ by, url, callers, seconds }: ConversationOrder): Promise<CallReport> {
  const { converse, end } = await OPENERS[by](url, callers);
  try {
    const run = await drive(callers, seconds, async (caller) => {
      const [from, to] = pairs[caller]!;
      await converse[caller]!(from, to);
      pairs[caller] = [to, from];
    });
    return { perSecond: run.calls / run.seconds, latencies: run.latencies };
  } finally {
    await end();
  }
}

const OPENERS = {
  http: (url: string, callers: number) => openOurs(url, callers, callHttp),
  mcp: (url: string, callers: number) => openOurs(url, callers, callMcp),
  'pg-boss': openPgBoss,
};

interface Page {
  messages: { id: string; conversation_id: string }[];
}

type Act = 'send' | 'receive' | 'ack';
type Post = Awaited<ReturnType<typeof openKeepAlive>>['post'];
/** Does one of our acts. @returns what it answered */
type CallOurs = (post: Post, act: Act, credential: string, input: object) => Promise<unknown>;

async function openOurs(url: string, callers: number, ask: CallOurs): Promise<Callers> {
  const connections = await Promise.all(Array.from({ length: callers }, () => openKeepAlive(new URL(url))));
  return {
    converse: connections.map(({ post }) => async (from, to) => {
      const send = (by: Sender, where: object) =>
        ask(post, 'send', by.credential, {
          agent_id: by.agentId,
          ...where,
          body: BODY,
          idempotency_key: randomUUID(),
        });
      await send(from, { group_id: from.groupId, recipient_agent_id: to.agentId });
      const page = (await ask(post, 'receive', to.credential, { agent_id: to.agentId, limit: PAGE })) as Page;
      await ask(post, 'ack', to.credential, {
        agent_id: to.agentId,
        message_ids: page.messages.map(({ id }) => id),
      });
      const last = page.messages.at(-1)!;
      await send(to, { conversation_id: last.conversation_id, reply_to: last.id });
    }),
    async end() {
      for (const connection of connections) connection.end();
    },
  };
}

async function callHttp(post: Post, act: Act, credential: string, input: object): Promise<unknown> {
  const answer = await post(`/messaging/v1/${act}`, credential, JSON.stringify(input));
  if (!answer.startsWith('HTTP/1.1 20')) throw new Error(answer.slice(0, 2000));
  return bodyOf(answer);
}

const TOOLS: Record<Act, string> = { send: 'send_message', receive: 'receive_messages', ack: 'acknowledge_messages' };
const REVISION = '2026-07-28';
const META = {
  'io.modelcontextprotocol/protocolVersion': REVISION,
  'io.modelcontextprotocol/clientCapabilities': {},
  'io.modelcontextprotocol/clientInfo': { name: 'bench', version: '1' },
};

async function callMcp(post: Post, act: Act, credential: string, input: object): Promise<unknown> {
  const name = TOOLS[act];
  const request = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name, arguments: input, _meta: META } };
  const answer = await post('/mcp', credential, JSON.stringify(request), {
    Accept: 'application/json, text/event-stream',
    'MCP-Protocol-Version': REVISION,
    'Mcp-Method': 'tools/call',
    'Mcp-Name': name,
  });
  const { result } = bodyOf<{ result?: { isError?: boolean; structuredContent: unknown } }>(answer);
  if (!result || result.isError) throw new Error(answer.slice(0, 2000));
  return result.structuredContent;
}

/** A queue for each agent. Its reader takes whatever waits and completes it. */
async function openPgBoss(url: string, callers: number): Promise<Callers> {
  const boss = new PgBoss({ connectionString: url, max: 16, supervise: false, schedule: false });
  boss.on('error', () => {});
  await boss.start();
  for (const agent of pairs.slice(0, callers).flat()) await boss.createQueue(agent.agentId);
  const converse: Converse = async (from, to) => {
    const mail = (by: Sender) => ({ sender_agent_id: by.agentId, body: BODY });
    await boss.send(to.agentId, mail(from));
    const jobs = await boss.fetch(to.agentId, { batchSize: PAGE });
    if (jobs.length === 0) throw new Error('nothing was fetched');
    await boss.complete(
      to.agentId,
      jobs.map(({ id }) => id),
    );
    await boss.send(from.agentId, { ...mail(to), reply_to: jobs.at(-1)!.id });
  };
  return {
    converse: Array.from({ length: callers }, () => converse),
    end: () => boss.stop({ graceful: false }),
  };
}
