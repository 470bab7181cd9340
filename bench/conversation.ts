// A conversation: one agent writes, the other one reads, acknowledges and answers. Ours over HTTP and over MCP, with
// every check, seal and receipt, next to the same four steps by the calls of a queue library inside the caller.
import { makeKeyRing, serializeKeyRing } from '../src/crypto/key-ring.ts';
import type { ConversationOrder } from './conversation-callers.ts';
import { describeMachine } from './machine.ts';
import { startConversationCallers, startPodProcess } from './processes.ts';
import { type Case, median, type Report, runRounds } from './rounds.ts';
import { startBenchServer } from './server.ts';
import { seedTenants } from './tenants.ts';

const FULL = { rounds: 5, seconds: 2, warmUpSeconds: 4, owners: 50, callers: [1, 16, 64] };
const QUICK = { rounds: 1, seconds: 0.3, warmUpSeconds: 0.1, owners: 4, callers: [1, 8] };

/** What ours must reach of the peer, at as many callers as the send bench has its bar for. */
const BARS: Record<number, { http: number; mcp: number }> = { 64: { http: 1, mcp: 0.5 } };

export async function benchConversation({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const closers = [() => server.stop()];
  try {
    const keyRing = makeKeyRing();
    const url = await server.makeDatabase('ours');
    const peersUrl = await server.makeDatabase('peers', { isOurs: false });
    const senders = await seedTenants(url, size.owners, keyRing);
    const pod = await startPodProcess(url, serializeKeyRing(keyRing));
    const callers = startConversationCallers(senders);
    closers.unshift(pod.stop, callers.stop);

    const order = (by: ConversationOrder['by'], count: number, seconds: number): ConversationOrder => ({
      by,
      url: by === 'pg-boss' ? peersUrl : pod.url,
      callers: count,
      seconds,
    });
    for (const by of ['pg-boss', 'http', 'mcp'] as const) {
      await callers.call(order(by, Math.max(...size.callers), size.warmUpSeconds));
    }

    const cases = size.callers.flatMap((count) => {
      const named = (what: string) => `${count} ${count === 1 ? 'pair' : 'pairs'}: ${what}`;
      const measure = (by: ConversationOrder['by']) => async () => {
        const { perSecond, latencies } = await callers.call(order(by, count, size.seconds));
        return { figure: perSecond, p50: median(latencies) };
      };
      const peer = named('pg-boss library calls');
      return [
        { name: peer, unit: '/s', measure: measure('pg-boss') },
        {
          name: named('posthorn over HTTP'),
          unit: '/s',
          measure: measure('http'),
          peers: [{ name: peer, atLeast: BARS[count]?.http }],
        },
        {
          name: named('posthorn over MCP'),
          unit: '/s',
          measure: measure('mcp'),
          peers: [{ name: peer, atLeast: BARS[count]?.mcp }],
        },
      ] satisfies Case[];
    });
    const results = await runRounds(cases, size.rounds, server.checkpoint);
    return { machine: await describeMachine(url, server.directory), results };
  } finally {
    for (const close of closers) await close();
  }
}
