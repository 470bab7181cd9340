import Router from '@koa/router';
import type { Context, Middleware, Next } from 'koa';
import type { Logger } from 'pino';
import type { ServerSecrets } from '../crypto/server-secrets.ts';
import { sessionOwner, signOut } from '../db/functions.ts';
import { toPosthornError } from '../errors.ts';
import type { Services } from '../operations/operation.ts';
import { readForm } from '../request/form-body.ts';
import {
  readSession,
  requireFormToken,
  requireOwnSite,
  type Session,
  unlessGone,
  writeSession,
} from '../request/session.ts';
import { HORN, LIVE_SCRIPT, MANIFEST, PASSKEYS_SCRIPT, PUSH_SCRIPT, PUSH_WORKER, STYLE } from './assets.ts';
import { ownerPages } from './owner-pages.ts';
import { go, show } from './responses.ts';
import { rememberReturn } from './return-path.ts';
import { howToSignInPage, refusedPage } from './sign-in-pages.ts';
import { addSignIn } from './sign-in-routes.ts';

export interface SignedIn extends Session {
  owner: { id: string; label: string };
}

export interface Web {
  middleware: Middleware;
  /**
   * Who is signed in in this browser. Where nobody is, the answer says how to sign in, and that one comes back to
   * `returnTo` afterwards.
   */
  requireSignedIn(ctx: Context, returnTo?: string): Promise<SignedIn | null>;
  /** Reads a form that this session was given. @throws PosthornError */
  readOwnForm(ctx: Context, session: Session): Promise<URLSearchParams>;
  /** Answers what was thrown as a page. */
  renderErrors: Middleware;
}

/**
 * The owner's pages. They hold no rule: what they show and do is the database's to allow.
 *
 * @param loadSecrets the server's own secrets, for the ways in that need them
 */
export function createWeb(services: Services, loadSecrets: () => Promise<ServerSecrets>, log: Logger): Web {
  const router = new Router();

  async function renderErrors(ctx: Context, next: Next): Promise<void> {
    try {
      await next();
    } catch (thrown) {
      const error = toPosthornError(thrown);
      if (error !== thrown && error.code === 'unavailable')
        log.error({ requestId: ctx.state.requestId, err: thrown }, 'unavailable');
      ctx.state.errorCode = error.code;
      ctx.status = error.status;
      show(ctx, refusedPage(error.message));
    }
  }

  async function requireSignedIn(ctx: Context, returnTo?: string): Promise<SignedIn | null> {
    const session = readSession(ctx.req, services.publicUrl);
    const [row] = session
      ? await sessionOwner(services.pool, { credential: session.credential }).catch(unlessGone)
      : [];
    if (session && row) {
      services.credentialUse.note(session.credential);
      return { ...session, owner: { id: row.ownerId, label: row.label } };
    }
    // a page that looked after itself while its session ended is nowhere that somebody wants to go
    const isForPerson = ctx.get('sec-fetch-dest') !== 'empty';
    if (returnTo !== undefined && isForPerson) rememberReturn(ctx, services.publicUrl, returnTo);
    show(ctx, howToSignInPage({ services, isOnTheWay: returnTo !== undefined }));
    return null;
  }

  async function readOwnForm(ctx: Context, session: Session): Promise<URLSearchParams> {
    requireOwnSite(ctx, services.publicUrl);
    const form = await readForm(ctx.req);
    requireFormToken(session, form.get('form_token'));
    return form;
  }

  addSignIn(router, { services, loadSecrets, web: { requireSignedIn, readOwnForm }, log });

  router.post('/owner/sign-out', async (ctx) => {
    const session = readSession(ctx.req, services.publicUrl);
    if (!session) return go(ctx, '/owner');
    const form = await readOwnForm(ctx, session);
    const everywhere = form.get('everywhere') === 'yes';
    await signOut(services.pool, { credential: session.credential, everywhere }).catch(unlessGone);
    writeSession(ctx, services.publicUrl, null);
    go(ctx, '/owner');
  });

  for (const { path, type, content } of [STYLE, LIVE_SCRIPT, PASSKEYS_SCRIPT, PUSH_SCRIPT, HORN, MANIFEST]) {
    router.get(path, (ctx) => {
      ctx.type = type;
      ctx.set('Cache-Control', 'public, max-age=31536000, immutable');
      ctx.body = content;
    });
  }

  router.get(PUSH_WORKER.path, (ctx) => {
    ctx.type = 'js';
    ctx.set('Cache-Control', 'no-cache');
    ctx.set('Content-Security-Policy', "default-src 'none'"); // it loads nothing and asks for nothing
    ctx.body = PUSH_WORKER.content;
  });

  router.use(ownerPages(services, { requireSignedIn, readOwnForm }) as never);

  const routes = router.routes() as unknown as Middleware;
  const middleware: Middleware = (ctx, next) =>
    isPage(ctx.path) ? renderErrors(ctx, () => routes(ctx, next) as Promise<void>) : next();
  return { middleware, requireSignedIn, readOwnForm, renderErrors };
}

const isPage = (path: string) => path === '/owner' || (path.startsWith('/owner/') && !path.startsWith('/owner/v1/'));
