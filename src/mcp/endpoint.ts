import { Readable } from 'node:stream';
import {
  createMcpHandler,
  type McpRequestContext,
  ProtocolError,
  ProtocolErrorCode,
  Server,
  type ServerEventBus,
} from '@modelcontextprotocol/server';
import type { Context, Middleware } from 'koa';
import type { Logger } from 'pino';
import { agentStatus, authenticate } from '../db/functions.ts';
import { invalidRequest, PosthornError, toPosthornError } from '../errors.ts';
import { MAX_AGENTS, type StreamHub } from '../events/stream-hub.ts';
import type { Operation, Services } from '../operations/operation.ts';
import { parseInput } from '../operations/parse-input.ts';
import { type Bearer, namedForDevice, readBearer } from '../request/bearer.ts';
import { callerGone } from '../request/caller-gone.ts';
import { readJsonObject } from '../request/json-body.ts';
import { inSpan } from '../tracing.ts';
import { agentsOf, askFor, INBOX_RESOURCES, INBOX_TEMPLATES, inboxesOf, readInboxResource } from './inbox-resource.ts';
import { Subscription } from './subscription.ts';
import { callTool, type ErrorBody, type ToolHost } from './tool-call.ts';
import { INSTRUCTIONS, operationOf, SERVER_INFO, toolsFor } from './tools.ts';

/** How long a client may keep the list of tools, in milliseconds. */
const LIST_TTL_MS = 300_000;

interface EndpointOptions {
  publicUrl: () => string;
  log: Logger;
  /** Aborts when the pod stops: waiting calls then answer at once with what they have. */
  draining: AbortSignal;
  hub: StreamHub;
}

/** Who makes one HTTP request; kind and scopes are null while the owner is suspended, which each operation says itself. */
interface McpCaller {
  bearer: Bearer;
  requestId: string;
  kind: string | null;
  scopes: string[] | null;
}

/**
 * MCP over streamable HTTP, for clients of the 2026-07-28 revision and for those that begin with `initialize`. Every
 * request stands alone, and is authenticated alone: no session is ever made, so any pod answers any request and a
 * revoked credential ends with the call before.
 */
export function createMcpEndpoint(services: Services, options: EndpointOptions): Middleware {
  const makeHandler = (bus?: ServerEventBus) =>
    createMcpHandler((context) => createServer(services, options, context), {
      onerror: (err) => options.log.debug({ err }, 'mcp request refused'),
      ...(bus && { bus }),
    });
  const handler = makeHandler();

  /** An event stream by another name: it takes a slot, and ends as those of the other door do. */
  async function answerSubscription(exchange: Exchange, uris: string[]) {
    const { ctx, request, authInfo, parsedBody } = exchange;
    const { bearer } = authInfo.extra.caller;
    const subscription = new Subscription(ctx.res, uris);
    try {
      const { credential } = bearer;
      const agentIds = await agentsOf(services, credential, uris);
      if (new Set(agentIds).size > MAX_AGENTS)
        throw invalidRequest(
          ['notifications.resourceSubscriptions'],
          `At most ${MAX_AGENTS} inboxes in one subscription.`,
        );
      await options.hub.open({ credential, agentIds, lastEventId: undefined, outlet: subscription });
    } catch (error) {
      throw namedForDevice(error, bearer);
    }
    const own = makeHandler(subscription.bus);
    await respond(ctx, await own.fetch(request, { authInfo, parsedBody: askFor(parsedBody, uris) }));
    subscription.start(() => void own.close());
  }

  return async function answerMcp(ctx) {
    const foreign = foreignHeader(ctx, options.publicUrl());
    if (foreign) return refuse(ctx, 403, `The ${foreign} header names another site.`);
    if (ctx.method !== 'POST') {
      ctx.set('Allow', 'POST');
      return refuse(ctx, 405, 'Only POST: this server keeps no sessions and no streams.');
    }
    const caller = await identify(services, ctx);
    const parsedBody = await readJsonObject(ctx.req);
    const signal = callerGone(ctx.res);
    const inboxes = inboxesOf(parsedBody);
    const headers = new Headers(Object.entries(ctx.headers) as [string, string][]);
    const request = new Request(new URL('/mcp', options.publicUrl()), { method: 'POST', headers, signal });
    const authInfo = { token: '', clientId: '', scopes: [], extra: { caller } };
    if (inboxes?.length) return await answerSubscription({ ctx, request, authInfo, parsedBody }, inboxes);
    // a subscription that nothing is promised to ends at once: one that stayed would take no slot and hear of no end
    const askedFor = inboxes ? askFor(parsedBody, []) : parsedBody;
    await respond(ctx, await handler.fetch(request, { authInfo, parsedBody: askedFor }));
  };
}

interface Exchange {
  ctx: Context;
  request: Request;
  authInfo: { token: string; clientId: string; scopes: string[]; extra: { caller: McpCaller } };
  parsedBody: Record<string, unknown>;
}

/** The name of a header that a page of another site, or a name rebound to this address, would send. */
function foreignHeader(ctx: Context, publicUrl: string): 'Host' | 'Origin' | undefined {
  const own = [new URL(publicUrl).hostname, 'localhost', '127.0.0.1', '[::1]'];
  const isOwn = (url: string) => URL.canParse(url) && own.includes(new URL(url).hostname);
  if (!isOwn(`http://${ctx.get('host')}`)) return 'Host';
  const origin = ctx.get('origin');
  return origin === '' || isOwn(origin) ? undefined : 'Origin';
}

async function identify({ pool }: Services, ctx: Context): Promise<McpCaller> {
  const bearer = readBearer(ctx.req);
  if (!bearer) throw new PosthornError('unauthorized');
  const { requestId } = ctx.state;
  try {
    const [connection] = await authenticate(pool, { credential: bearer.credential });
    return { bearer, requestId, kind: connection!.kind, scopes: connection!.scopes };
  } catch (error) {
    if (toPosthornError(error).code === 'owner_suspended') return { bearer, requestId, kind: null, scopes: null };
    throw namedForDevice(error, bearer);
  }
}

function createServer(services: Services, options: EndpointOptions, { authInfo, era }: McpRequestContext): Server {
  const caller = authInfo!.extra!.caller as McpCaller;
  const tools = toolsFor(caller.kind);
  const server = new Server(SERVER_INFO, {
    // the older clients would subscribe by a call that needs a session
    capabilities: { tools: {}, resources: { subscribe: era === 'modern' } },
    instructions: INSTRUCTIONS,
    cacheHints: { 'tools/list': { ttlMs: LIST_TTL_MS, cacheScope: 'private' } },
  });
  server.setRequestHandler('tools/list', () => ({ tools }));
  server.setRequestHandler('resources/list', () => ({ resources: INBOX_RESOURCES }));
  server.setRequestHandler('resources/templates/list', () => ({ resourceTemplates: INBOX_TEMPLATES }));
  server.setRequestHandler('resources/read', async ({ params }) => {
    try {
      return await readInboxResource(services, caller.bearer.credential, params.uri);
    } catch (error) {
      if (error instanceof ProtocolError) throw error;
      const refusal = toPosthornError(namedForDevice(error, caller.bearer));
      throw new ProtocolError(ProtocolErrorCode.InvalidParams, refusal.message, refusal.toBody(caller.requestId));
    }
  });
  server.setRequestHandler('tools/call', async ({ params }, { mcpReq }) => {
    const operation = tools.some(({ name }) => name === params.name) && operationOf(params.name);
    if (!operation) throw new ProtocolError(ProtocolErrorCode.InvalidParams, 'There is no such tool.');
    const host = databaseHost(services, options, caller, mcpReq.signal);
    return await callTool(host, operation, params.arguments ?? {});
  });
  return server;
}

function databaseHost(
  services: Services,
  { log, draining }: EndpointOptions,
  caller: McpCaller,
  gone: AbortSignal,
): ToolHost {
  const { credential } = caller.bearer;
  const signal = AbortSignal.any([draining, gone]);

  async function run(operation: Operation, input: Record<string, unknown>) {
    const startedAt = performance.now();
    let error: ErrorBody | undefined;
    try {
      if (caller.scopes?.includes(operation.scope) === false) throw new PosthornError('scope_required');
      const parsed = parseInput(operation, input);
      const output = await inSpan(operation.name, {}, () => operation.run(services, { credential, signal }, parsed));
      services.credentialUse.note(credential);
      return { output };
    } catch (thrown) {
      const refusal = toPosthornError(namedForDevice(thrown, caller.bearer));
      if (refusal !== thrown && refusal.code === 'unavailable') {
        log.error({ requestId: caller.requestId, tool: operation.name, err: thrown }, 'unavailable');
      }
      error = refusal.toBody(caller.requestId) as ErrorBody;
      return { error };
    } finally {
      const ms = Math.round(performance.now() - startedAt);
      log.info({ requestId: caller.requestId, tool: operation.name, outcome: error?.error ?? 'done', ms }, 'tool call');
    }
  }

  return {
    run,
    async countPending(agentId) {
      // what was done stays done, whatever becomes of the count
      const [row] = await agentStatus(services.pool, { credential, agentId }).catch(() => []);
      return row?.agentId ? row.pendingMessages : null;
    },
  };
}

function refuse(ctx: Context, status: number, message: string): void {
  ctx.status = status;
  ctx.body = { jsonrpc: '2.0', id: null, error: { code: -32_000, message } };
}

async function respond(ctx: Context, response: Response): Promise<void> {
  for (const [name, value] of response.headers) {
    // whether the connection goes on is for the server to say, which may be about to stop
    if (name !== 'connection') ctx.set(name, value);
  }
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream');
  ctx.body = isStream ? Readable.fromWeb(response.body!) : (await response.text()) || null;
  ctx.status = response.status;
}
