import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { checkKeyRing, type KeyRing } from './crypto/key-ring.ts';
import { createOwnerKeys } from './crypto/owner-keys.ts';
import { loadServerSecrets, type PushKeys } from './crypto/server-secrets.ts';
import { createCredentialUse } from './db/credential-use.ts';
import { ringKeys } from './db/functions.ts';
import { createListener, type ListenerProblem } from './db/listener.ts';
import { readSqlFiles, schemaState } from './db/migrate.ts';
import { canActAs, createPool } from './db/pool.ts';
import { createReceiptLane } from './db/receipt-lane.ts';
import { fenceIfRestored } from './db/restored-server.ts';
import { createSendLane } from './db/send-lane.ts';
import { createStreamHub } from './events/stream-hub.ts';
import { createRequestListener } from './http/app.ts';
import { createEventStreamDoor } from './http/event-stream-route.ts';
import { createMcpEndpoint } from './mcp/endpoint.ts';
import { metrics, showPool } from './metrics.ts';
import { type AllowList, parseAllowList } from './net/allow-list.ts';
import { createEgress, type Egress } from './net/egress.ts';
import { createOAuth } from './oauth/endpoint.ts';
import { allowIssuer, createOpenIdProvider, type OpenIdSettings } from './openid/provider.ts';
import type { Services } from './operations/operation.ts';
import { packageRoot } from './package-root.ts';
import { consentPage, deviceConsentPage, devicePairedPage, enterCodePage } from './web/consent-pages.ts';
import { createWeb } from './web/endpoint.ts';
import { refusedPage } from './web/sign-in-pages.ts';
import { OPENID_CALLBACK } from './web/sign-in-routes.ts';

const POOL_SIZE = 10;
/** Two send lanes, their planner and the receipt lane: they never wait for a reader's connection. */
const LANE_POOL_SIZE = 4;
/** How long requests under way may take after the port is closed, in milliseconds. */
const DRAIN_MS = 10_000;
const IDLE_CHECK_MS = 20;

/** Public HTTPS and no other place. */
const PUBLIC_ONLY: AllowList = { names: [], networks: [] };

/** What an operator is told while notifications do not arrive; meanwhile readers look every few seconds. */
const LISTENER_PROBLEMS: Record<ListenerProblem, string> = {
  unreachable: 'POSTHORN_LISTEN_URL does not answer',
  standby: 'POSTHORN_LISTEN_URL is a standby, which hears nothing: it must be the primary',
  deaf: 'POSTHORN_LISTEN_URL is a transaction pooler or another database: LISTEN succeeds and nothing arrives',
};

export interface Pod {
  url: string;
  /** Stops accepting, lets what is under way finish, then closes everything. */
  close(): Promise<void>;
}

/**
 * One API process: HTTP and MCP over the database's functions. Pods share nothing but the database.
 *
 * @throws Error if the key ring is not the one that the database depends on
 */
export async function startPod(options: {
  databaseUrl: string;
  listenUrl: string;
  publicUrl: string | undefined;
  host: string;
  port: number;
  keyRing: KeyRing;
  /** Reads the ring anew, for keys that came with a rotation since. */
  readKeyRing?: () => Promise<KeyRing>;
  /** Where webhooks and pushes may go besides public HTTPS; nowhere without it. */
  webhookAllow?: AllowList;
  /** The OpenID provider that owners may sign in at; none without it. */
  openid?: OpenIdSettings | undefined;
  /** For tests: what opens outbound connections. */
  egress?: Egress;
  log: Logger;
}): Promise<Pod> {
  const { log } = options;
  const role = (await canActAs('posthorn_app', options.databaseUrl)) ? 'posthorn_app' : undefined;
  // Functions run as their owner, under row level security, so nothing else changes.
  if (!role) log.warn('The pooler passes no role on, so this pod runs as its login. Log in as posthorn_app instead.');
  const pool = createPool({ url: options.databaseUrl, role, max: POOL_SIZE });
  const lanePool = createPool({ url: options.databaseUrl, role, max: LANE_POOL_SIZE });
  showPool('requests', pool);
  showPool('lanes', lanePool);
  const endPools = () => Promise.all([pool.end(), lanePool.end()]);
  const recognise = async () => {
    if (await fenceIfRestored(pool)) log.warn('this database was restored; all mail in it was fenced');
  };
  try {
    checkKeyRing(options.keyRing, await ringKeys(pool));
    await recognise();
  } catch (error) {
    await endPools();
    throw error;
  }
  const ownerKeysOf = createOwnerKeys(pool, options.keyRing, options.readKeyRing);
  const listener = createListener({
    url: options.listenUrl,
    speak: (sql, values) => pool.query(sql, values),
    onChange(isListening, problem) {
      if (problem) log.warn({ problem }, LISTENER_PROBLEMS[problem]);
      else log.info({ isListening }, 'listener');
      metrics.listening.set(isListening ? 1 : 0);
      if (isListening) metrics.listenerConnects.inc();
      // behind a connection that was lost there may be another database now
      if (isListening) void recognise().catch((err) => log.error({ err }, 'the database could not be recognised'));
    },
  });
  const openRing = async () => (await options.readKeyRing?.()) ?? options.keyRing;
  const loadSecrets = () => loadServerSecrets(pool, openRing);
  let pushKeys: PushKeys | undefined;
  const openidEgress = createEgress({ allow: options.openid ? allowIssuer(options.openid.issuer) : PUBLIC_ONLY });
  const services: Services = {
    pool,
    ownerKeysOf,
    sendLane: createSendLane(lanePool, ownerKeysOf),
    receiptLane: createReceiptLane(lanePool),
    listener,
    credentialUse: createCredentialUse(pool, (err) => log.warn({ err }, 'what was used could not be noted')),
    webhookAllow: options.webhookAllow ?? parseAllowList(''),
    async pushPublicKey() {
      pushKeys ??= (await loadSecrets()).pushKeys;
      return pushKeys.publicKey;
    },
    openid:
      options.openid && createOpenIdProvider(options.openid, () => services.publicUrl + OPENID_CALLBACK, openidEgress),
    publicUrl: options.publicUrl ?? '',
  };
  const draining = new AbortController();
  const sqlFiles = await readSqlFiles(join(packageRoot, 'sql'));
  const isReady = async () => {
    try {
      const [{ isStandby }] = (await pool.query('select pg_catalog.pg_is_in_recovery() as "isStandby"')).rows;
      return !isStandby && ['current', 'ahead'].includes(await schemaState(pool, sqlFiles));
    } catch {
      return false;
    }
  };
  const hub = createStreamHub(services);
  const web = createWeb(services, loadSecrets, log);
  // what webhooks may reach besides is not for whoever names a client document: that is anybody
  const egress = options.egress ?? createEgress({ allow: PUBLIC_ONLY });
  const oauth = createOAuth({
    services,
    openRing,
    egress,
    pages: {
      ...web,
      consent: consentPage,
      deviceConsent: deviceConsentPage,
      deviceDone: devicePairedPage,
      enterCode: enterCodePage,
      refused: refusedPage,
    },
    log,
  });
  const mcp = createMcpEndpoint(services, { publicUrl: () => services.publicUrl, log, draining: draining.signal, hub });
  const events = createEventStreamDoor(services, hub, log);
  const listen = createRequestListener({
    services,
    log,
    draining: draining.signal,
    isReady,
    mcp,
    events,
    web: web.middleware,
    oauth,
  });
  const closeServices = async () => {
    await Promise.all([services.sendLane.idle(), services.receiptLane.idle(), services.credentialUse.close()]);
    await listener.close();
    await Promise.all([egress.close(), openidEgress.close()]);
    await endPools();
  };
  const server = createServer(listen).listen(options.port, options.host);
  try {
    await once(server, 'listening');
  } catch (error) {
    await closeServices();
    throw error;
  }
  const { port } = server.address() as AddressInfo;
  const url = `http://${options.host.includes(':') ? `[${options.host}]` : options.host}:${port}`;
  services.publicUrl = options.publicUrl ?? url;
  return {
    url,
    async close() {
      draining.abort();
      await hub.drain();
      await closeServer(server);
      await closeServices();
    },
  };
}

/** Resolves when every connection is closed; those still busy after the drain are cut. */
async function closeServer(server: Server): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  // again and again, since a connection that answers during the drain stays open for its keep-alive of 5 s
  const idle = setInterval(() => server.closeIdleConnections(), IDLE_CHECK_MS);
  const late = setTimeout(() => server.closeAllConnections(), DRAIN_MS);
  await closed;
  clearInterval(idle);
  clearTimeout(late);
}
