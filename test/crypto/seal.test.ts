import { createCipheriv, createDecipheriv, hkdfSync, randomBytes, webcrypto } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { makeId } from '../../src/crypto/ids.ts';
import { deriveOwnerKeys, open, openForPush, type SealBinding, seal, sealForPush } from '../../src/crypto/seal.ts';
import wycheproof from './wycheproof-aes-gcm.json' with { type: 'json' };

const dataKey = randomBytes(32);
const ownerId = makeId();
const keys = deriveOwnerKeys(ownerId, dataKey);
const binding: SealBinding = {
  ownerId,
  containerKind: 'group',
  containerId: makeId(),
  senderAgentId: makeId(),
  recipientAgentId: makeId(),
  messageId: makeId(),
};

test.each(['a', 'Zażółć gęślą jaźń', '😀'.repeat(20_000), 'two\nlines\r\n\ttab', 'x'.repeat(20_000)])(
  'what was sealed opens again (%#)',
  (text) => {
    expect(open(keys, binding, seal(keys, binding, text))).toBe(text);
  },
);

test('a sealed text is 29 bytes longer than its UTF-8, on which the database counts', () => {
  expect(seal(keys, binding, 'a')).toHaveLength(30);
  expect(seal(keys, binding, '😀'.repeat(20_000))).toHaveLength(80_029);
});

test('the same text seals differently each time', () => {
  const nonces = new Set(Array.from({ length: 1_000 }, () => seal(keys, binding, 'a').subarray(1, 13).toString('hex')));
  expect(nonces.size).toBe(1_000);
});

describe('a sealed copy is bound to its row', () => {
  const sealed = seal(keys, binding, 'secret');

  test.each(Object.keys(binding).filter((field) => field !== 'containerKind'))(
    'another %s does not open it',
    (field) => {
      expect(() => open(keys, { ...binding, [field]: makeId() }, sealed)).toThrow();
    },
  );

  test('another kind of container does not open it', () => {
    expect(() => open(keys, { ...binding, containerKind: 'hold' as 'group' }, sealed)).toThrow();
  });

  test('sender and recipient exchanged do not open it', () => {
    const { senderAgentId: recipientAgentId, recipientAgentId: senderAgentId } = binding;
    expect(() => open(keys, { ...binding, senderAgentId, recipientAgentId }, sealed)).toThrow();
  });

  test("another owner's keys do not open it", () => {
    expect(() => open(deriveOwnerKeys(ownerId, randomBytes(32)), binding, sealed)).toThrow();
  });

  test('the key for fingerprints does not open it', () => {
    expect(keys.body.equals(keys.fingerprint)).toBe(false);
    expect(() => open({ ...keys, body: keys.fingerprint }, binding, sealed)).toThrow();
  });
});

test('a change of any byte is noticed', () => {
  const sealed = seal(keys, binding, 'twelve bytes');
  for (let index = 0; index < sealed.length; index++) {
    const altered = Buffer.from(sealed);
    altered[index]! ^= 0x01;
    expect(() => open(keys, binding, altered), `byte ${index}`).toThrow();
  }
});

test('what is cut short or lengthened does not open', () => {
  const sealed = seal(keys, binding, 'twelve bytes');
  for (let length = 0; length < sealed.length; length++)
    expect(() => open(keys, binding, sealed.subarray(0, length)), `${length} bytes`).toThrow();
  expect(() => open(keys, binding, Buffer.concat([sealed, Buffer.alloc(1)]))).toThrow();
});

// Stored bodies outlive the code that sealed them: the format, the derivation and the binding may not drift.
test('another implementation that knows the format opens it', async () => {
  const sealed = seal(keys, binding, 'to be read in years');
  const { containerId, senderAgentId, recipientAgentId, messageId } = binding;
  const key = await webcrypto.subtle.importKey(
    'raw',
    Buffer.from(hkdfSync('sha256', dataKey, '', 'posthorn body', 32)),
    'AES-GCM',
    false,
    ['decrypt'],
  );
  const opened = await webcrypto.subtle.decrypt(
    {
      name: 'AES-GCM',
      iv: sealed.subarray(1, 13),
      additionalData: Buffer.from(
        `posthorn|1|${ownerId}|group|${containerId}|${senderAgentId}|${recipientAgentId}|${messageId}`,
      ),
      tagLength: 128,
    },
    key,
    Buffer.concat([sealed.subarray(29), sealed.subarray(13, 29)]),
  );
  expect(sealed[0]).toBe(1);
  expect(Buffer.from(opened).toString()).toBe('to be read in years');
});

describe('the AES-256-GCM that this runtime brings, by the vectors of Project Wycheproof', () => {
  test.each(wycheproof.tests)('case $tcId, $result', ({ result, ...hex }) => {
    const bytes = (field: 'key' | 'iv' | 'aad' | 'msg' | 'ct' | 'tag') => Buffer.from(hex[field], 'hex');
    const decipher = createDecipheriv('aes-256-gcm', bytes('key'), bytes('iv'), { authTagLength: 16 });
    decipher.setAAD(bytes('aad')).setAuthTag(bytes('tag'));
    const opened = Buffer.from(decipher.update(bytes('ct')));
    if (result === 'invalid') {
      expect(() => decipher.final()).toThrow();
      return;
    }
    decipher.final();
    expect(opened).toEqual(bytes('msg'));

    const cipher = createCipheriv('aes-256-gcm', bytes('key'), bytes('iv')).setAAD(bytes('aad'));
    expect(Buffer.concat([cipher.update(bytes('msg')), cipher.final()])).toEqual(bytes('ct'));
    expect(cipher.getAuthTag()).toEqual(bytes('tag'));
  });
});

test('where a browser is reached opens for its owner and its address alone', () => {
  const [hash, another] = [randomBytes(32), randomBytes(32)];
  const sealed = sealForPush(keys, hash, 'https://push.example/secret');
  expect(openForPush(keys, hash, sealed)).toBe('https://push.example/secret');
  expect(() => openForPush(keys, another, sealed)).toThrow();
  expect(() => openForPush(deriveOwnerKeys(makeId(), dataKey), hash, sealed)).toThrow();
  expect(() => openForPush(deriveOwnerKeys(ownerId, randomBytes(32)), hash, sealed)).toThrow();
});
