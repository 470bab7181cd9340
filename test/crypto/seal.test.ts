import { createCipheriv, createDecipheriv, hkdfSync, randomBytes, webcrypto } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { makeId } from '../../src/crypto/ids.ts';
import { deriveOwnerKeys, open, type SealBinding, seal } from '../../src/crypto/seal.ts';

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

// Test cases 13 to 16 of "The Galois/Counter Mode of Operation (GCM)" by McGrew and Viega: AES-256 with 96-bit nonces.
describe('the AES-256-GCM that this runtime brings', () => {
  const K15 = 'feffe9928665731c6d6a8f9467308308'.repeat(2);
  const N15 = 'cafebabefacedbaddecaf888';
  const P15 =
    'd9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255';
  const C15 =
    '522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad';
  const zeros = (bytes: number) => '00'.repeat(bytes);
  const vectors = [
    {
      name: '13',
      key: zeros(32),
      nonce: zeros(12),
      added: '',
      text: '',
      cipher: '',
      tag: '530f8afbc74536b9a963b4f1c4cb738b',
    },
    {
      name: '14',
      key: zeros(32),
      nonce: zeros(12),
      added: '',
      text: zeros(16),
      cipher: 'cea7403d4d606b6e074ec5d3baf39d18',
      tag: 'd0d1c8a799996bf0265b98b5d48ab919',
    },
    { name: '15', key: K15, nonce: N15, added: '', text: P15, cipher: C15, tag: 'b094dac5d93471bdec1a502270e3cc6c' },
    {
      name: '16',
      key: K15,
      nonce: N15,
      added: 'feedfacedeadbeeffeedfacedeadbeefabaddad2',
      text: P15.slice(0, 120),
      cipher: C15.slice(0, 120),
      tag: '76fc6ece0f4e1768cddf8853bb2d551b',
    },
  ].map(({ name, ...hex }) => ({
    name,
    ...(Object.fromEntries(Object.entries(hex).map(([field, value]) => [field, Buffer.from(value, 'hex')])) as Record<
      keyof typeof hex,
      Buffer
    >),
  }));

  const decrypt = ({
    key,
    nonce,
    added,
    cipher,
    tag,
  }: Record<'key' | 'nonce' | 'added' | 'cipher' | 'tag', Buffer>) => {
    const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: 16 });
    decipher.setAAD(added).setAuthTag(tag);
    return Buffer.concat([decipher.update(cipher), decipher.final()]);
  };
  const flipped = (buffer: Buffer, bit: number) => {
    const altered = Buffer.from(buffer);
    altered[bit >> 3]! ^= 1 << (bit & 7);
    return altered;
  };

  test.each(vectors)('seals as in test case $name', ({ key, nonce, added, text, cipher, tag }) => {
    const engine = createCipheriv('aes-256-gcm', key, nonce).setAAD(added);
    expect(Buffer.concat([engine.update(text), engine.final()])).toEqual(cipher);
    expect(engine.getAuthTag()).toEqual(tag);
  });

  test.each(vectors)('opens test case $name, and nothing next to it', (vector) => {
    expect(decrypt(vector)).toEqual(vector.text);
    for (const field of ['key', 'nonce', 'added', 'cipher', 'tag'] as const) {
      for (let bit = 0; bit < vector[field].length * 8; bit++) {
        expect(() => decrypt({ ...vector, [field]: flipped(vector[field], bit) }), `bit ${bit} of ${field}`).toThrow();
      }
    }
  });

  test.each([0, 4, 8, 12, 15, 17])('refuses a tag of %i bytes', (length) => {
    const vector = vectors[3]!;
    expect(() =>
      decrypt({ ...vector, tag: Buffer.concat([vector.tag, Buffer.alloc(1)]).subarray(0, length) }),
    ).toThrow();
  });
});
