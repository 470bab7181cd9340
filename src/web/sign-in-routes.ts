import { randomBytes } from 'node:crypto';
import type Router from '@koa/router';
import type { Context } from 'koa';
import type { Logger } from 'pino';
import { hashCredential, makeCredential } from '../crypto/credentials.ts';
import { askForPasskey, passkeyPlace, readPasskeyAnswer } from '../crypto/passkeys.ts';
import type { ServerSecrets } from '../crypto/server-secrets.ts';
import {
  addOpenidAccount,
  beginOpenidAccount,
  beginSignIn,
  findPasskey,
  signOut,
  useOpenidAccount,
  usePasskey,
  useSignInLink,
} from '../db/functions.ts';
import { PosthornError, toPosthornError } from '../errors.ts';
import { makeOpenIdSecret, OpenIdError, type OpenIdProvider, stateOf } from '../openid/provider.ts';
import type { Services } from '../operations/operation.ts';
import { readForm } from '../request/form-body.ts';
import {
  addressBucket,
  readBrowserSecret,
  readSession,
  requireOwnSite,
  unlessGone,
  writeBrowserSecret,
  writeSession,
} from '../request/session.ts';
import type { Web } from './endpoint.ts';
import { go, show } from './responses.ts';
import { takeReturn } from './return-path.ts';
import { goToProviderPage, howToSignInPage, signInFailedPage, signInPage } from './sign-in-pages.ts';
import { passkeyProblem } from './sign-in-parts.ts';

/** Where the provider sends browsers back to. */
export const OPENID_CALLBACK = '/owner/sign-in/openid/callback';

/** What every way in is told of the session to be. */
interface NewSession {
  sessionHash: Buffer;
  label: string;
  bucket: number;
  replaces: Buffer | undefined;
}

const TOO_MANY = 'Too many attempts from here have failed. Wait 15 minutes.';
const TOO_LATE = 'This sign-in was answered already, or waited longer than 15 minutes. Begin again.';

interface SignInOptions {
  services: Services;
  /** The secrets of the server, under one of which accounts at the provider are hashed. */
  loadSecrets: () => Promise<ServerSecrets>;
  web: Pick<Web, 'requireSignedIn' | 'readOwnForm'>;
  log: Logger;
}

/** The ways in: a link, a passkey, the OpenID provider. Who comes in as whom, the database says. */
export function addSignIn(router: Router, { services, loadSecrets, web, log }: SignInOptions): void {
  const { pool } = services;

  /** Makes a session by one of the ways, or answers why not. */
  async function enter(ctx: Context, way: (session: NewSession) => Promise<string>): Promise<string> {
    const { token, hash: sessionHash } = makeCredential('session');
    const replaces = readSession(ctx.req, services.publicUrl)?.credential;
    const outcome = await way({ sessionHash, label: 'Web browser', bucket: addressBucket(ctx), replaces });
    if (outcome !== 'signed_in') return outcome;
    // one of another owner is ended here: the database has just seen the new one's rows alone
    if (replaces) await signOut(pool, { credential: replaces, everywhere: false }).catch(unlessGone);
    writeSession(ctx, services.publicUrl, token);
    go(ctx, takeReturn(ctx, services.publicUrl));
    return outcome;
  }

  function refuse(ctx: Context, status: number, problem: string): void {
    ctx.status = status;
    show(ctx, howToSignInPage({ services, isOnTheWay: false, problem }));
  }

  router.get('/owner/sign-in', (ctx) => {
    const link = ctx.query.link;
    show(ctx, typeof link === 'string' ? signInPage(link) : howToSignInPage({ services, isOnTheWay: false }));
  });

  router.post('/owner/sign-in', async (ctx) => {
    requireOwnSite(ctx, services.publicUrl);
    const form = await readForm(ctx.req);
    const linkHash = hashCredential(form.get('link') ?? '');
    const outcome = await enter(ctx, (session) => useSignInLink(pool, { linkHash, ...session }));
    if (outcome === 'signed_in') return;
    ctx.status = outcome === 'rate_limited' ? 429 : 404;
    show(ctx, signInFailedPage(outcome as 'not_found' | 'rate_limited'));
  });

  // Asked by the page's script, which gives the answer to the authenticator.
  router.post('/owner/sign-in/passkey/options', async (ctx) => {
    try {
      requireOwnSite(ctx, services.publicUrl);
      const place = passkeyPlace(services.publicUrl);
      if (typeof place === 'string') throw new PosthornError('not_found');
      const { challengeHash, options } = await askForPasskey(place);
      const secret = randomBytes(32).toString('base64url');
      await begin(ctx, 'use_passkey', challengeHash, hashCredential(secret));
      writeBrowserSecret(ctx, services.publicUrl, 'passkey', secret);
      ctx.body = { options };
    } catch (thrown) {
      const error = toPosthornError(thrown);
      if (error.code === 'unavailable') throw thrown;
      ctx.status = error.status;
      ctx.body = error.toBody(ctx.state.requestId);
    }
  });

  /** @throws PosthornError rate_limited */
  async function begin(ctx: Context, purpose: string, challengeHash: Buffer, browserHash: Buffer): Promise<void> {
    if (await beginSignIn(pool, { purpose, challengeHash, browserHash, bucket: addressBucket(ctx) })) return;
    throw new PosthornError('rate_limited', { retry_after: 3_600 }, 'Too many sign-ins begin here. Wait an hour.');
  }

  router.post('/owner/sign-in/passkey', async (ctx) => {
    requireOwnSite(ctx, services.publicUrl);
    const form = await readForm(ctx.req);
    const problem = form.get('problem');
    if (problem) return refuse(ctx, 400, passkeyProblem(problem));
    const outcome = await enter(ctx, (session) => enterByPasskey(ctx, form.get('passkey') ?? '', session));
    if (outcome === 'rate_limited') refuse(ctx, 429, TOO_MANY);
    else if (outcome !== 'signed_in')
      refuse(ctx, 404, 'This passkey does not sign anybody in here: it was removed, or took longer than 5 minutes.');
  });

  async function enterByPasskey(ctx: Context, text: string, session: NewSession): Promise<string> {
    const place = passkeyPlace(services.publicUrl);
    const answer = readPasskeyAnswer(text);
    const secret = readBrowserSecret(ctx, services.publicUrl, 'passkey');
    writeBrowserSecret(ctx, services.publicUrl, 'passkey', null);
    if (typeof place === 'string' || answer === null || secret === null) return 'not_found';
    const { challengeHash, handleHash, credentialId } = answer;
    const given = { challengeHash, browserHash: hashCredential(secret), handleHash, credentialId };
    const [found] = await findPasskey(pool, { ...given, bucket: session.bucket });
    if (found!.outcome !== 'found') return found!.outcome;
    const { isValid, signCount } = await answer.check(place, found!.publicKey!);
    return await usePasskey(pool, { ...given, isValid, signCount, ...session });
  }

  const { openid } = services;
  if (openid) addOpenId(openid);

  function addOpenId(provider: OpenIdProvider): void {
    let loading: Promise<ServerSecrets> | undefined;
    const secrets = () => {
      loading ??= loadSecrets();
      loading.catch(() => {
        loading = undefined;
      });
      return loading;
    };

    /** Sends the browser to the provider. By a page, since a form's answer may lead to no other host. */
    async function leave(
      ctx: Context,
      secret: string,
      remember: (stateHash: Buffer, browserHash: Buffer) => Promise<void>,
    ): Promise<void> {
      const url = await provider.begin(secret);
      await remember(hashCredential(stateOf(secret)), hashCredential(secret));
      writeBrowserSecret(ctx, services.publicUrl, 'openid', secret);
      ctx.set('Refresh', `0;url=${url}`);
      show(ctx, goToProviderPage(provider.name, url));
    }

    router.post('/owner/sign-in/openid', async (ctx) => {
      requireOwnSite(ctx, services.publicUrl);
      await leave(ctx, makeOpenIdSecret('enter'), (stateHash, browserHash) =>
        begin(ctx, 'use_openid', stateHash, browserHash),
      ).catch((error) => explain(ctx, error));
    });

    router.post('/owner/settings/openid', async (routed) => {
      const ctx = routed as unknown as Context;
      const signedIn = await web.requireSignedIn(ctx, '/owner/settings');
      if (!signedIn) return;
      await web.readOwnForm(ctx, signedIn);
      const { credential } = signedIn;
      await leave(ctx, makeOpenIdSecret('connect'), (stateHash) =>
        beginOpenidAccount(pool, { credential, stateHash }),
      ).catch((error) => explain(ctx, error));
    });

    router.get(OPENID_CALLBACK, async (routed) => {
      const ctx = routed as unknown as Context;
      const secret = readBrowserSecret(ctx, services.publicUrl, 'openid');
      writeBrowserSecret(ctx, services.publicUrl, 'openid', null);
      if (secret === null) return refuse(ctx, 404, TOO_LATE);
      try {
        await comeBack(ctx, secret);
      } catch (error) {
        explain(ctx, error);
      }
    });

    async function comeBack(ctx: Context, secret: string): Promise<void> {
      const isConnecting = secret.startsWith('connect.');
      const signedIn = isConnecting ? await web.requireSignedIn(ctx, '/owner/settings') : undefined;
      if (signedIn === null) return;
      const { issuer, subject, label } = await provider.finish(secret, `${OPENID_CALLBACK}?${ctx.querystring}`);
      const subjectHash = (await secrets()).subjectHash(issuer, subject);
      const stateHash = hashCredential(stateOf(secret));
      if (signedIn) {
        const { credential } = signedIn;
        await addOpenidAccount(pool, { credential, stateHash, subjectHash, issuer, label }).catch(rephrase);
        return go(ctx, '/owner/settings?said=connected');
      }
      const browserHash = hashCredential(secret);
      const outcome = await enter(ctx, (session) =>
        useOpenidAccount(pool, { stateHash, browserHash, subjectHash, ...session }),
      );
      if (outcome === 'rate_limited') refuse(ctx, 429, TOO_MANY);
      else if (outcome === 'expired') refuse(ctx, 404, TOO_LATE);
      else if (outcome !== 'signed_in')
        refuse(
          ctx,
          403,
          `No owner here has connected that account of ${provider.name}. Sign in by a link, and connect it in Settings.`,
        );
    }

    /** What the provider did wrong is for the log; what was wrong with the request is said. */
    function explain(ctx: Context, thrown: unknown): void {
      if (!(thrown instanceof OpenIdError)) throw thrown;
      const { cause } = thrown as { cause?: { code?: string; error?: string } };
      // what is no code is a caller's text
      const code = [cause?.error, cause?.code].find((each) => each !== undefined && /^\w{1,40}$/.test(each));
      log.warn({ requestId: ctx.state.requestId, kind: thrown.kind, code }, 'openid');
      if (thrown.kind === 'unreachable') refuse(ctx, 502, `${provider.name} does not answer. Try again later.`);
      else refuse(ctx, 403, `${provider.name} did not sign you in.`);
    }
  }
}

/** Why an account cannot be tied, as a sentence. */
function rephrase(thrown: unknown): never {
  const { code, detail } = toPosthornError(thrown);
  if (code === 'expired') throw new PosthornError(code, {}, TOO_LATE);
  if (code !== 'invalid_request') throw thrown;
  throw new PosthornError(
    code,
    {},
    detail.limit === undefined
      ? 'That account is connected already, to this owner or to another one.'
      : 'As many accounts are connected as may be. Disconnect one first.',
  );
}
