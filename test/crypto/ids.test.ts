import { expect, test } from 'vitest';
import { hashCredential, isDeviceCredential, makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';

const VERSION_7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const timeOf = (id: string) => Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);

test('ids are UUIDs of version 7, all different', () => {
  const ids = Array.from({ length: 10_000 }, makeId);
  for (const id of ids) expect(id).toMatch(VERSION_7);
  expect(new Set(ids).size).toBe(ids.length);
});

test('ids start with the time, so that they sort by it', () => {
  const before = Date.now();
  const ids = Array.from({ length: 2_000 }, makeId);
  const after = Date.now();
  const times = ids.map(timeOf);
  expect(times).toEqual(times.toSorted((a, b) => a - b));
  expect(times[0]).toBeGreaterThanOrEqual(before);
  expect(times.at(-1)).toBeLessThanOrEqual(after);
});

test('74 bits of an id are random', () => {
  const ids = Array.from({ length: 4_000 }, makeId).map((id) => BigInt(`0x${id.replaceAll('-', '')}`));
  const fixed = new Set([76, 77, 78, 79, 62, 63]); // version and variant
  for (let bit = 0; bit < 80; bit++) {
    if (fixed.has(bit)) continue;
    const ones = ids.filter((id) => (id >> BigInt(bit)) & 1n).length;
    // six standard deviations either side: a fair bit fails once in a billion runs
    expect(Math.abs(ones - 2_000), `bit ${bit}`).toBeLessThan(190);
  }
});

test.each([
  ['device', 'phd_'],
  ['child', 'phc_'],
  ['service', 'phs_'],
] as const)('a %s credential is %s and 256 random bits', (kind, prefix) => {
  const { token, hash } = makeCredential(kind);
  expect(token).toMatch(new RegExp(`^${prefix}[A-Za-z0-9_-]{43}$`));
  expect(hash).toEqual(hashCredential(token));
  expect(hash).toHaveLength(32);
  expect(makeCredential(kind).token).not.toBe(token);
  expect(isDeviceCredential(token)).toBe(kind === 'device');
});
