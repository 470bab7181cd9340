import type { Context } from 'koa';

/** Where somebody goes on after signing in; only paths that the server itself gave out. */
const RETURN_COOKIE = 'posthorn_return';
const RETURN_PATH =
  /^\/(oauth\/interaction\/[\w-]{1,128}|device(\?user_code=[A-Z-]{1,16})?|owner\/(agents|connections|connect|activity|settings))$/;
const RETURN_MS = 15 * 60_000;

/** Has the browser come back to a path after signing in, or to none. */
export function rememberReturn(ctx: Context, publicUrl: string, path: string | null): void {
  ctx.cookies.set(RETURN_COOKIE, path, {
    signed: false,
    httpOnly: true,
    sameSite: 'lax',
    secure: publicUrl.startsWith('https:'),
    path: '/owner',
    maxAge: path === null ? 0 : RETURN_MS,
  });
}

/** Where to go now that somebody is signed in. */
export function takeReturn(ctx: Context, publicUrl: string): string {
  const path = ctx.cookies.get(RETURN_COOKIE, { signed: false }) ?? '';
  rememberReturn(ctx, publicUrl, null);
  return RETURN_PATH.test(path) ? path : '/owner';
}
