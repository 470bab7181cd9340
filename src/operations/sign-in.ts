import { z } from 'zod';
import {
  askForNewPasskey,
  beginNewPasskey,
  checkNewPasskey,
  type PasskeyPlace,
  passkeyPlace,
} from '../crypto/passkeys.ts';
import {
  addPasskey,
  beginPasskey,
  listOpenidAccounts,
  listPasskeys,
  ownerSettings,
  type PasskeyView,
  removeOpenidAccount,
  removePasskey,
} from '../db/functions.ts';
import { PosthornError } from '../errors.ts';
import { id, line, time } from './fields.ts';
import { defineOwnerOperation, type OwnerOperation } from './operation.ts';

// The ways to sign in that an owner has beside the link, which is the command line's.

const byId = z.strictObject({ id: id() });
const Removed = z.object({ id: id(), removed: z.literal(true) });

const Passkey = z.object({ id: id(), label: z.string(), created_at: time(), last_used_at: time().nullable() });

const OpenIdAccount = Passkey.extend({ issuer: z.string() });

function passkeyView({ id, label, createdAt, lastUsedAt }: PasskeyView): z.infer<typeof Passkey> {
  return { id, label, created_at: createdAt.toISOString(), last_used_at: lastUsedAt?.toISOString() ?? null };
}

/** @throws PosthornError invalid_request */
function placeOf(publicUrl: string): PasskeyPlace {
  const place = passkeyPlace(publicUrl);
  if (typeof place === 'object') return place;
  throw new PosthornError('invalid_request', {}, 'Passkeys need a server with a name, reached by HTTPS or localhost.');
}

export const SIGN_IN_OPERATIONS: OwnerOperation[] = [
  defineOwnerOperation({
    name: 'list_passkeys',
    title: 'List passkeys',
    description: 'The passkeys that sign the owner in.',
    effect: 'reads',
    routes: [{ method: 'GET', path: '/passkeys' }],
    input: z.strictObject({}),
    output: z.object({ passkeys: z.array(Passkey) }),
    async run({ pool }, { credential }) {
      return { passkeys: (await listPasskeys(pool, { credential })).map(passkeyView) };
    },
  }),
  defineOwnerOperation({
    name: 'begin_passkey',
    title: 'Begin a passkey',
    description: 'What to give navigator.credentials.create, in WebAuthn JSON. Good for 5 minutes and this session.',
    effect: 'writes',
    routes: [{ method: 'POST', path: '/passkeys/options' }],
    input: z.strictObject({}),
    output: z.object({ options: z.looseObject({}) }),
    async run({ pool, publicUrl }, { credential }) {
      const place = placeOf(publicUrl);
      const begun = beginNewPasskey();
      const { challengeHash, handleHash } = begun;
      const known = await beginPasskey(pool, { credential, challengeHash, handleHash });
      const [owner] = await ownerSettings(pool, { credential });
      const ids = known.map(({ credentialId }) => credentialId);
      return { options: { ...(await askForNewPasskey(place, begun, owner!.label, ids)) } };
    },
  }),
  defineOwnerOperation({
    name: 'add_passkey',
    title: 'Add a passkey',
    description: 'Keep the passkey that navigator.credentials.create made.',
    effect: 'writes',
    routes: [{ method: 'POST', path: '/passkeys' }],
    input: z.strictObject({
      label: line(64),
      passkey: z.string().max(60_000).describe('What the browser answered: WebAuthn JSON, as text'),
    }),
    output: Passkey,
    status: () => 201,
    async run({ pool, publicUrl }, { credential }, { label, passkey }) {
      const made = await checkNewPasskey(placeOf(publicUrl), passkey);
      if (made === null) throw new PosthornError('invalid_request', {}, 'What the browser answered is not valid here.');
      const { challengeHash, credentialId, publicKey, signCount } = made;
      return passkeyView(
        await addPasskey(pool, { credential, challengeHash, credentialId, publicKey, signCount, label }),
      );
    },
  }),
  defineOwnerOperation({
    name: 'remove_passkey',
    title: 'Remove a passkey',
    description: 'It signs nobody in any more. Sessions that it began go on.',
    effect: 'writes',
    routes: [{ method: 'DELETE', path: '/passkeys/:id' }],
    input: byId,
    output: Removed,
    async run({ pool }, { credential }, { id: passkeyId }) {
      await removePasskey(pool, { credential, passkeyId });
      return { id: passkeyId, removed: true as const };
    },
  }),
  defineOwnerOperation({
    name: 'list_openid_accounts',
    title: 'List OpenID accounts',
    description: "The accounts at the operator's OpenID provider that sign the owner in.",
    effect: 'reads',
    routes: [{ method: 'GET', path: '/openid-accounts' }],
    input: z.strictObject({}),
    output: z.object({ openid_accounts: z.array(OpenIdAccount) }),
    async run({ pool }, { credential }) {
      const rows = await listOpenidAccounts(pool, { credential });
      return { openid_accounts: rows.map((row) => ({ ...passkeyView(row), issuer: row.issuer })) };
    },
  }),
  defineOwnerOperation({
    name: 'remove_openid_account',
    title: 'Disconnect an OpenID account',
    description: 'It signs nobody in any more. Sessions that it began go on.',
    effect: 'writes',
    routes: [{ method: 'DELETE', path: '/openid-accounts/:id' }],
    input: byId,
    output: Removed,
    async run({ pool }, { credential }, { id: accountId }) {
      await removeOpenidAccount(pool, { credential, accountId });
      return { id: accountId, removed: true as const };
    },
  }),
];
