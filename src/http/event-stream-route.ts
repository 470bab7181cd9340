import type { Context, Middleware } from 'koa';
import { z } from 'zod';
import { authenticate } from '../db/functions.ts';
import { invalidRequest, PosthornError } from '../errors.ts';
import type { StreamHub } from '../events/stream-hub.ts';
import type { Services } from '../operations/operation.ts';
import { namedForDevice, readBearer } from '../request/bearer.ts';
import { SseOutlet, STREAM_HEADERS } from './sse-outlet.ts';

const MAX_AGENTS = 100;

/** GET /messaging/v1/events: server-sent events of one or several agents of the connection. */
export function eventStreamRoute({ pool }: Services, hub: StreamHub): Middleware {
  return async function events(ctx) {
    if (ctx.method === 'OPTIONS') {
      ctx.set('Allow', 'GET, HEAD, OPTIONS');
      ctx.status = 204;
      return;
    }
    const bearer = readBearer(ctx.req);
    if (!bearer) throw new PosthornError('unauthorized');
    const { agentIds, lastEventId } = readQuery(ctx);
    try {
      if (ctx.method === 'HEAD') {
        // what GET would say of the caller, without taking a slot
        await authenticate(pool, { credential: bearer.credential });
        ctx.set(STREAM_HEADERS);
        ctx.status = 200;
        return;
      }
      await hub.open({ credential: bearer.credential, agentIds, lastEventId, outlet: new SseOutlet(ctx.res) });
      ctx.respond = false; // the response belongs to the stream now
    } catch (error) {
      throw namedForDevice(error, bearer);
    }
  };
}

function readQuery(ctx: Context): { agentIds: string[]; lastEventId: string | undefined } {
  const query = new URLSearchParams(ctx.querystring);
  const unknown = [...new Set(query.keys())].filter((name) => name !== 'agent_id' && name !== 'after');
  if (unknown.length > 0) throw invalidRequest(unknown);
  const agentIds = query.getAll('agent_id');
  if (agentIds.length > MAX_AGENTS || !agentIds.every((id) => z.uuid().safeParse(id).success))
    throw invalidRequest(['agent_id']);
  return {
    agentIds: agentIds.map((id) => id.toLowerCase()),
    lastEventId: ctx.get('Last-Event-ID') || (query.get('after') ?? undefined),
  };
}
