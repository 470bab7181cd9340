import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Middleware } from 'koa';
import type { Logger } from 'pino';
import { z } from 'zod';
import { readEvents } from '../db/functions.ts';
import { type ErrorCode, invalidRequest, PosthornError } from '../errors.ts';
import { OWNER_LOG } from '../events/event-content.ts';
import { MAX_AGENTS, type StreamHub } from '../events/stream-hub.ts';
import { BASE_PATH } from '../operations/http-request.ts';
import type { Services } from '../operations/operation.ts';
import { namedForDevice, readBearer } from '../request/bearer.ts';
import { refuseOtherSite, requireSession } from '../request/session.ts';
import { SseOutlet, STREAM_HEADERS } from './sse-outlet.ts';

export const AGENT_STREAM_PATH = `${BASE_PATH}/events`;
export const OWNER_STREAM_PATH = '/owner/v1/events';
/** As the router takes it: a proxy may name us in front of it, and case does not count. */
const target = (path: string) => new RegExp(`^(https?://[^/?]+)?${path}/?(\\?|$)`, 'i');
const AGENT_TARGET = target(AGENT_STREAM_PATH);
const OWNER_TARGET = target(OWNER_STREAM_PATH);

export interface EventStreamDoor {
  /** Whether a request is for a stream that may stay open for days. */
  isStream(request: IncomingMessage): boolean;
  /** Opens the stream; rejects, with nothing written, where it is refused. */
  open(request: IncomingMessage, response: ServerResponse): Promise<void>;
  /** Answers what is no stream: HEAD, OPTIONS, and GET that was refused. */
  route: Middleware;
}

/** What a request asks for, and how a refusal reads to whoever asked. */
interface Asked {
  credential: Buffer;
  agentIds: string[];
  lastEventId: string | undefined;
  explain: (thrown: unknown) => unknown;
}

/**
 * Server-sent events: GET /messaging/v1/events of one or several agents of the connection, GET /owner/v1/events of the
 * owner whose session a browser has. A stream that is let in never passes through Koa, whose context would stay as long
 * as it does and weighs as much as the rest.
 */
export function createEventStreamDoor(services: Services, hub: StreamHub, log: Logger): EventStreamDoor {
  const { pool } = services;
  const read = (request: IncomingMessage): Asked =>
    OWNER_TARGET.test(request.url!) ? readOwnersRequest(request, services.publicUrl) : readAgentsRequest(request);
  const refusals = new WeakMap<IncomingMessage, unknown>();

  async function open(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const startedAt = performance.now();
    const requestId = randomUUID();
    try {
      const { explain, ...asked } = read(request);
      const outlet = new SseOutlet(response, requestId);
      await hub.open({ ...asked, outlet }).catch((error) => {
        throw explain(error);
      });
    } catch (error) {
      refusals.set(request, error);
      throw error;
    }
    const ms = Math.round(performance.now() - startedAt);
    const route = OWNER_TARGET.test(request.url!) ? OWNER_STREAM_PATH : AGENT_STREAM_PATH;
    log.info({ requestId, method: 'GET', route, status: 200, ms }, 'request');
  }

  return {
    isStream: ({ method, url = '' }) => method === 'GET' && (AGENT_TARGET.test(url) || OWNER_TARGET.test(url)),
    open,
    async route(ctx) {
      if (ctx.method === 'OPTIONS') {
        ctx.set('Allow', 'GET, HEAD, OPTIONS');
        ctx.status = 204;
        return;
      }
      if (ctx.method === 'GET') throw refusals.get(ctx.req) ?? new PosthornError('not_found');
      // what GET would say of the caller, without taking a slot
      const { credential, agentIds, explain } = read(ctx.req);
      const asked = agentIds.length === 0 ? [null] : agentIds;
      const [refusal] = await readEvents(pool, {
        credentials: asked.map(() => credential),
        agentIds: asked,
        after: asked.map(() => 0),
        limit: 0,
      });
      if (refusal) throw explain(new PosthornError(refusal.problem as ErrorCode));
      ctx.set(STREAM_HEADERS);
      ctx.status = 200;
    },
  };
}

function readAgentsRequest(request: IncomingMessage): Asked {
  const bearer = readBearer(request);
  if (!bearer) throw new PosthornError('unauthorized');
  const query = readQuery(request, ['agent_id', 'after']);
  const agentIds = query.getAll('agent_id').map((id) => id.toLowerCase());
  if (agentIds.length > MAX_AGENTS || !agentIds.every((id) => z.uuid().safeParse(id).success))
    throw invalidRequest(['agent_id']);
  // the owner's log is no agent's, whoever asks here
  if (agentIds.includes(OWNER_LOG)) throw new PosthornError('not_found');
  return {
    credential: bearer.credential,
    agentIds,
    lastEventId: readPlace(request, query),
    explain: (thrown) => namedForDevice(thrown, bearer),
  };
}

function readOwnersRequest(request: IncomingMessage, publicUrl: string): Asked {
  refuseOtherSite(request);
  const { credential } = requireSession(request, publicUrl);
  const lastEventId = readPlace(request, readQuery(request, ['after']));
  return { credential, agentIds: [OWNER_LOG], lastEventId, explain: (thrown) => thrown };
}

function readQuery(request: IncomingMessage, known: string[]): URLSearchParams {
  const query = new URLSearchParams(request.url!.split('?')[1]);
  const unknown = [...new Set(query.keys())].filter((name) => !known.includes(name));
  if (unknown.length > 0) throw invalidRequest(unknown);
  return query;
}

function readPlace({ headers: { 'last-event-id': header } }: IncomingMessage, query: URLSearchParams) {
  return (typeof header === 'string' && header) || (query.get('after') ?? undefined);
}
