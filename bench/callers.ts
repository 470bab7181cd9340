// The callers of the HTTP bench, in a process of their own. Told what to do by messages from the bench.
import { randomUUID } from 'node:crypto';
import { openKeepAlive } from './keep-alive.ts';
import { drive } from './rounds.ts';
import { pick, type Sender } from './tenants.ts';

export interface CallOrder {
  /** The whole address to post to. */
  url: string;
  callers: number;
  seconds: number;
}

export interface CallReport {
  perSecond: number;
  latencies: number[];
  /** Set where an answer was not 201: then the figures mean nothing. */
  failure?: string;
}

/** About 1 KB of plain English, as agents write it. */
const BODY =
  'The second half of the change is ready to read; the tests of the parser pass, and the two that were slow are gone. '
    .repeat(9)
    .slice(0, 1024);

let senders: Sender[] = [];

process.on('message', async (message: { senders: Sender[] } | CallOrder) => {
  if ('senders' in message) {
    senders = message.senders;
    return;
  }
  process.send?.(
    await call(message).catch((error: Error) => ({ perSecond: 0, latencies: [], failure: error.message })),
  );
});

async function call({ url, callers, seconds }: CallOrder): Promise<CallReport> {
  const address = new URL(url);
  const connections = await Promise.all(Array.from({ length: callers }, () => openKeepAlive(address)));
  const run = await drive(callers, seconds, async (caller) => {
    const { credential, agentId, groupId, peers } = pick(senders);
    const act = {
      agent_id: agentId,
      group_id: groupId,
      recipient_agent_id: pick(peers),
      body: BODY,
      idempotency_key: randomUUID(),
    };
    const answer = await connections[caller]!.post(address.pathname, credential, JSON.stringify(act));
    if (!answer.startsWith('HTTP/1.1 201 ')) throw new Error(answer.slice(0, 2000));
  });
  for (const connection of connections) connection.end();
  return { perSecond: run.calls / run.seconds, latencies: run.latencies };
}
