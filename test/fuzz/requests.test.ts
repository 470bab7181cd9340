import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ERRORS } from '../../src/errors.ts';
import { OPERATIONS } from '../../src/operations/index.ts';
import { OWNER_OPERATIONS } from '../../src/operations/owner.ts';
import { startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';
import { hostileText, MARK } from './hostile.ts';
import { type PopulatedOwner, populateOwner } from './populated-owner.ts';
import { endCalls, type RawAnswer, rawCall } from './raw-call.ts';
import { expectRefusal } from './refusal.ts';
import { patience, runs } from './runs.ts';
import { changedTables, digestStored } from './stored.ts';

// Requests that no client of ours makes: what stands in the line and the headers, with nothing useful in the body.

let posthorn: TestPosthorn;
let owner: PopulatedOwner;

beforeAll(async () => {
  posthorn = await startPosthorn();
  owner = await populateOwner(posthorn);
});
afterAll(async () => {
  endCalls();
  await posthorn.close();
});

/** DELETE without a path that names something is the only one that could do what it says. */
const METHODS = [
  'GET',
  'HEAD',
  'POST',
  'PUT',
  'PATCH',
  'DELETE',
  'OPTIONS',
  'TRACE',
  'PROPFIND',
  'QUERY',
  'PURGE',
  'M-SEARCH',
];

const ROUTES = [
  ...OPERATIONS.flatMap(({ routes }) => routes.map(({ path }) => `/messaging/v1${path}`)),
  ...OWNER_OPERATIONS.flatMap(({ routes }) => routes.map(({ path }) => `/owner/v1${path}`)),
  '/messaging/v1/events',
  '/owner/v1/export',
  '/mcp',
  '/healthz',
  '/readyz',
  '/openapi.json',
  '/docs',
  '/register',
  '/token',
  '/authorize',
  '/owner',
  '/.well-known/oauth-authorization-server',
];

const encoded = hostileText.map((text) => encodeURIComponent(text.toWellFormed().slice(0, 300)));
const segment = fc.oneof(
  fc.constantFrom(
    '%2f',
    '%2F..%2F',
    '..',
    '.',
    '%2e%2e',
    '%00',
    '%ff',
    '%c0%af',
    '%',
    '%zz',
    '%25',
    ';',
    '//',
    '*',
    '~',
    '\\',
  ),
  fc.constantFrom(
    '9'.repeat(400),
    '-1',
    '1e309',
    '0x10',
    'NaN',
    'null',
    '__proto__',
    'constructor',
    `${MARK}%0d%0aX-Injected:1`,
  ),
  encoded,
);

const path = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.tuple(fc.constantFrom(...ROUTES), segment).map(([route, text]) => route.replace(/:\w+/, text)),
  },
  { weight: 2, arbitrary: fc.tuple(fc.constantFrom(...ROUTES), segment).map(([route, text]) => `${route}/${text}`) },
  { weight: 1, arbitrary: fc.array(segment, { maxLength: 6 }).map((parts) => `/${parts.join('/')}`) },
  { weight: 1, arbitrary: fc.constantFrom(...ROUTES).map((route) => `http://elsewhere.example${route}`) },
  { weight: 1, arbitrary: fc.constantFrom(...ROUTES).map((route) => route.toUpperCase()) },
);

const NAMES = [
  'agent_id',
  'limit',
  'after',
  'pending',
  'wait_seconds',
  'label',
  '__proto__',
  'constructor',
  '',
  'a[b]',
  'a[]',
  '%00',
];
const query = fc
  .array(fc.tuple(fc.oneof(fc.constantFrom(...NAMES), encoded), segment), { maxLength: 5 })
  .map((pairs) => pairs.map(([name, value]) => `${name}=${value}`))
  .chain((pairs) => fc.constantFrom(pairs, [...pairs, ...pairs]))
  .map((pairs) => (pairs.length > 0 ? `?${pairs.join('&')}` : ''));

/** What Node lets through as the value of a header. */
const headerValue = fc.oneof(
  fc
    .string({
      unit: fc
        .integer({ min: 0x20, max: 0xff })
        .filter((code) => code !== 0x7f)
        .map((code) => String.fromCharCode(code)),
      maxLength: 100,
    })
    .map((text) => MARK + text),
  fc.integer({ min: 200, max: 6_000 }).map((length) => MARK + 'x'.repeat(length)),
  fc.constantFrom(
    '',
    ',',
    ';',
    '"',
    '*/*;q=9',
    'application/json; charset=utf-7',
    'application/json;charset="utf-8',
    '-1',
    '1e9',
    '999999999999',
    'null',
  ),
);
const HEADERS = [
  'accept',
  'accept-encoding',
  'accept-language',
  'cookie',
  'content-type',
  'content-encoding',
  'origin',
  'referer',
  'if-none-match',
  'if-modified-since',
  'range',
  'last-event-id',
  'mcp-protocol-version',
  'mcp-session-id',
  'mcp-method',
  'mcp-name',
  'x-forwarded-for',
  'x-forwarded-host',
  'x-forwarded-proto',
  'forwarded',
  'x-http-method-override',
  'x-request-id',
  'traceparent',
  'sec-fetch-site',
  'user-agent',
];
const headers = fc.dictionary(fc.constantFrom(...HEADERS), headerValue, { maxKeys: 4, noNullPrototype: true });

const authorization = fc.oneof(
  { weight: 4, arbitrary: fc.constant('own') },
  { weight: 1, arbitrary: fc.constant('none') },
  {
    weight: 2,
    arbitrary: fc
      .tuple(fc.constantFrom('Bearer ', 'bearer  ', 'Basic ', ''), headerValue)
      .map((parts) => parts.join('')),
  },
);

test(
  'are answered by the contract, store nothing and are not in the log',
  async () => {
    const before = await digestStored(posthorn.database);
    const request = { method: fc.constantFrom(...METHODS), path, query, headers, authorization };
    await fc.assert(
      fc.asyncProperty(fc.record(request, { noNullPrototype: true }), async (given) => {
        const logged = posthorn.log().length;
        const presented = given.authorization === 'own' ? `Bearer ${owner.caller.token}` : given.authorization;
        const answer = await rawCall(posthorn.pods[0]!.url, {
          method: given.method,
          path: given.path + given.query,
          headers: { ...given.headers, ...(given.authorization !== 'none' && { authorization: presented }) },
        });
        expectAnswer(given.method, given.path, answer);
        expect(posthorn.log().slice(logged)).not.toContain(MARK);
      }),
      runs(400),
    );
    expect(changedTables(before, await digestStored(posthorn.database))).toEqual([]);
    expect((await rawCall(posthorn.pods[0]!.url, { method: 'GET', path: '/healthz' })).status).toBe(200);
  },
  patience(30_000),
);

/** Ours are refused by the contract; those of OAuth and of pages say it their own way. */
function expectAnswer(method: string, path: string, { status, headers, text }: RawAnswer): void {
  expect(status, text).toBeLessThan(500);
  expect(headers).not.toHaveProperty('x-injected');
  if (status < 400) return;
  expect(text).not.toContain(MARK);
  if (method === 'HEAD' || !/^\/(messaging|owner\/v1)\//.test(path)) return;
  const code = expectRefusal(JSON.parse(text));
  expect(status).toBe(ERRORS[code].status);
}
