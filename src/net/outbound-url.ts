import { isIP } from 'node:net';
import { domainToASCII, domainToUnicode } from 'node:url';
import { isPublicAddress } from './address.ts';
import { type AllowList, allowsAddress, allowsName } from './allow-list.ts';

/** Where a request goes, taken out of a URL that keeps the rules. */
export interface Destination {
  isTls: boolean;
  /** In ASCII, without the dot of the root; or an IPv6 address without its brackets. */
  host: string;
  /** Whether the host is an address, which nobody resolves. */
  isAddress: boolean;
  port: number;
  /** Scheme, host and port, as undici takes them. */
  origin: string;
  /** With the query. */
  path: string;
}

const PORTS = [443, 8443];

/** Names that no public resolver should know, and that some answer anyway. */
const PRIVATE_SUFFIXES = ['localhost', 'local', 'internal', 'home.arpa'];

/** What the URL parser would skip, repair or take for a slash, where other parsers read another host. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: controls are what it looks for
const AMBIGUOUS = /[\u0000-\u0020\u007f\\]/;

/**
 * Why a URL may not be asked for, or undefined. No name is resolved: what its addresses are is looked at when a request
 * is made, and the same rules hold then again.
 */
export function checkOutboundUrl(url: string, allow: AllowList): string | undefined {
  const destination = readDestination(url, allow);
  return typeof destination === 'string' ? destination : undefined;
}

/** The destination of a URL, or why there is none. An address is judged as what it denotes: 010.0.0.9 is 8.0.0.9. */
export function readDestination(text: string, allow: AllowList): Destination | string {
  const authority = /^https?:\/\/([^/?#]+)/i.exec(text)?.[1];
  if (authority === undefined) return 'It must start with https:// and a host.';
  if (AMBIGUOUS.test(text)) return 'It holds a space, a control character or a backslash.';
  if (authority.includes('@')) return 'It holds credentials.';
  if (text.includes('#')) return 'It holds a fragment.';
  if (!URL.canParse(text)) return 'It is no valid URL.';
  const url = new URL(text);
  url.hostname = url.hostname.replace(/\.$/, '');
  const isTls = url.protocol === 'https:';
  const host = url.hostname.replace(/^\[|\]$/g, '');
  const isAddress = isIP(host) !== 0;
  const port = url.port === '' ? (isTls ? 443 : 80) : Number(url.port);
  if (!isAddress && !isNameShort(host)) return 'It is no valid URL.';
  const isAllowed = isAddress ? allowsAddress(allow, host, port) : allowsName(allow, host, port);
  const problem = isAllowed ? undefined : problemOf({ isTls, host, isAddress, port });
  return problem ?? { isTls, host, isAddress, port, origin: url.origin, path: url.pathname + url.search };
}

function problemOf({ isTls, host, isAddress, port }: Omit<Destination, 'origin' | 'path'>): string | undefined {
  if (!isTls) return 'It must start with https://.';
  if (!PORTS.includes(port)) return 'Its port must be 443 or 8443.';
  if (isAddress) return isPublicAddress(host) ? undefined : 'Its address is not public.';
  const labels = host.split('.');
  if (labels.includes('') || !isPunycodeValid(host)) return 'It is no valid URL.';
  const isPrivate = labels.length === 1 || PRIVATE_SUFFIXES.some((suffix) => host.endsWith(`.${suffix}`));
  return isPrivate ? 'Its host is not public.' : undefined;
}

/** What DNS can carry, which the URL parser does not mind. */
function isNameShort(host: string): boolean {
  return host.length <= 253 && host.split('.').every((label) => label.length <= 63);
}

/** Node 24's URL parser no longer refuses Punycode that decodes to nothing. */
function isPunycodeValid(host: string): boolean {
  const decoded = domainToUnicode(host);
  return !/(^|\.)xn--/.test(decoded) && domainToASCII(decoded) === host;
}
