import { expect, test } from 'vitest';
import { readRetryAfter } from '../../src/net/retry-after.ts';

const now = Date.UTC(2026, 10, 30, 12, 0, 0);

test.each([
  [undefined, null],
  ['', null],
  ['0', 0],
  ['120', 120],
  ['-5', null],
  ['1.5', null],
  ['99999999999', null],
  ['soon', null],
  ['2027', 2027],
  ['Mon, 30 Nov 2026 12:02:00 GMT', 120],
  ['Mon, 30 Nov 2026 11:00:00 GMT', 0],
  ['Fri, 31 Dec 9999 23:59:59 GMT', 999_999_999],
  ['2026-11-30T12:02:00Z', null],
  ['Mon, 99 Nov 2026 12:02:00 GMT', null],
])('Retry-After: %s is %s seconds', (header, seconds) => {
  expect(readRetryAfter(header, now)).toBe(seconds);
});
