import pg from 'pg';
import { inSpan, SpanKind } from '../tracing.ts';

/** What a generated function needs of a connection: a pool, a pooled client or a client. */
export interface Queryable {
  // biome-ignore lint/suspicious/noExplicitAny: rows have the shape that the SQL text says.
  query(text: string, values?: unknown[]): Promise<{ rows: any[] }>;
}

/** How long the server works on one statement (where we may set that), in milliseconds. */
const STATEMENT_TIMEOUT_MS = 10_000;

/** How long we wait for one answer, in milliseconds: longer than the server's own limit, so that it speaks first. */
const QUERY_TIMEOUT_MS = 15_000;

/** How long a caller waits for a free or a new connection, in milliseconds. */
const CONNECT_TIMEOUT_MS = 5_000;

/**
 * Makes a pool whose connections act as one database role.
 *
 * A URL that logs in as the role itself may lead to a transaction pooler, so nothing is set on its
 * connections. Any other login (the embedded server's superuser, in tests and on one machine) asks for
 * the role in its first packet: a connection that cannot have the role is refused by the server, so no
 * statement ever runs as the login, and a `reset role` returns to the role. Where a pooler does not pass that
 * packet on (see canActAs), leave the role out: statements then run as the login.
 *
 * @param options.url where to connect and as whom
 * @param options.role the role that every statement runs as; without it the login
 * @param options.max the largest number of connections
 * @returns a pool that survives the death of its connections; end it when done
 */
export function createPool(options: { url: string; role?: string; max: number; queryTimeoutMs?: number }): pg.Pool {
  const pool = new pg.Pool({
    connectionString: options.role === undefined ? options.url : actAs(options.role, options.url),
    application_name: 'posthorn',
    max: options.max,
    query_timeout: options.queryTimeoutMs ?? QUERY_TIMEOUT_MS,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
    types: { getTypeParser },
  });
  // Without listeners, the death of a connection that runs no query would end the process. The pool has
  // dropped it by then, and whoever queries next connects anew or learns why not.
  pool.on('error', () => {});
  pool.on('connect', (client) => client.on('error', () => {}));
  // The driver's own pool.query throws a connection away after every SQL error, so that refusals, which
  // are ordinary here, would cost a new connection each.
  pool.query = ((text: string, values?: unknown[]) => {
    const ask = () => withClient(pool, (client) => client.query(text, values));
    return inCallSpan(text, () =>
      ask().catch((error) => {
        if (metRebuild(error)) return ask();
        throw error;
      }),
    );
  }) as typeof pool.query;
  return pool;
}

/**
 * A call that waits while the functions are exchanged goes on with types that are gone. It is a transaction of its own,
 * so that nothing was done, and the next try finds the new ones.
 */
function metRebuild(error: unknown): boolean {
  return error instanceof pg.DatabaseError && error.code === 'XX000' && error.message.startsWith('cache lookup failed');
}

/** A call of one of our functions is a span of the function's name; what else is asked is none. */
function inCallSpan<T>(text: string, work: () => Promise<T>): Promise<T> {
  const name = / from ((?:posthorn_api|ops)\.[a-z_]+)\(/.exec(text)?.[1];
  const attributes = { 'db.system.name': 'postgresql' };
  return name === undefined ? work() : inSpan(name, { kind: SpanKind.CLIENT, attributes }, work);
}

/**
 * Whether the way to the database lets a login take on a role with its first packet. PgBouncer refuses that packet
 * ("unsupported startup parameter"), other poolers drop it without a word; both are fine with a login that is the role.
 *
 * @throws Error if the database cannot be reached or does not let this login have the role
 */
export async function canActAs(role: string, url: string): Promise<boolean> {
  const client = new pg.Client({
    connectionString: actAs(role, url),
    application_name: 'posthorn',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    query_timeout: QUERY_TIMEOUT_MS,
  });
  client.on('error', () => {});
  try {
    await client.connect();
    const { rows } = await client.query('select current_user as name');
    return rows[0].name === role;
  } catch (error) {
    if (error instanceof Error && error.message.startsWith('unsupported startup parameter')) return false;
    throw error;
  } finally {
    await client.end();
  }
}

/**
 * Lends one connection of the pool to `work`. Afterwards the connection goes back, unless an error left
 * it in an unknown state: then it is closed, since a late answer would reach the next borrower.
 */
export async function withClient<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  try {
    const result = await work(client);
    client.release();
    return result;
  } catch (error) {
    client.release(leavesConnectionUsable(error) ? undefined : (error as Error));
    throw error;
  }
}

/**
 * Whether an error says that the database could not be reached or gave no answer, rather than that it
 * refused a statement. The caller may answer "unavailable" and try again.
 */
export function isConnectionError(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  if (error instanceof pg.DatabaseError) return isUnavailableState(error.code ?? '');
  if ('syscall' in error || error instanceof AggregateError) return true;
  return DRIVER_CONNECTION_MESSAGES.some((message) => error.message.startsWith(message));
}

/** The driver gives these no code. */
const DRIVER_CONNECTION_MESSAGES = [
  'Connection terminated',
  'timeout exceeded when trying to connect',
  'timeout expired',
  'Query read timeout',
  'Client has encountered a connection error',
  'Client was closed',
  'Cannot use a pool after calling end',
  'Client network socket disconnected',
  'The server does not support SSL connections',
];

/**
 * Connection exceptions (08, where poolers put theirs too), too many connections, shutdowns and crashes,
 * and a read-only server: after a failover that is the old primary. 55000 is what a standby says to our question for its
 * place in the log; a connection that was led there must not outlive the mistake.
 */
function isUnavailableState(sqlstate: string): boolean {
  return (
    sqlstate.startsWith('08') ||
    sqlstate.startsWith('57P') ||
    sqlstate === '53300' ||
    sqlstate === '25006' ||
    sqlstate === '55000'
  );
}

/** A statement that the server itself refused leaves the connection as good as before; a cancelled one is not trusted. */
function leavesConnectionUsable(error: unknown): boolean {
  return error instanceof pg.DatabaseError && error.code !== '57014' && !isConnectionError(error);
}

/** Adds the role to the URL itself, since settings in a URL win over those beside it. */
function actAs(role: string, url: string): string {
  if (!/^[a-z_]+$/.test(role)) throw new Error(`Not a role of this database: ${role}`);
  const target = new URL(url);
  if (decodeURIComponent(target.username) === role) return url;
  const asked = target.searchParams.get('options');
  const ours = `-c role=${role} -c statement_timeout=${STATEMENT_TIMEOUT_MS}`;
  target.searchParams.set('options', asked ? `${asked} ${ours}` : ours);
  return target.toString();
}

const INT8 = 20;
const INT8_ARRAY = 1016;
const TIMESTAMPTZ = 1184;

const getTypeParser = ((oid: number, format?: 'text' | 'binary') => {
  if (oid === INT8) return parseInt8;
  if (oid === INT8_ARRAY) return parseInt8Array;
  if (oid === TIMESTAMPTZ) return parseTimestamp;
  return getDriverParser(oid, format);
}) as typeof pg.types.getTypeParser;

/** The driver's types know only some of the types that it parses. */
// biome-ignore lint/suspicious/noExplicitAny: each type is parsed to something else.
const getDriverParser = pg.types.getTypeParser as (oid: number, format?: 'text' | 'binary') => (text: string) => any;

function parseInt8(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError(`int8 ${text} does not fit into a number`);
  return value;
}

function parseInt8Array(text: string): (number | null)[] {
  const items: (string | null)[] = getDriverParser(INT8_ARRAY)(text);
  return items.map((item) => (item === null ? null : parseInt8(item)));
}

function parseTimestamp(text: string): Date {
  const value = getDriverParser(TIMESTAMPTZ)(text);
  if (!(value instanceof Date))
    throw new RangeError(`timestamptz ${text} is no date; a function should return null instead`);
  return value;
}
