import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Middleware } from 'koa';
import type { Logger } from 'pino';
import { z } from 'zod';
import { readEvents } from '../db/functions.ts';
import { type ErrorCode, invalidRequest, PosthornError } from '../errors.ts';
import { MAX_AGENTS, type StreamHub } from '../events/stream-hub.ts';
import { BASE_PATH } from '../operations/http-request.ts';
import type { Services } from '../operations/operation.ts';
import { type Bearer, namedForDevice, readBearer } from '../request/bearer.ts';
import { SseOutlet, STREAM_HEADERS } from './sse-outlet.ts';

const PATH = `${BASE_PATH}/events`;
/** As the router takes it: a proxy may name us in front of it, and case does not count. */
const TARGET = new RegExp(`^(https?://[^/?]+)?${PATH}/?(\\?|$)`, 'i');

export interface EventStreamDoor {
  /** Whether a request is for a stream that may stay open for days. */
  isStream(request: IncomingMessage): boolean;
  /** Opens the stream; rejects, with nothing written, where it is refused. */
  open(request: IncomingMessage, response: ServerResponse): Promise<void>;
  /** Answers what is no stream: HEAD, OPTIONS, and GET that was refused. */
  route: Middleware;
}

/**
 * GET /messaging/v1/events: server-sent events of one or several agents of the connection. A stream that is let in
 * never passes through Koa, whose context would stay as long as it does and weighs as much as the rest.
 */
export function createEventStreamDoor({ pool }: Services, hub: StreamHub, log: Logger): EventStreamDoor {
  const refusals = new WeakMap<IncomingMessage, unknown>();

  async function open(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const startedAt = performance.now();
    const requestId = randomUUID();
    try {
      const asked = readRequest(request);
      const outlet = new SseOutlet(response, requestId);
      await hub.open({ ...asked, credential: asked.bearer.credential, outlet }).catch((error) => {
        throw namedForDevice(error, asked.bearer);
      });
    } catch (error) {
      refusals.set(request, error);
      throw error;
    }
    const ms = Math.round(performance.now() - startedAt);
    log.info({ requestId, method: 'GET', route: PATH, status: 200, ms }, 'request');
  }

  return {
    isStream: ({ method, url = '' }) => method === 'GET' && TARGET.test(url),
    open,
    async route(ctx) {
      if (ctx.method === 'OPTIONS') {
        ctx.set('Allow', 'GET, HEAD, OPTIONS');
        ctx.status = 204;
        return;
      }
      if (ctx.method === 'GET') throw refusals.get(ctx.req) ?? new PosthornError('not_found');
      // what GET would say of the caller, without taking a slot
      const { bearer, agentIds } = readRequest(ctx.req);
      const asked = agentIds.length === 0 ? [null] : agentIds;
      const [refusal] = await readEvents(pool, {
        credentials: asked.map(() => bearer.credential),
        agentIds: asked,
        after: asked.map(() => 0),
        limit: 0,
      });
      if (refusal) throw namedForDevice(new PosthornError(refusal.problem as ErrorCode), bearer);
      ctx.set(STREAM_HEADERS);
      ctx.status = 200;
    },
  };
}

function readRequest(request: IncomingMessage): {
  bearer: Bearer;
  agentIds: string[];
  lastEventId: string | undefined;
} {
  const bearer = readBearer(request);
  if (!bearer) throw new PosthornError('unauthorized');
  const query = new URLSearchParams(request.url!.split('?')[1]);
  const unknown = [...new Set(query.keys())].filter((name) => name !== 'agent_id' && name !== 'after');
  if (unknown.length > 0) throw invalidRequest(unknown);
  const agentIds = query.getAll('agent_id');
  if (agentIds.length > MAX_AGENTS || !agentIds.every((id) => z.uuid().safeParse(id).success))
    throw invalidRequest(['agent_id']);
  const { 'last-event-id': header } = request.headers;
  return {
    bearer,
    agentIds: agentIds.map((id) => id.toLowerCase()),
    lastEventId: (typeof header === 'string' && header) || (query.get('after') ?? undefined),
  };
}
