import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { parseAllowList } from '../../src/net/allow-list.ts';
import { createEgress, type EgressError } from '../../src/net/egress.ts';
import { checkOutboundUrl } from '../../src/net/outbound-url.ts';
import { divertDials, type Receiver, startReceiver, trustReceiver } from './receiver.ts';

interface Case {
  verdict: 'allow' | 'reject';
  /** What decides: how the URL is written, the address or name in it, the resolver's answer, or the receiver's. */
  stage: 'url' | 'literal' | 'name' | 'dns' | 'redirect';
  /** A:… and AAAA:… by commas, or NXDOMAIN, NODATA, TIMEOUT; after `;then=` what a second question would be told. */
  dns: string;
  redirect: string;
  url: string;
}

// not trimmed: one URL starts with a space
const [, ...lines] = readFileSync(join(import.meta.dirname, 'ssrf.tsv'), 'utf8')
  .replace(/\n$/, '')
  .split('\n');
const cases = lines.map((line) => {
  const [verdict, stage, dns, redirect, url] = line.split('\t');
  return { verdict, stage, dns, redirect, url } as Case;
});
const DEADLINE_MS = 2_000;
const nothing = parseAllowList('');

let receiver: Receiver;
let diverted: ReturnType<typeof divertDials>;
/** Where the receiver of the case under way sends its callers. */
let redirect = '';

beforeAll(async () => {
  trustReceiver();
  receiver = await startReceiver({
    isTls: true,
    answer(_request, response) {
      const [status, location] = redirect.split(' ');
      if (redirect !== '') response.writeHead(Number(status), { location });
      response.end();
    },
  });
  diverted = divertDials(receiver.port);
});

afterAll(async () => {
  diverted.restore();
  await receiver.close();
});

beforeEach(() => {
  diverted.dialled.length = 0;
  receiver.requests.length = 0;
});

/** Answers as the case says, and counts how often it was asked. */
function resolverOf(script: string) {
  const answers = script.split(';then=');
  const asked: string[] = [];
  const resolve = async (name: string): Promise<string[]> => {
    const answer = answers[Math.min(asked.length, answers.length - 1)]!;
    asked.push(name);
    if (answer === 'NXDOMAIN') throw Object.assign(new Error('not found'), { code: 'ENOTFOUND' });
    if (answer === 'TIMEOUT') return await new Promise(() => {});
    return answer.split(',').flatMap((record) => /^A{1,4}:(.+)$/.exec(record)?.[1] ?? []);
  };
  return { resolve, asked };
}

async function ask({ url, dns }: Case, deadlineMs = DEADLINE_MS) {
  const { resolve, asked } = resolverOf(dns);
  const egress = createEgress({ allow: nothing, resolve });
  const outcome = await egress.request(url, { method: 'POST', headers: {}, body: '{}', deadlineMs }).then(
    ({ status }) => status,
    (error: EgressError) => error.kind,
  );
  return { outcome, asked };
}

const of = (verdict: Case['verdict'], ...stages: Case['stage'][]) =>
  cases.filter((row) => row.verdict === verdict && stages.includes(row.stage));

test('the table is there in full', () => {
  expect(cases.length).toBeGreaterThan(175);
  expect(of('reject', 'url', 'literal', 'name', 'dns', 'redirect').length + of('allow', 'literal', 'dns').length).toBe(
    cases.length,
  );
});

describe('refused for how it is written, at registration and at every attempt', () => {
  test.for(of('reject', 'url', 'literal', 'name'))('$stage: $url', async (row) => {
    expect(checkOutboundUrl(row.url, nothing)).toMatch(/^It/);
    expect(await ask(row)).toEqual({ outcome: 'address_blocked', asked: [] });
    expect(diverted.dialled).toEqual([]);
  });
});

describe('refused for what the name leads to, before any connection', () => {
  test.for(of('reject', 'dns'))('$url $dns', async (row) => {
    expect(checkOutboundUrl(row.url, nothing)).toBeUndefined();
    const kinds: Record<string, string> = { NXDOMAIN: 'dns', NODATA: 'dns', TIMEOUT: 'timeout' };
    expect((await ask(row, row.dns === 'TIMEOUT' ? 50 : DEADLINE_MS)).outcome).toBe(
      kinds[row.dns] ?? 'address_blocked',
    );
    expect(diverted.dialled).toEqual([]);
  });
});

describe('allowed, and dialled at exactly the address that was looked at', () => {
  test.for(of('allow', 'dns', 'literal'))('$url $dns', async (row) => {
    const { hostname, port, pathname, search, host } = new URL(row.url);
    const address = row.stage === 'dns' ? /A:([^,;]+)/.exec(row.dns)![1] : hostname.replace(/[[\]]/g, '');
    const name = hostname.replace(/\.$/, '');
    expect(checkOutboundUrl(row.url, nothing)).toBeUndefined();
    expect(await ask(row)).toEqual({ outcome: 200, asked: row.stage === 'dns' ? [name] : [] });
    expect(diverted.dialled).toEqual([`${address} ${port || 443}`]);
    expect(receiver.requests).toEqual([
      {
        method: 'POST',
        path: pathname + search,
        body: '{}',
        host: host.replace(/\.$/, ''),
        serverName: row.stage === 'dns' ? name : false,
      },
    ]);
  });
});

describe('a redirect is the answer', () => {
  test.for(of('reject', 'redirect'))('$url $redirect', async (row) => {
    redirect = row.redirect;
    try {
      expect((await ask(row)).outcome).toBe(Number(row.redirect.slice(0, 3)));
    } finally {
      redirect = '';
    }
    expect(diverted.dialled).toEqual(['93.184.215.14 443']);
    expect(receiver.requests).toHaveLength(1);
  });
});

test('a label of 63 characters and a name of 253 are allowed', () => {
  const label = 'a'.repeat(63);
  for (const host of [`${label}.example.com`, `${label}.${label}.${label}.${'a'.repeat(57)}.com`])
    expect(checkOutboundUrl(`https://${host}:8443/in`, nothing), host).toBeUndefined();
});
