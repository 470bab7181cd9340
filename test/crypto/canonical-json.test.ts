import { randomBytes } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { canonicalJson, deriveOwnerKeys, fingerprint } from '../../src/crypto/seal.ts';

const keys = deriveOwnerKeys('0190a0a0-0000-7000-8000-000000000001', randomBytes(32));
const print = (json: string) => fingerprint(keys, JSON.parse(json)).toString('hex');

describe('the same act, written otherwise', () => {
  test.each([
    ['properties in another order', '{"a":1,"b":{"c":2,"d":3}}', '{"b":{"d":3,"c":2},"a":1}'],
    ['properties of objects in an array', '{"a":[{"x":1,"y":2}]}', '{"a":[{"y":2,"x":1}]}'],
    ['white space', '{"a":[1,2]}', ' {\n\t"a" : [ 1 ,\r\n 2 ] } '],
    ['1.0 and 1', '{"a":1}', '{"a":1.0}'],
    ['exponents', '{"a":100}', '{"a":1e2}'],
    ['minus zero', '{"a":0}', '{"a":-0}'],
    ['case of an escape', '{"a":"\\u001B"}', '{"a":"\\u001b"}'],
    ['a needless escape', '{"a":"A/é"}', '{"a":"\\u0041\\/\\u00e9"}'],
    ['escapes in names', '{"ab":1}', '{"\\u0061b":1}'],
    ['names like integers', '{"2":"x","1":"y","10":"z"}', '{"10":"z","1":"y","2":"x"}'],
    ['an astral letter as two escapes', '{"a":"😀"}', '{"a":"\\uD83D\\uDE00"}'],
  ])('%s', (_, one, other) => {
    expect(print(one)).toBe(print(other));
  });
});

describe('another act', () => {
  test.each([
    ['order of an array', '{"a":[1,2]}', '{"a":[2,1]}'],
    ['a number and its text', '{"a":1}', '{"a":"1"}'],
    ['missing and null', '{}', '{"a":null}'],
    ['null and false', '{"a":null}', '{"a":false}'],
    ['null and the text of it', '{"a":null}', '{"a":"null"}'],
    ['empty object and empty array', '{"a":{}}', '{"a":[]}'],
    ['a name of other case', '{"a":1}', '{"A":1}'],
    ['composed and decomposed letters', '{"a":"é"}', '{"a":"e\\u0301"}'],
    ['white space within a text', '{"a":"b c"}', '{"a":"b  c"}'],
    ['nesting', '{"a":[[1],2]}', '{"a":[[1,2]]}'],
    ['quotes that look like structure', '{"a":"1\\",\\"b\\":\\"2"}', '{"a":"1","b":"2"}'],
    ['a property named __proto__', '{"a":1}', '{"a":1,"__proto__":{"b":2}}'],
    ['large integers a step apart', '{"a":9007199254740991}', '{"a":9007199254740992}'],
  ])('%s', (_, one, other) => {
    expect(print(one)).not.toBe(print(other));
  });
});

test('a property that is not given is like one that is undefined', () => {
  expect(fingerprint(keys, { a: 1, b: undefined })).toEqual(fingerprint(keys, { a: 1 }));
});

// The example of RFC 8785, section 3.2.3: an astral letter comes before U+FB33, whose code point is smaller.
test('names are ordered by their UTF-16 units', () => {
  const names = ['\r', '1', '\u0080', '\u00f6', '\u20ac', '\u{1f600}', '\ufb33'];
  const value = Object.fromEntries(names.toReversed().map((name) => [name, 0]));
  expect(canonicalJson(value)).toBe(`{${names.map((name) => `${JSON.stringify(name)}:0`).join(',')}}`);
});

test('a fingerprint is 32 bytes and depends on the owner', () => {
  const others = deriveOwnerKeys(keys.ownerId, randomBytes(32));
  expect(fingerprint(keys, { a: 1 })).toHaveLength(32);
  expect(fingerprint(keys, { a: 1 })).not.toEqual(fingerprint(others, { a: 1 }));
});
