import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';
import type { Context } from 'koa';
import { hashCredential } from '../crypto/credentials.ts';
import { PosthornError, toPosthornError } from '../errors.ts';
import { readBearer } from './bearer.ts';

/** How long a browser keeps the cookie, in milliseconds; the database says how long it is worth something. */
const COOKIE_MS = 400 * 86_400_000;
const BROWSER_SECRET_MS = 15 * 60_000;

/** What a browser presents: the session's credential, in a cookie that no script sees. */
export interface Session {
  /** SHA-256 of the cookie's value. */
  credential: Buffer;
  /** Goes into each form of a page, and comes back with it: no other site can know it. */
  formToken: string;
}

/**
 * The cookie of a session. Over TLS its name makes browsers refuse one that another host or a plain connection set;
 * on plain HTTP the port is in it, since browsers share cookies between the ports of a host.
 */
export function sessionCookie(publicUrl: string): string {
  return cookieName(publicUrl, 'session');
}

function cookieName(publicUrl: string, use: string): string {
  const { protocol, port } = new URL(publicUrl);
  return protocol === 'https:' ? `__Host-posthorn_${use}` : `posthorn_${use}_${port || '80'}`;
}

/** The session of a request, valid or not; null where there is none. */
export function readSession({ headers }: IncomingMessage, publicUrl: string): Session | null {
  const name = sessionCookie(publicUrl);
  const pair = headers.cookie?.split(/; */).find((each) => each.startsWith(`${name}=`));
  const token = pair?.slice(name.length + 1) ?? '';
  if (!/^phw_[\w-]{43}$/.test(token)) return null;
  const formToken = createHmac('sha256', token).update('form').digest('base64url');
  return { credential: hashCredential(token), formToken };
}

/**
 * The session of a call of the owner.
 *
 * @throws PosthornError unauthorized without one; person_required to a token, which is no person at a browser, whatever
 *   it stands for
 */
export function requireSession(request: IncomingMessage, publicUrl: string): Session {
  const session = readSession(request, publicUrl);
  if (!session) throw new PosthornError(readBearer(request) ? 'person_required' : 'unauthorized');
  return session;
}

/** Gives the browser the cookie of a session, or takes it away. */
export function writeSession(ctx: Context, publicUrl: string, token: string | null): void {
  writeCookie(ctx, publicUrl, 'session', token, COOKIE_MS);
}

/** What a sign-in that takes several steps is bound to: the browser that began it comes back with the same secret. */
export function readBrowserSecret(ctx: Context, publicUrl: string, use: 'passkey' | 'openid'): string | null {
  return ctx.cookies.get(cookieName(publicUrl, use), { signed: false }) || null;
}

/** Gives the browser such a secret, or takes it away. */
export function writeBrowserSecret(
  ctx: Context,
  publicUrl: string,
  use: 'passkey' | 'openid',
  secret: string | null,
): void {
  writeCookie(ctx, publicUrl, use, secret, BROWSER_SECRET_MS);
}

function writeCookie(ctx: Context, publicUrl: string, use: string, value: string | null, maxAgeMs: number): void {
  ctx.cookies.set(cookieName(publicUrl, use), value, {
    signed: false,
    httpOnly: true,
    sameSite: 'lax',
    secure: publicUrl.startsWith('https:'),
    path: '/',
    overwrite: true,
    maxAge: value === null ? 0 : maxAgeMs,
  });
}

/**
 * Refuses what a page of another site sent. Browsers say where a request comes from in one header or the other; what
 * says nothing is no browser, and has no session.
 *
 * @throws PosthornError person_required
 */
export function requireOwnSite(ctx: Context, publicUrl: string): void {
  const site = ctx.get('sec-fetch-site');
  const origin = ctx.get('origin');
  const isOwnOrigin =
    origin === new URL(publicUrl).origin || (URL.canParse(origin) && new URL(origin).host === ctx.get('host'));
  if (site === '' ? isOwnOrigin : site === 'same-origin' && (origin === '' || isOwnOrigin)) return;
  throw fromOtherSite();
}

/**
 * Refuses what a browser says that a page of another site asks for. It could not read the answer, but each stream takes
 * a slot, and cookies do not tell the ports of a host apart.
 *
 * @throws PosthornError person_required
 */
export function refuseOtherSite({ headers }: IncomingMessage): void {
  if (headers['sec-fetch-site'] === 'cross-site' || headers['sec-fetch-site'] === 'same-site') throw fromOtherSite();
}

const fromOtherSite = () => new PosthornError('person_required', {}, 'This came from a page of another site.');

/** @throws PosthornError person_required if a form is none that this session was given */
export function requireFormToken(session: Session, given: string | null): void {
  const [own, other] = [session.formToken, given ?? ''].map((text) => createHash('sha256').update(text).digest());
  if (!timingSafeEqual(own!, other!))
    throw new PosthornError('person_required', {}, 'This form is out of date. Load the page again.');
}

/**
 * In which of 65,536 buckets attempts of a client's address are counted. Of IPv6 the network counts, since one client
 * has a whole one. Behind a proxy, which is one on a private address, the address is the one that the proxy names.
 */
export function addressBucket(ctx: Context): number {
  const peer = ctx.req.socket.remoteAddress ?? '';
  const named = ctx.get('x-forwarded-for').split(',').at(-1)!.trim();
  const address = isIP(named) && isPrivate(peer) ? named : peer;
  return createHash('sha256').update(networkOf(address)).digest().readUInt16BE();
}

function isPrivate(address: string): boolean {
  return isIP(address) !== 0 && ipaddr.process(address).range() !== 'unicast';
}

function networkOf(address: string): string {
  if (!isIP(address)) return address;
  const parsed = ipaddr.process(address);
  return parsed.kind() === 'ipv4' ? parsed.toString() : parsed.toByteArray().slice(0, 8).join('.');
}

/** For a call with a session that may have ended: then it answers nothing. @throws whatever else went wrong */
export function unlessGone(error: unknown): [] {
  const { code } = toPosthornError(error);
  if (code === 'unauthorized' || code === 'person_required') return [];
  throw error;
}
