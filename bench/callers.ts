// The callers of the HTTP bench, in a process of their own. Over bare sockets, since a full HTTP client costs more CPU
// than the server that it would measure. Told what to do by messages from the bench.
import { randomUUID } from 'node:crypto';
import { connect } from 'node:net';
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
  const connections = await Promise.all(Array.from({ length: callers }, () => openKeepAlive(new URL(url))));
  const run = await drive(callers, seconds, async (caller) => {
    const { credential, agentId, groupId, peers } = pick(senders);
    const act = {
      agent_id: agentId,
      group_id: groupId,
      recipient_agent_id: pick(peers),
      body: BODY,
      idempotency_key: randomUUID(),
    };
    const answer = await connections[caller]!.post(credential, JSON.stringify(act));
    if (!answer.startsWith('HTTP/1.1 201 ')) throw new Error(answer.slice(0, 2000));
  });
  for (const connection of connections) connection.end();
  return { perSecond: run.calls / run.seconds, latencies: run.latencies };
}

interface KeepAlive {
  /** @returns the answer with its head */
  post(credential: string, body: string): Promise<string>;
  end(): void;
}

function openKeepAlive({ hostname, port, pathname, host }: URL): Promise<KeepAlive> {
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), hostname);
    socket.setNoDelay(true);
    let answered: (answer: string) => void = () => {};
    let failed: (error: Error) => void = reject;
    let answer = '';
    socket.on('data', (chunk) => {
      answer += chunk.toString('latin1');
      const head = answer.indexOf('\r\n\r\n');
      const length = head < 0 ? undefined : /\r\ncontent-length: (\d+)/i.exec(answer.slice(0, head))?.[1];
      if (length === undefined || answer.length < head + 4 + Number(length)) return;
      const whole = answer;
      answer = '';
      answered(whole);
    });
    socket.on('error', (error) => failed(error));
    socket.on('close', () => failed(new Error('the server closed a connection')));
    socket.on('connect', () =>
      resolve({
        post: (credential, body) =>
          new Promise((resolveAnswer, rejectAnswer) => {
            answered = resolveAnswer;
            failed = rejectAnswer;
            socket.write(
              `POST ${pathname} HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${credential}\r\n` +
                `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
            );
          }),
        end: () => socket.destroy(),
      }),
    );
  });
}
