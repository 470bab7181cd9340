import type { Context, Middleware } from 'koa';
import { z } from 'zod';
import { invalidRequest, PosthornError } from '../errors.ts';
import { namedForDevice, readBearer } from '../request/bearer.ts';
import type { StreamHub } from './stream-hub.ts';

const MAX_AGENTS = 100;

/** GET /messaging/v1/events: server-sent events of one or several agents of the connection. */
export function createEventsEndpoint(hub: StreamHub): Middleware {
  return async function events(ctx) {
    const bearer = readBearer(ctx.req);
    if (!bearer) throw new PosthornError('unauthorized');
    if (ctx.method === 'HEAD') {
      ctx.type = 'text/event-stream';
      ctx.status = 200;
      return;
    }
    const { agentIds, lastEventId } = readQuery(ctx);
    try {
      await hub.open({ credential: bearer.credential, agentIds, lastEventId, response: ctx.res });
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
