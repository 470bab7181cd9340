import { errors, type OidcContext, type Payload, Provider } from 'oidc-provider';
import type pg from 'pg';
import { hashCredential } from '../crypto/credentials.ts';
import type { ServerSecrets } from '../crypto/server-secrets.ts';
import {
  addGrantToken,
  consumeGrantToken,
  consumeOauthRecord,
  deleteOauthRecord,
  endGrantToken,
  findGrantToken,
  findOauthRecord,
  putOauthRecord,
  revokeOauthGrant,
} from '../db/functions.ts';
import { toPosthornError } from '../errors.ts';
import { knownScopes } from './client-habits.ts';

/** What the library's models of a grant are called in the database; the others belong to nobody yet. */
const KINDS: Record<string, string> = {
  Grant: 'grant',
  AuthorizationCode: 'code',
  RefreshToken: 'refresh',
  AccessToken: 'access',
};

/** What the library asks of its storage, for one model. */
interface Adapter {
  upsert(id: string, payload: Payload, secondsToLive: number): Promise<void>;
  find(id: string): Promise<Payload | undefined>;
  findByUid(uid: string): Promise<Payload | undefined>;
  findByUserCode(userCode: string): Promise<Payload | undefined>;
  consume(id: string): Promise<void>;
  destroy(id: string): Promise<void>;
  revokeByGrantId(grantId: string): Promise<void>;
}

interface AdapterOptions {
  pool: pg.Pool;
  secrets: ServerSecrets;
  /** The session of the browser that is answered now: what proves the owner's consent to the database. */
  sessionCredential: () => Buffer | undefined;
}

/**
 * The library's storage. The database sees hashes of ids, which are what clients hold, and sealed content, so that a
 * dump opens nothing; and it is shown what makes each step legitimate, so that a pod alone can make no token.
 */
export function createAdapters(options: AdapterOptions): (model: string) => Adapter {
  return (model) => {
    const kind = KINDS[model];
    return kind === undefined ? recordAdapter(model, options) : grantAdapter(model, kind, options);
  };
}

function grantAdapter(model: string, kind: string, { pool, secrets, sessionCredential }: AdapterOptions): Adapter {
  const isConsent = kind === 'grant' || kind === 'code';
  return {
    ...NOT_OF_GRANTS,
    async upsert(id, payload, secondsToLive) {
      await addToken(pool, {
        proof: (isConsent ? sessionCredential() : presentedToken()) ?? Buffer.alloc(0),
        connectionId: kind === 'grant' ? id : payload.grantId!,
        kind,
        tokenHash: hashCredential(id),
        payload: secrets.seal(`${model}|${hashCredential(id).toString('hex')}`, payload),
        scopes: kind === 'access' ? knownScopes(payload.scope) : [],
        seconds: secondsToLive,
      });
    },
    async find(id) {
      const [row] = await findGrantToken(pool, { kind, tokenHash: hashCredential(id) });
      if (!row) return undefined;
      const payload = secrets.open(`${model}|${hashCredential(id).toString('hex')}`, row.payload);
      return row.isConsumed ? { ...payload, consumed: true } : payload;
    },
    async consume(id) {
      const successorHash = kind === 'refresh' ? hashCredential(secrets.successorOf(id)) : null;
      if (!(await consumeGrantToken(pool, { tokenHash: hashCredential(id), successorHash })))
        throw new errors.InvalidGrant('it was used already');
    },
    async destroy(id) {
      if (kind !== 'grant') return await endGrantToken(pool, { tokenHash: hashCredential(id) });
      // a grant is a connection: with it end its tokens, its streams and its mail
      // where it is known no more, somebody else has ended it
      await revokeOauthGrant(pool, { proof: presentedToken() ?? Buffer.alloc(0), connectionId: id }).catch(unlessEnded);
    },
  };
}

function recordAdapter(model: string, { pool, secrets, sessionCredential }: AdapterOptions): Adapter {
  const open = ([row]: { payload: Buffer; consumedAt: Date | null }[]): Payload | undefined => {
    if (!row) return undefined;
    const payload = secrets.open(model, row.payload);
    return row.consumedAt ? { ...payload, consumed: true } : payload;
  };
  return {
    ...NOT_OF_GRANTS,
    async upsert(id, payload, secondsToLive) {
      const idHash = hashCredential(id);
      const sealed = secrets.seal(model, payload);
      await putOauthRecord(pool, {
        model,
        idHash,
        payload: sealed,
        seconds: secondsToLive ?? 0, // a registered client has no end of its own; the database gives it one
        uidHash: payload.uid === undefined ? null : hashCredential(payload.uid),
        userCodeHash: payload.userCode === undefined ? null : hashCredential(payload.userCode),
      });
      if (model !== 'DeviceCode' || payload.grantId === undefined) return;
      // the person has confirmed the machine: from here on its code proves the grant
      const proof = sessionCredential() ?? Buffer.alloc(0);
      const token = { kind: 'device_code', tokenHash: idHash, payload: sealed, scopes: [], seconds: secondsToLive };
      await addToken(pool, { proof, connectionId: payload.grantId, ...token });
    },
    find: async (id) => open(await findOauthRecord(pool, { model, idHash: hashCredential(id) })),
    findByUid: async (uid) => open(await findOauthRecord(pool, { model, uidHash: hashCredential(uid) })),
    findByUserCode: async (code) => open(await findOauthRecord(pool, { model, userCodeHash: hashCredential(code) })),
    async consume(id) {
      if (!(await consumeOauthRecord(pool, { model, idHash: hashCredential(id) })))
        throw new errors.InvalidGrant('it was used already');
    },
    destroy: (id) => deleteOauthRecord(pool, { model, idHash: hashCredential(id) }),
  };
}

const NOT_OF_GRANTS = {
  findByUid: async () => undefined,
  findByUserCode: async () => undefined,
  // ending the grant, which the library does besides, ends all of them at once
  revokeByGrantId: async () => {},
};

/** @throws InvalidGrant where the grant was ended meanwhile, or the session that it would begin with */
async function addToken(pool: pg.Pool, token: Parameters<typeof addGrantToken>[1]): Promise<void> {
  try {
    await addGrantToken(pool, token);
  } catch (error) {
    unlessEnded(error);
    throw new errors.InvalidGrant('it was ended');
  }
}

function unlessEnded(error: unknown): void {
  if (toPosthornError(error).code !== 'unauthorized') throw error;
}

/** What the client presented in the request that is answered now, hashed. */
function presentedToken(): Buffer | undefined {
  const { route, params = {} } = (Provider.ctx?.oidc ?? {}) as Partial<OidcContext>;
  const token = route === 'revocation' ? params.token : (params.code ?? params.refresh_token ?? params.device_code);
  return token === undefined ? undefined : hashCredential(token);
}
