import net from 'node:net';
import tls from 'node:tls';
import { Client, type Dispatcher, errors } from 'undici';
import { isPublicAddress } from './address.ts';
import { type AllowList, allowsAddress, allowsName } from './allow-list.ts';
import { type Destination, readDestination } from './outbound-url.ts';
import { createResolver, type Resolver, resolveLocalName } from './resolver.ts';

/** Why there is no answer. A name or address that may not be asked, redirect targets never among them: address_blocked. */
export type EgressFailure = 'address_blocked' | 'dns' | 'tls' | 'timeout' | 'connection' | 'body_too_large';

/** A request had no answer. Neither the URL nor anything that was sent or received is in here. */
export class EgressError extends Error {
  override name = 'EgressError';
  readonly kind: EgressFailure;
  /** What the system or the TLS library calls it, such as ECONNREFUSED or CERT_HAS_EXPIRED. */
  readonly code: string | undefined;

  constructor(kind: EgressFailure, code?: string) {
    super(MESSAGES[kind]);
    this.kind = kind;
    this.code = code;
  }
}

const MESSAGES: Record<EgressFailure, string> = {
  address_blocked: 'The host may not be asked, or one of its addresses is not public.',
  dns: 'The name has no address.',
  tls: 'No TLS connection came about.',
  timeout: 'There was no answer in time.',
  connection: 'The connection failed.',
  body_too_large: 'The answer is larger than what was asked for.',
};

export interface EgressRequest {
  method: 'GET' | 'POST';
  headers: Record<string, string>;
  body?: Buffer | string;
  /** For the whole attempt, from the name to the last byte. */
  deadlineMs: number;
  /** How much of the answer's body to take, as it was sent: it is never decompressed. Undefined: nothing, it is discarded. */
  maxBodyBytes?: number;
}

export interface EgressAnswer {
  status: number;
  /** Names in lower case; repeated ones joined by a comma. */
  headers: Record<string, string>;
  body: Buffer | null;
}

export interface Egress {
  /**
   * Makes one request over a connection of its own. A redirect is an answer like any other.
   *
   * @throws EgressError
   * @throws undici's InvalidArgumentError for headers that are none
   */
  request(url: string, options: EgressRequest): Promise<EgressAnswer>;
  /** Cuts what is under way, as a failure of the connection. */
  close(): Promise<void>;
}

/** Room for a few cookies and policies; 3,000 headers are an attack. */
const MAX_HEADER_BYTES = 16_384;

/** For what an attempt that is over leaves open. Made once: each new error pays for its stack. */
const OVER = new EgressError('connection');

/** A body that nobody wants may still end by itself within so much time and size: then no receiver sees a reset. */
const DISCARD_MS = 50;
const DISCARD_BYTES = 65_536;

/**
 * The one place that opens outbound connections. Who names the host is not trusted: each request resolves it anew,
 * refuses it if any of its addresses is not public, and connects to one that was looked at. No connection is kept for
 * the next request, since a kept one would skip that look: a name that moved would still be asked at its old address.
 *
 * @param options.allow where an operator lets requests go besides
 * @param options.resolve for tests; otherwise the name servers are asked
 */
export function createEgress(options: { allow: AllowList; resolve?: Resolver }): Egress {
  const { allow } = options;
  const resolvePublicName = options.resolve ?? createResolver();
  const underWay = new Set<AbortController>();

  /** The addresses of a name, if all of them may be connected to. */
  async function addressesOf({ host, port }: Destination): Promise<string[]> {
    const isAllowed = allowsName(allow, host, port);
    const resolve = isAllowed && !options.resolve ? resolveLocalName : resolvePublicName;
    const addresses = await resolve(host).catch((error) => {
      throw new EgressError('dns', error.code);
    });
    if (addresses.length === 0) throw new EgressError('dns');
    const mayConnect = (address: string) =>
      net.isIP(address) !== 0 && (isAllowed || isPublicAddress(address) || allowsAddress(allow, address, port));
    if (!addresses.every(mayConnect)) throw new EgressError('address_blocked');
    return addresses;
  }

  async function attempt(url: string, request: EgressRequest, signal: AbortSignal): Promise<EgressAnswer> {
    const destination = readDestination(url, allow);
    if (typeof destination === 'string') throw new EgressError('address_blocked');
    const addresses = destination.isAddress ? [destination.host] : await addressesOf(destination);
    signal.throwIfAborted();
    const socket = await connect(destination, pickAddress(addresses), signal);
    return await exchange(destination, socket, request, signal);
  }

  return {
    async request(url, request) {
      const cutting = new AbortController();
      const timer = setTimeout(() => cutting.abort(new EgressError('timeout')), request.deadlineMs);
      underWay.add(cutting);
      try {
        // not every step can be interrupted (a lookup cannot), so none is waited for beyond the deadline
        return await Promise.race([attempt(url, request, cutting.signal), whenAborted(cutting.signal)]);
      } finally {
        clearTimeout(timer);
        underWay.delete(cutting);
        cutting.abort(OVER); // whatever is left of it
      }
    },
    async close() {
      for (const cutting of underWay) cutting.abort(new EgressError('connection'));
    },
  };
}

function whenAborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }));
}

/** IPv4 first: many a pod has no way to an IPv6 address, and no receiver has IPv6 alone by mistake. */
function pickAddress(addresses: string[]): string {
  return addresses.find(net.isIPv4) ?? addresses[0]!;
}

/** A socket to exactly this address, ready for HTTP; the certificate is checked against the host. Destroyed by the signal. */
async function connect({ host, isAddress, port, isTls }: Destination, address: string, signal: AbortSignal) {
  const socket = net.connect({ host: address, port, noDelay: true });
  closeWith(signal, socket);
  await ready(socket, 'connect', 'connection');
  if (!isTls) return socket;
  const secured = tls.connect({
    socket,
    // addresses have no server name; their certificates are checked against `host`
    host,
    servername: isAddress ? '' : host,
    rejectUnauthorized: true,
    ALPNProtocols: ['http/1.1'],
  });
  closeWith(signal, secured);
  await ready(secured, 'secureConnect', 'tls');
  return secured;
}

function closeWith(signal: AbortSignal, socket: net.Socket): void {
  socket.on('error', () => {}); // whoever waits for it hears of it
  signal.addEventListener('abort', () => socket.destroy(), { once: true });
}

function ready(socket: net.Socket, event: string, failure: EgressFailure): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (error?: NodeJS.ErrnoException | false) =>
      reject(new EgressError(failure, (error || undefined)?.code));
    socket.once('error', fail).once('close', fail);
    socket.once(event, () => {
      socket.off('error', fail).off('close', fail);
      resolve();
    });
  });
}

/** Sends the request and takes what is wanted of the answer. */
async function exchange(
  { origin, path }: Destination,
  socket: net.Socket,
  { method, headers, body, maxBodyBytes }: EgressRequest,
  signal: AbortSignal,
): Promise<EgressAnswer> {
  const client = new Client(origin, {
    // this socket and no other: undici would connect anew for a request that it thinks it may repeat
    connect(_options, callback) {
      // not at once: undici takes no notice of what happens while it asks
      queueMicrotask(() => (socket.destroyed ? callback(new Error('It is gone.'), null) : callback(null, socket)));
    },
    maxHeaderSize: MAX_HEADER_BYTES,
    // idle times: the deadline is for all of it
    headersTimeout: 0,
    bodyTimeout: 0,
  });
  signal.addEventListener('abort', () => void client.destroy(), { once: true });
  return await new Promise((resolve, reject) => {
    client.dispatch({ method, path, headers, body, reset: true }, answerHandler(maxBodyBytes, resolve, reject));
  });
}

/** Resolves at the end of the body; of one that is not wanted, at the latest after a moment. */
function answerHandler(
  maxBodyBytes: number | undefined,
  resolve: (answer: EgressAnswer) => void,
  reject: (error: unknown) => void,
): Dispatcher.DispatchHandler {
  const isWanted = maxBodyBytes !== undefined;
  const chunks: Buffer[] = [];
  let bytes = 0;
  let status = 0;
  let headers: Record<string, string> = {};
  const finish = () => resolve({ status, headers, body: isWanted ? Buffer.concat(chunks) : null });
  return {
    onRequestStart() {},
    onResponseStart(_controller, statusCode, fields) {
      if (statusCode < 200) return; // the answer itself follows
      status = statusCode;
      headers = Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, [value].flat().join(', ')]));
      if (!isWanted) setTimeout(finish, DISCARD_MS).unref();
    },
    onResponseData(_controller, chunk) {
      bytes += chunk.length;
      if (isWanted) chunks.push(chunk);
      if (isWanted && bytes > maxBodyBytes) reject(new EgressError('body_too_large'));
      else if (!isWanted && bytes > DISCARD_BYTES) finish();
    },
    onResponseEnd: finish,
    onResponseError(_controller, error) {
      const { code } = error as { code?: string };
      if (status !== 0 && !isWanted) finish();
      else reject(error instanceof errors.InvalidArgumentError ? error : new EgressError('connection', code));
    },
  };
}
