import Router from '@koa/router';
import type { Context, Middleware, Next } from 'koa';
import type { Logger } from 'pino';
import { hashCredential, makeCredential } from '../crypto/credentials.ts';
import { sessionOwner, signOut, useSignInLink } from '../db/functions.ts';
import { PosthornError, toPosthornError } from '../errors.ts';
import type { Services } from '../operations/operation.ts';
import { readForm } from '../request/form-body.ts';
import {
  addressBucket,
  readSession,
  requireFormToken,
  requireOwnSite,
  type Session,
  writeSession,
} from '../request/session.ts';
import { HORN, LIVE_SCRIPT, MANIFEST, PUSH_SCRIPT, PUSH_WORKER, STYLE } from './assets.ts';
import { ownerPages } from './owner-pages.ts';
import { go, show } from './responses.ts';
import { howToSignInPage, refusedPage, signInFailedPage, signInPage } from './sign-in-pages.ts';

/** Where somebody goes on after signing in; only paths that the server itself gave out. */
const RETURN_COOKIE = 'posthorn_return';
const RETURN_PATH =
  /^\/(oauth\/interaction\/[\w-]{1,128}|device(\?user_code=[A-Z-]{1,16})?|owner\/(agents|connections|connect|activity|settings))$/;
const RETURN_MS = 15 * 60_000;

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

/** The owner's pages. They hold no rule: what they show and do is the database's to allow. */
export function createWeb(services: Services, log: Logger): Web {
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
    if (returnTo !== undefined) rememberReturn(ctx, returnTo);
    show(ctx, howToSignInPage(returnTo !== undefined));
    return null;
  }

  async function readOwnForm(ctx: Context, session: Session): Promise<URLSearchParams> {
    requireOwnSite(ctx, services.publicUrl);
    const form = await readForm(ctx.req);
    requireFormToken(session, form.get('form_token'));
    return form;
  }

  function rememberReturn(ctx: Context, path: string | null): void {
    const secure = services.publicUrl.startsWith('https:');
    const maxAge = path === null ? 0 : RETURN_MS;
    ctx.cookies.set(RETURN_COOKIE, path, {
      signed: false,
      httpOnly: true,
      sameSite: 'lax',
      secure,
      path: '/owner',
      maxAge,
    });
  }

  router.get('/owner/sign-in', (ctx) => {
    const link = ctx.query.link;
    show(ctx, typeof link === 'string' ? signInPage(link) : howToSignInPage(false));
  });

  router.post('/owner/sign-in', async (ctx) => {
    requireOwnSite(ctx, services.publicUrl);
    const form = await readForm(ctx.req);
    const { token, hash } = makeCredential('session');
    const outcome = await useSignInLink(services.pool, {
      linkHash: hashCredential(form.get('link') ?? ''),
      sessionHash: hash,
      label: 'Web browser',
      bucket: addressBucket(ctx),
      replaces: readSession(ctx.req, services.publicUrl)?.credential,
    });
    if (outcome !== 'signed_in') {
      ctx.status = outcome === 'rate_limited' ? 429 : 404;
      return show(ctx, signInFailedPage(outcome as 'not_found' | 'rate_limited'));
    }
    writeSession(ctx, services.publicUrl, token);
    const returnTo = ctx.cookies.get(RETURN_COOKIE, { signed: false }) ?? '';
    rememberReturn(ctx, null);
    go(ctx, RETURN_PATH.test(returnTo) ? returnTo : '/owner');
  });

  router.post('/owner/sign-out', async (ctx) => {
    const session = readSession(ctx.req, services.publicUrl);
    if (!session) return go(ctx, '/owner');
    const form = await readOwnForm(ctx, session);
    const everywhere = form.get('everywhere') === 'yes';
    await signOut(services.pool, { credential: session.credential, everywhere }).catch(unlessGone);
    writeSession(ctx, services.publicUrl, null);
    go(ctx, '/owner');
  });

  for (const { path, type, content } of [STYLE, LIVE_SCRIPT, PUSH_SCRIPT, HORN, MANIFEST]) {
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

/** A session that ended is none. */
function unlessGone(error: unknown): [] {
  const { code } = toPosthornError(error);
  if (code === 'unauthorized' || code === 'person_required') return [];
  throw error instanceof PosthornError ? error : (error as Error);
}
