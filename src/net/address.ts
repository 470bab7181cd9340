import { isIPv4, isIPv6 } from 'node:net';
import ipaddr from 'ipaddr.js';

/** All that was ever given out for global unicast. ipaddr.js calls everything else that it has no name for unicast. */
const GLOBAL_UNICAST = ipaddr.IPv6.parseCIDR('2000::/3');

/** Answers only to machines of one cloud, from an address that is public everywhere else. */
const PLATFORM_ADDRESSES = ['168.63.129.16'];

/**
 * Whether an address is one of the open internet: global unicast. The forms in which IPv6 carries an IPv4 address
 * (mapped, NAT64, 6to4, Teredo and others) are not, whatever they carry, and neither is what is no address.
 *
 * @param address as a resolver or the URL parser writes it, without brackets; an IPv4 address in its four decimal parts
 */
export function isPublicAddress(address: string): boolean {
  // a zone names an interface of this machine, and ipaddr.js alone would take 0x7f.1 for an address
  if (address.includes('%')) return false;
  if (isIPv4(address)) return ipaddr.IPv4.parse(address).range() === 'unicast' && !PLATFORM_ADDRESSES.includes(address);
  if (!isIPv6(address)) return false;
  const parsed = ipaddr.IPv6.parse(address);
  return parsed.range() === 'unicast' && parsed.match(GLOBAL_UNICAST);
}
