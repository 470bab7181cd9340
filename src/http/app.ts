import { randomUUID } from 'node:crypto';
import type { RequestListener } from 'node:http';
import Router from '@koa/router';
import Koa, { type Context, type Middleware, type Next } from 'koa';
import helmet from 'koa-helmet';
import type { Logger } from 'pino';
import { PosthornError, toPosthornError } from '../errors.ts';
import { BASE_PATH } from '../operations/http-request.ts';
import { OPERATIONS } from '../operations/index.ts';
import type { Services } from '../operations/operation.ts';
import { challenge } from '../request/bearer.ts';
import { inSpan, ROOT_CONTEXT, SpanKind, SpanStatusCode } from '../tracing.ts';
import { DOCS_CSS, docsPage } from './docs-page.ts';
import { AGENT_STREAM_PATH, type EventStreamDoor } from './event-stream-route.ts';
import { openApiDocument } from './openapi.ts';
import { operationRoute, presentedBearer } from './operation-route.ts';
import { ownerRoutes } from './owner-routes.ts';

interface AppOptions {
  services: Services;
  log: Logger;
  /** Aborts when the pod stops: waiting calls then answer at once with what they have. */
  draining: AbortSignal;
  /** Whether the database is reachable and has the schema that this build needs. */
  isReady: () => Promise<boolean>;
  /** The other door at the same address. */
  mcp: Middleware;
  events: EventStreamDoor;
  /** The owner's pages. */
  web: Middleware;
  /** The authorization server. */
  oauth: Middleware;
}

/** The HTTP tier: it turns bytes into arguments and answers into bytes, and decides nothing. */
export function createRequestListener(options: AppOptions): RequestListener {
  const answer = createApp(options).callback();
  const { events } = options;
  return (request, response) => {
    if (events.isStream(request)) events.open(request, response).catch(() => answer(request, response));
    else void answer(request, response);
  };
}

function createApp(options: AppOptions): Koa {
  const app = new Koa();
  // what ends TLS stands before us, so that cookies must be marked as its address says and not as this connection does
  Object.defineProperty(app.request, 'protocol', {
    get: () => (options.services.publicUrl.startsWith('https:') ? 'https' : 'http'),
  });
  app.silent = true; // refusals are not failures of the program; logRequests says what happened
  app.use(nameRequest);
  app.use(traceRequest);
  app.use(logRequests(options.log));
  app.use(renderErrors(options));
  app.use(securityHeaders());
  app.use(serviceRoutes(options));
  app.use(messagingRoutes(options));
  app.use(ownerRoutes(options.services, options.draining, options.events));
  app.use(options.web);
  app.use(options.oauth);
  app.use(unknownPath);
  return app;
}

async function nameRequest(ctx: Context, next: Next): Promise<void> {
  ctx.state.requestId = randomUUID();
  ctx.set('X-Request-Id', ctx.state.requestId);
  await next();
}

/** Event streams that are let in never come here; an MCP subscription's span ends when the subscription begins. */
async function traceRequest(ctx: Context, next: Next): Promise<void> {
  await inSpan(ctx.method, { kind: SpanKind.SERVER, parent: ROOT_CONTEXT }, async (span) => {
    await next();
    const route = ctx.routerPath ?? 'unknown path';
    span.updateName(`${ctx.method} ${route}`);
    span.setAttributes({
      'http.request.method': ctx.method,
      'http.route': route,
      'http.response.status_code': ctx.status,
      'posthorn.request_id': ctx.state.requestId,
      'error.type': ctx.state.errorCode,
    });
    if (ctx.status >= 500) span.setStatus({ code: SpanStatusCode.ERROR });
  });
}

/** One line a request: the route's pattern, not the path, and nothing that a caller wrote. */
function logRequests(log: Logger): Middleware {
  return async function logRequest(ctx, next) {
    const startedAt = performance.now();
    await next();
    log.info(
      {
        requestId: ctx.state.requestId,
        method: ctx.method,
        route: ctx.routerPath ?? null,
        status: ctx.status,
        error: ctx.state.errorCode,
        ms: Math.round(performance.now() - startedAt),
      },
      'request',
    );
  };
}

function renderErrors({ services, log }: AppOptions): Middleware {
  return async function renderError(ctx, next) {
    try {
      await next();
    } catch (thrown) {
      const error = toPosthornError(thrown);
      if (error !== thrown && error.code === 'unavailable')
        log.error({ requestId: ctx.state.requestId, err: thrown }, 'unavailable');
      ctx.state.errorCode = error.code;
      ctx.status = error.status;
      ctx.body = error.toBody(ctx.state.requestId);
      if (error.status === 401)
        ctx.set('WWW-Authenticate', challenge(services.publicUrl, ctx.get('authorization') !== ''));
      if (error.status === 429 || error.status === 503) ctx.set('Retry-After', String(error.detail.retry_after ?? 1));
    }
  };
}

function securityHeaders(): Middleware {
  return helmet({
    contentSecurityPolicy: {
      directives: {
        defaultSrc: ["'none'"],
        styleSrc: ["'self'"],
        imgSrc: ["'self'"],
        connectSrc: ["'self'"],
        manifestSrc: ["'self'"],
        baseUri: ["'none'"],
        formAction: ["'self'"],
        frameAncestors: ["'none'"],
        upgradeInsecureRequests: null,
      },
    },
    // with no-referrer browsers send forms as from nowhere (Origin: null), which looks like those of other sites
    referrerPolicy: { policy: 'same-origin' },
    // a self-hosted server may well be plain HTTP on a private network: who ends TLS sends HSTS
    strictTransportSecurity: false,
  }) as unknown as Middleware;
}

function serviceRoutes({ services, isReady }: AppOptions): Middleware {
  const router = new Router();
  router.get('/healthz', (ctx) => {
    ctx.body = { status: 'ok' };
  });
  router.get('/readyz', async (ctx) => {
    const ready = await isReady();
    if (!ready) throw new PosthornError('unavailable', { retry_after: 1 });
    // ready all the same: without notifications readers look every few seconds
    const { listener } = services;
    ctx.body = { status: 'ready', listening: listener.isListening(), listener_problem: listener.problem() };
  });
  router.get('/openapi.json', (ctx) => {
    ctx.body = openApiDocument(services.publicUrl);
  });
  router.get('/docs', (ctx) => {
    ctx.type = 'html';
    ctx.body = docsPage(openApiDocument(services.publicUrl));
  });
  router.get('/docs.css', (ctx) => {
    ctx.type = 'css';
    ctx.body = DOCS_CSS;
  });
  for (const path of ['/.well-known/oauth-protected-resource', '/.well-known/oauth-protected-resource/mcp']) {
    router.get(path, (ctx) => {
      ctx.body = {
        resource: `${services.publicUrl}/mcp`,
        authorization_servers: [services.publicUrl],
        scopes_supported: ['messaging'],
        bearer_methods_supported: ['header'],
        resource_name: 'Posthorn',
      };
    });
  }
  return router.routes() as unknown as Middleware;
}

function messagingRoutes({ services, draining, mcp, events }: AppOptions): Middleware {
  const router = new Router();
  for (const operation of OPERATIONS) {
    for (const { method, path } of operation.routes)
      router.register(
        BASE_PATH + path,
        [method.toLowerCase()],
        operationRoute(operation, services, draining, presentedBearer) as never,
      );
  }
  router.register(AGENT_STREAM_PATH, ['get', 'head', 'options'], events.route as never);
  router.all(['/mcp', '/mcp/'], mcp as never);
  return router.routes() as unknown as Middleware;
}

async function unknownPath(ctx: Context): Promise<void> {
  if (ctx.status === 404 && ctx.body === undefined)
    throw new PosthornError('not_found', {}, 'There is nothing at this path and method.');
}
