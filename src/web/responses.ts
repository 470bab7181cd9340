import type { Context } from 'koa';

/** Answers a page, which no cache may keep. */
export function show(ctx: Context, markup: string): void {
  ctx.type = 'html';
  ctx.set('Cache-Control', 'no-store');
  ctx.body = markup;
}

/** Sends the browser to another page of ours. */
export function go(ctx: Context, path: string): void {
  ctx.status = 303;
  ctx.set('Location', path);
  ctx.set('Cache-Control', 'no-store');
  ctx.body = '';
}
