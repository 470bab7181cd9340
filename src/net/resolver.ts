import { lookup, Resolver as NameServers } from 'node:dns/promises';

/** All addresses of a name, IPv4 and IPv6; throws or answers none where there are none. */
export type Resolver = (name: string) => Promise<string[]>;

/** How long one name server is waited for, in milliseconds, and how often it is asked. */
const ANSWER_MS = 2_500;
const TRIES = 2;

/**
 * Asks the name servers themselves. The system's own lookup holds one of four threads, which files and every other
 * lookup of the process need too, until the slowest name server was given up: four dead names would stop a worker.
 *
 * @param nameServers `address:port` of each; without them the system's
 */
export function createResolver(nameServers?: string[]): Resolver {
  const servers = new NameServers({ timeout: ANSWER_MS, tries: TRIES });
  if (nameServers) servers.setServers(nameServers);
  return async function resolvePublicName(name) {
    const answers = await Promise.allSettled([servers.resolve4(name), servers.resolve6(name)]);
    const addresses = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []));
    const failure = answers.find((answer) => answer.status === 'rejected');
    if (addresses.length === 0 && failure) throw failure.reason;
    return addresses;
  };
}

/** The system's lookup, which knows its hosts file and search domains: for the names that an operator has allowed. */
export const resolveLocalName: Resolver = async (name) => {
  const answers = await lookup(name, { all: true, order: 'ipv4first' });
  return answers.map(({ address }) => address);
};
