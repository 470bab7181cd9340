import { createHash } from 'node:crypto';
import Router from '@koa/router';
import type { Context, Middleware } from 'koa';
import { listOwnerProposals } from '../db/functions.ts';
import { PosthornError, toPosthornError } from '../errors.ts';
import { UUID_PLACE } from '../operations/fields.ts';
import type { OwnerOperation, Services } from '../operations/operation.ts';
import { OWNER_OPERATIONS } from '../operations/owner.ts';
import { parseInput } from '../operations/parse-input.ts';
import { writeSession } from '../request/session.ts';
import { activityPage } from './activity-page.ts';
import { agentsPage } from './agents-page.ts';
import { connectClientPage, connectPage } from './connect-page.ts';
import { connectionsPage, newTokenCard } from './connections-page.ts';
import type { SignedIn, Web } from './endpoint.ts';
import { readDuration } from './form-parts.ts';
import { type Html, html } from './html.ts';
import { inboxPage } from './inbox-page.ts';
import { appPage, type Place, page } from './layout.ts';
import { OLDER_LISTS, type OlderList, type Reader } from './reader.ts';
import { go, show } from './responses.ts';
import { settingsPage } from './settings-page.ts';
import { passkeyProblem } from './sign-in-parts.ts';

/** How often a page that somebody looks at asks for itself, in seconds, where it shows what no owner's event tells. */
const LIVE_SECONDS = 5;
/** The log and its charts cost more, and are read more slowly. */
const ACTIVITY_SECONDS = 30;

/** Where each page of the app is, and what is on it. */
const PAGES: Record<Place, { path: string; title: string; load(reader: Reader): Promise<Loaded> }> = {
  inbox: { path: '/owner', title: 'Inbox', load: inboxPage },
  agents: { path: '/owner/agents', title: 'Agents', load: every(LIVE_SECONDS, agentsPage) },
  connections: { path: '/owner/connections', title: 'Connections', load: every(LIVE_SECONDS, connectionsPage) },
  connect: { path: '/owner/connect', title: 'Connect an agent', load: every(LIVE_SECONDS, connectPage) },
  activity: { path: '/owner/activity', title: 'Activity', load: every(ACTIVITY_SECONDS, activityPage) },
  settings: { path: '/owner/settings', title: 'Settings', load: every(undefined, settingsPage) },
};

/** What is on a page, and how often it asks for itself. */
interface Loaded {
  content: Html;
  seconds: number | undefined;
}

function every(seconds: number | undefined, load: (reader: Reader) => Promise<Html>) {
  return async (reader: Reader): Promise<Loaded> => ({ content: await load(reader), seconds });
}

/** What is said after an act, by the word that stands in the address. */
const SAID: Record<string, string> = {
  approved: 'Approved. What was held is on its way.',
  denied: 'Denied. What was held is gone.',
  lifted: 'They may ask again.',
  made: 'Made: they may talk now.',
  renewed: 'Renewed.',
  ended: 'Ended.',
  revoked: 'Revoked.',
  restored: 'Restored. It joins no collaboration by itself.',
  stopped: 'Stopped. Nothing more goes there until you say so.',
  goes_on: 'It is used again.',
  changed: 'Changed.',
  passkey_added: 'Added. From now on it signs you in.',
  removed: 'Removed.',
  connected: 'Connected. From now on that account signs you in.',
};

/** A form of a page: which operation it is, what of the form goes into it, and where one is afterwards. */
interface Act {
  path: string;
  operation: string;
  input?(form: URLSearchParams): Record<string, unknown>;
  place: Place;
  said: keyof typeof SAID;
}

/** A field that may be left empty. */
const optional = (form: URLSearchParams, name: string) => form.get(name)?.trim().replaceAll('\r\n', '\n') || undefined;
const required = (form: URLSearchParams, name: string) => optional(form, name) ?? '';

const ACTS: Act[] = [
  {
    path: '/requests/:id/approve',
    operation: 'approve_proposal',
    input: (form) => ({
      name: optional(form, 'name'),
      purpose: optional(form, 'purpose'),
      duration_hours: readDuration(form),
    }),
    place: 'inbox',
    said: 'approved',
  },
  { path: '/requests/:id/deny', operation: 'deny_proposal', place: 'inbox', said: 'denied' },
  { path: '/requests/:id/lift', operation: 'lift_denial', place: 'inbox', said: 'lifted' },
  {
    path: '/groups',
    operation: 'create_group',
    input: (form) => ({
      name: required(form, 'name'),
      purpose: required(form, 'purpose'),
      project_boundary: optional(form, 'project_boundary'),
      duration_hours: readDuration(form),
      agent_ids: form.getAll('agent'),
    }),
    place: 'agents',
    said: 'made',
  },
  {
    path: '/groups/:id/renew',
    operation: 'renew_group',
    input: (form) => ({ duration_hours: readDuration(form) }),
    place: 'agents',
    said: 'renewed',
  },
  { path: '/groups/:id/revoke', operation: 'revoke_group', place: 'agents', said: 'ended' },
  { path: '/agents/:id/revoke', operation: 'revoke_owner_agent', place: 'agents', said: 'revoked' },
  { path: '/agents/:id/restore', operation: 'restore_owner_agent', place: 'agents', said: 'restored' },
  { path: '/webhooks/:id/disable', operation: 'disable_webhook', place: 'agents', said: 'stopped' },
  { path: '/webhooks/:id/lift', operation: 'lift_webhook', place: 'agents', said: 'goes_on' },
  { path: '/connections/:id/revoke', operation: 'revoke_connection', place: 'connections', said: 'revoked' },
  ...(['agents', 'settings'] as const).map(
    (place): Act => ({
      path: `/${place}/automatic-approval`,
      operation: 'change_owner_settings',
      input: (form) => ({ automatic_approval: form.get('value') === 'on' }),
      place,
      said: 'changed',
    }),
  ),
  {
    path: '/settings/sensitive-content-check',
    operation: 'change_owner_settings',
    input: (form) => ({ sensitive_content_check: form.get('value') === 'on' }),
    place: 'settings',
    said: 'changed',
  },
  {
    path: '/settings/passkeys',
    operation: 'add_passkey',
    input(form) {
      const problem = form.get('problem');
      if (problem) throw new PosthornError('invalid_request', {}, passkeyProblem(problem));
      return { label: required(form, 'label'), passkey: form.get('passkey') ?? '' };
    },
    place: 'settings',
    said: 'passkey_added',
  },
  { path: '/settings/passkeys/:id/remove', operation: 'remove_passkey', place: 'settings', said: 'removed' },
  { path: '/settings/openid/:id/remove', operation: 'remove_openid_account', place: 'settings', said: 'removed' },
];

/** Acts whose answer is a token, which is shown in the answer and nowhere else. */
const TOKEN_ACTS: Pick<Act, 'path' | 'operation' | 'input'>[] = [
  {
    path: '/connections',
    operation: 'create_service_token',
    input: (form) => ({ label: required(form, 'label'), scopes: form.getAll('scope') }),
  },
  { path: '/connections/:id/rotate', operation: 'rotate_token' },
];

/** How fields are called on the pages, where a refusal names them. */
const FIELDS: Record<string, string> = {
  agent_ids: 'Agents',
  confirm: 'The label',
  duration_hours: 'How long',
  label: 'What it is for',
  name: 'Name',
  project_boundary: 'Within which project',
  purpose: 'Purpose',
  scopes: 'What it may do',
};

/** The pages of the app, and the forms on them. Each form is an operation of /owner/v1, by the same rules. */
export function ownerPages(services: Services, web: Pick<Web, 'requireSignedIn' | 'readOwnForm'>): Middleware {
  const router = new Router({ prefix: '/owner' });

  const readerOf = (ctx: Context, { credential, formToken }: SignedIn): Reader => ({
    pool: services.pool,
    credential,
    formToken,
    publicUrl: services.publicUrl,
    pushPublicKey: services.pushPublicKey,
    openidName: services.openid?.name,
    now: new Date(),
    older: (list) => olderOf(ctx, list),
  });

  /** Answers a page of the app. One that can be asked for again is answered in full only if something changed. */
  async function render(
    ctx: Context,
    signedIn: SignedIn,
    parts: Pick<Parameters<typeof appPage>[0], 'place' | 'title' | 'live' | 'problem' | 'content'>,
  ): Promise<void> {
    const { pool } = services;
    const waiting = await listOwnerProposals(pool, { credential: signedIn.credential, currentOnly: true });
    const word = ctx.query.said;
    const said = ctx.method === 'GET' && typeof word === 'string' && Object.hasOwn(SAID, word) ? SAID[word] : undefined;
    const { owner, formToken } = signedIn;
    const markup = appPage({ ...parts, owner, formToken, waiting: waiting.length, said });
    if (parts.live === undefined) return show(ctx, markup);
    const version = createHash('sha256').update(markup).digest('base64url').slice(0, 22);
    show(ctx, markup.replace('<body ', `<body data-live-version="${version}" `));
    ctx.set('ETag', `"${version}"`);
    // not by ctx.fresh: what asks without a cache of its own says no-cache besides
    if (ctx.get('if-none-match') === `"${version}"`) ctx.status = 304;
  }

  async function renderPlace(ctx: Context, signedIn: SignedIn, place: Place, problem?: string): Promise<void> {
    const { path, title, load } = PAGES[place];
    const { content, seconds } = await load(readerOf(ctx, signedIn));
    const live = problem === undefined ? { path: path + keptQuery(ctx), seconds } : undefined;
    await render(ctx, signedIn, { place, title, live, problem, content });
  }

  /** Does what a form asks for. @throws PosthornError */
  async function perform(operation: OwnerOperation, signedIn: SignedIn, input: Record<string, unknown>) {
    const signal = new AbortController().signal; // no operation of the owner waits
    const output = await operation.run(
      services,
      { credential: signedIn.credential, signal },
      parseInput(operation, input),
    );
    services.credentialUse.note(signedIn.credential);
    return output as Record<string, unknown>;
  }

  /** A form's endpoint: what is refused is said on the page that the form is on. */
  function onForm(
    { path, operation: name, input, place }: Omit<Act, 'said'>,
    answer: (ctx: Context, signedIn: SignedIn, output: Record<string, unknown>) => Promise<void> | void,
  ): void {
    const operation = OWNER_OPERATIONS.find((each) => each.name === name)!;
    router.post(path, async (routed) => {
      const ctx = routed as unknown as Context;
      const signedIn = await web.requireSignedIn(ctx);
      if (!signedIn) return;
      const form = await web.readOwnForm(ctx, signedIn);
      try {
        const output = await perform(operation, signedIn, { ...input?.(form), ...ctx.params });
        await answer(ctx, signedIn, output);
      } catch (thrown) {
        const error = toPosthornError(thrown);
        if (error.code === 'unavailable') throw thrown;
        ctx.state.errorCode = error.code;
        await renderPlace(ctx, signedIn, place, inWords(error));
        ctx.status = error.status;
      }
    });
  }

  for (const place of Object.keys(PAGES) as Place[]) {
    const path = PAGES[place].path.replace(/^\/owner/, '');
    router.get(path === '' ? '/' : path, async (ctx) => {
      const returnTo = place === 'inbox' ? undefined : PAGES[place].path;
      const signedIn = await web.requireSignedIn(ctx as unknown as Context, returnTo);
      if (signedIn) await renderPlace(ctx as unknown as Context, signedIn, place);
    });
  }

  router.get('/connect/:client', async (routed, next) => {
    const ctx = routed as unknown as Context;
    const path = `/owner/connect/${ctx.params.client}`;
    const signedIn = await web.requireSignedIn(ctx, '/owner/connect');
    if (!signedIn) return;
    const found = await connectClientPage(readerOf(ctx, signedIn), ctx.params.client);
    if (found === null) return await next();
    await render(ctx, signedIn, { place: 'connect', live: { path, seconds: LIVE_SECONDS }, ...found });
  });

  for (const each of ACTS) onForm(each, (ctx) => go(ctx, `${PAGES[each.place].path}?said=${each.said}`));

  for (const each of TOKEN_ACTS)
    onForm({ ...each, place: 'connections' }, async (ctx, signedIn, { token }) => {
      const content = html`${newTokenCard(token as string)}${await connectionsPage(readerOf(ctx, signedIn))}`;
      await render(ctx, signedIn, { place: 'connections', title: 'Connections', live: undefined, content });
    });

  onForm(
    {
      path: '/settings/delete-account',
      operation: 'delete_account',
      input: (form) => ({ confirm: form.get('confirm') ?? '' }),
      place: 'settings',
    },
    (ctx) => {
      writeSession(ctx, services.publicUrl, null);
      show(ctx, page('Deleted', html`<p>Your account is gone. Nothing of it can be read any more, by anybody.</p>`));
    },
  );

  return router.routes() as unknown as Middleware;
}

/** @throws PosthornError invalid_cursor */
function olderOf(ctx: Context, list: OlderList): string | undefined {
  const id = ctx.query[list];
  if (id === undefined || ctx.method !== 'GET') return undefined;
  if (typeof id !== 'string' || !UUID_PLACE.test(id)) throw new PosthornError('invalid_cursor');
  return id;
}

/** What of its address stays with a page while it is kept fresh: what was said, and where lists go on. */
function keptQuery(ctx: Context): string {
  const kept = new URLSearchParams();
  if (ctx.method === 'GET' && Object.hasOwn(SAID, String(ctx.query.said))) kept.set('said', String(ctx.query.said));
  for (const list of OLDER_LISTS) {
    const id = olderOf(ctx, list);
    if (id !== undefined) kept.set(list, id);
  }
  return kept.size === 0 ? '' : `?${kept}`;
}

/** A refusal as a sentence of the page: fields by the words beside them. */
function inWords(error: PosthornError): string {
  if (error.code === 'already_decided' && typeof error.detail.state === 'string')
    return `This was decided before: it is ${error.detail.state}.`;
  const { fields, limit } = error.detail;
  if (limit !== undefined) return 'There are as many as may be. Remove one first.';
  if (!Array.isArray(fields) || fields.length === 0) return error.message;
  if (fields.includes('confirm')) return 'That is not the label of this account. Nothing was deleted.';
  if (fields.includes('passkey')) return 'This passkey is known already.';
  const words = fields.map((field) => FIELDS[String(field).split('.')[0]!] ?? String(field));
  return `Please look at this again: ${[...new Set(words)].join(', ')}.`;
}
