// The peer of the webhook bench, in a process of its own: posts and reads the status, and nothing else.
import { Agent, Client, type Dispatcher } from 'undici';

export interface LoopOrder {
  origin: string;
  requests: number;
  atOnce: number;
  /** Whether connections are kept, which no sender can do that looks at the address of each request. */
  isKeptAlive: boolean;
}

/** As large as a wake with its signatures. */
const BODY = JSON.stringify({ wake: 'x'.repeat(380) });
const HEADERS = { 'content-type': 'application/json', 'x-signatures': 'x'.repeat(400) };

process.on('message', async (order: LoopOrder) => {
  const agent = order.isKeptAlive ? new Agent({ connections: order.atOnce }) : undefined;
  const startedAt = performance.now();
  let left = order.requests;
  await Promise.all(
    Array.from({ length: order.atOnce }, async () => {
      while (left-- > 0) {
        const dispatcher = agent ?? new Client(order.origin);
        await post(dispatcher, order.origin);
        if (!agent) await dispatcher.close();
      }
    }),
  );
  const seconds = (performance.now() - startedAt) / 1_000;
  await agent?.close();
  process.send?.(order.requests / seconds);
});

async function post(dispatcher: Dispatcher, origin: string): Promise<void> {
  const { statusCode, body } = await dispatcher.request({
    origin,
    path: '/alive',
    method: 'POST',
    headers: HEADERS,
    body: BODY,
  });
  await body.dump();
  if (statusCode !== 204) throw new Error(`answered ${statusCode}`);
}
