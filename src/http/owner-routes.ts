import { PassThrough } from 'node:stream';
import Router from '@koa/router';
import type { Context, Middleware, Next } from 'koa';
import { writeAccount } from '../db/account-export.ts';
import { ownerSettings } from '../db/functions.ts';
import { withClient } from '../db/pool.ts';
import type { Services } from '../operations/operation.ts';
import { OWNER_OPERATIONS } from '../operations/owner.ts';
import { requireOwnSite, requireSession } from '../request/session.ts';
import { type EventStreamDoor, OWNER_STREAM_PATH } from './event-stream-route.ts';
import { operationRoute, type Presented } from './operation-route.ts';

const OWNER_PATH = '/owner/v1';

/** /owner/v1: what the owner does, with the session of a browser alone, and never at the wish of another site. */
export function ownerRoutes(services: Services, draining: AbortSignal, events: EventStreamDoor): Middleware {
  const router = new Router();
  const presentedSession: Presented = (ctx) => {
    const { credential } = requireSession(ctx.req, services.publicUrl);
    return { credential, explain: (thrown) => thrown };
  };

  async function refuseOtherSites(ctx: Context, next: Next): Promise<void> {
    ctx.set('Cache-Control', 'no-store');
    if (ctx.method !== 'GET' && ctx.method !== 'HEAD') requireOwnSite(ctx, services.publicUrl);
    await next();
  }

  router.register(OWNER_STREAM_PATH, ['get', 'head', 'options'], events.route as never);
  router.use(OWNER_PATH, refuseOtherSites as never);
  for (const operation of OWNER_OPERATIONS) {
    const endpoint = operationRoute(operation, services, draining, presentedSession);
    for (const { method, path } of operation.routes)
      router.register(OWNER_PATH + path, [method.toLowerCase()], endpoint as never);
  }
  router.get(`${OWNER_PATH}/export`, async (ctx) => {
    const { credential } = presentedSession(ctx as unknown as Context);
    await ownerSettings(services.pool, { credential }); // a refusal is said before the answer begins
    ctx.type = 'application/x-ndjson';
    ctx.attachment('posthorn-export.jsonl');
    ctx.body = exportAccount(services, credential);
  });
  return router.routes() as unknown as Middleware;
}

/** The account as lines of JSON. What fails midway breaks the answer off, so that half an export looks like none. */
function exportAccount({ pool }: Services, credential: Buffer): PassThrough {
  const out = new PassThrough();
  const writing = withClient(pool, async (client) => {
    await client.query('begin');
    try {
      await writeAccount(client, credential, out);
    } finally {
      await client.query('rollback');
    }
  });
  writing.then(
    () => out.end(),
    (error) => out.destroy(error),
  );
  return out;
}
