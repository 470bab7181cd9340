import { expect, test } from 'vitest';
import { allowsAddress, allowsName, parseAllowList } from '../../src/net/allow-list.ts';
import { checkOutboundUrl } from '../../src/net/outbound-url.ts';

test.each([
  '10.0.0.0/33',
  '10.0.0/8',
  '/8',
  '10.0.0.0/',
  'a:b',
  'a:0',
  'a:65536',
  'http://a',
  'a/b',
  'a?b',
  'user@a',
  '[a]:80',
  '[::1',
  '127.1',
  '[fd00::]/8',
  '*.corp',
])('%s is no entry', (entry) => {
  expect(() => parseAllowList(`ok.example, ${entry}`)).toThrow(/^holds /);
  expect(() => parseAllowList(entry)).not.toThrow(entry);
});

test('names, with and without a port', () => {
  const list = parseAllowList('Hooks.Corp, localhost:8080\nbücher.example.');
  expect(allowsName(list, 'hooks.corp', 80)).toBe(true);
  expect(allowsName(list, 'localhost', 8080)).toBe(true);
  expect(allowsName(list, 'localhost', 80)).toBe(false);
  expect(allowsName(list, 'xn--bcher-kva.example', 443)).toBe(true);
  expect(allowsName(list, 'sub.hooks.corp', 80)).toBe(false);
  expect(allowsAddress(list, '127.0.0.1', 8080)).toBe(false);
});

test('addresses and networks, with and without a port', () => {
  const list = parseAllowList('10.0.0.0/8 127.0.0.1:8080, fd00::/8, ::1, [fe80::1]:443');
  expect(allowsAddress(list, '10.255.0.1', 1)).toBe(true);
  expect(allowsAddress(list, '11.0.0.1', 1)).toBe(false);
  expect(allowsAddress(list, '127.0.0.1', 8080)).toBe(true);
  expect(allowsAddress(list, '127.0.0.1', 80)).toBe(false);
  expect(allowsAddress(list, 'fd12::1', 80)).toBe(true);
  expect(allowsAddress(list, '::1', 80)).toBe(true);
  expect(allowsAddress(list, 'fe80::1', 443)).toBe(true);
  expect(allowsAddress(list, 'fe80::1%eth0', 443)).toBe(false);
  expect(allowsAddress(list, '::ffff:10.0.0.1', 80)).toBe(false);
  expect(allowsAddress(list, 'no address', 80)).toBe(false);
});

test('what is allowed may be plain HTTP at any port; the other rules stay', () => {
  const list = parseAllowList('localhost, 10.0.0.0/8');
  for (const url of ['http://localhost/in', 'http://localhost.:9/in', 'https://10.1.2.3:9/in', 'http://167772161/'])
    expect(checkOutboundUrl(url, list), url).toBeUndefined();
  for (const url of [
    'ftp://localhost/',
    'http://me@localhost/',
    'http://localhost/#a',
    'http://11.0.0.1/',
    'http://other.example/',
  ])
    expect(checkOutboundUrl(url, list), url).toMatch(/^It/);
});

test('nothing is allowed by nothing', () => {
  expect(parseAllowList('')).toEqual({ names: [], networks: [] });
  expect(parseAllowList(' , ')).toEqual({ names: [], networks: [] });
});
