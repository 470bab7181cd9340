import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

const NO_ENTRY = 'holds an entry that is no host, host:port or network';

type Network = [ipaddr.IPv4 | ipaddr.IPv6, number];

/** Where requests may go besides the open internet; for private deployments and tests. */
export interface AllowList {
  /** Hosts by name, each with its only port or with any (undefined). */
  names: { name: string; port: number | undefined }[];
  /** Addresses and networks, likewise. */
  networks: { network: Network; port: number | undefined }[];
}

/**
 * Reads a list of hosts (`hooks.corp`), hosts with a port (`localhost:8080`, `[fd00::1]:8080`) and networks
 * (`10.0.0.0/8`), separated by commas or spaces.
 *
 * @throws Error if an entry is none of these; the message does not repeat it
 */
export function parseAllowList(text: string): AllowList {
  const list: AllowList = { names: [], networks: [] };
  for (const entry of text.split(/[\s,]+/).filter((part) => part !== '')) {
    const { host, port } = isIP(entry) || entry.includes('/') ? { host: entry, port: undefined } : splitPort(entry);
    const network = readNetwork(host);
    if (network) list.networks.push({ network, port });
    else list.names.push({ name: readName(host), port });
  }
  return list;
}

/** Whether a name may be asked for at a port, wherever it leads. */
export function allowsName({ names }: AllowList, name: string, port: number): boolean {
  return names.some((entry) => entry.name === name && (entry.port ?? port) === port);
}

/** Whether an address may be connected to at a port, whatever it is. */
export function allowsAddress({ networks }: AllowList, address: string, port: number): boolean {
  if (!isIP(address) || address.includes('%')) return false;
  const parsed = ipaddr.parse(address);
  return networks.some(
    ({ network, port: only }) =>
      network[0].kind() === parsed.kind() && parsed.match(network as never) && (only ?? port) === port,
  );
}

function splitPort(entry: string): { host: string; port: number | undefined } {
  const [, bracketed, name, digits] = /^(?:\[([^\]]+)\]|([^:[\]]+))(?::(\d{1,5}))?$/.exec(entry) ?? [];
  const host = bracketed ?? name;
  const port = digits === undefined ? undefined : Number(digits);
  if (host === undefined || (bracketed !== undefined && !isIP(bracketed)) || (port !== undefined && !isPort(port)))
    throw new Error(NO_ENTRY);
  return { host, port };
}

const isPort = (port: number) => port > 0 && port < 65_536;

function readNetwork(host: string): Network | undefined {
  if (isIP(host)) {
    const address = ipaddr.parse(host);
    return [address, address.kind() === 'ipv4' ? 32 : 128];
  }
  if (!host.includes('/')) return undefined;
  const [address = '', bits = ''] = host.split('/');
  if (!isIP(address) || !/^\d+$/.test(bits) || !ipaddr.isValidCIDR(host)) throw new Error(NO_ENTRY);
  return ipaddr.parseCIDR(host);
}

/** In the form in which the URL parser writes names; one that it reads as an address is written as an address. */
function readName(host: string): string {
  const name = URL.canParse(`http://${host}`) ? new URL(`http://${host}`).hostname.replace(/\.$/, '') : '';
  if (name === '' || isIP(name) || /[/?#@*]/.test(host)) throw new Error(NO_ENTRY);
  return name;
}
