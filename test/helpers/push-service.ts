import { createDecipheriv, createECDH, createPublicKey, type ECDH, hkdfSync, randomBytes, verify } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

// A push service on this machine, and the browsers that it reaches: what they are told is read here by the standards
// (RFC 8188, 8291, 8292), with nothing of the library that wrote it.

export interface ReceivedPush {
  path: string;
  headers: IncomingHttpHeaders;
  body: Buffer;
}

export interface PushedBrowser {
  /** What its script would send. */
  subscription: { endpoint: string; p256dh: string; auth: string; server_key: string };
  /** What came for it so far, in order. */
  received(): ReceivedPush[];
  /** What a push says, decrypted. @throws Error if it is for another browser or was altered */
  read(push: ReceivedPush): string;
}

export interface PushService {
  origin: string;
  received: ReceivedPush[];
  /** @param serverKey what it subscribed with */
  browser(serverKey: string): PushedBrowser;
  /** How it answers from now on: a status, or whatever the function does with the response. */
  answer(how: number | ((response: ServerResponse, push: ReceivedPush) => void)): void;
  /** Resolves with all that came once there are so many. */
  until(count: number): Promise<ReceivedPush[]>;
  close(): Promise<void>;
}

/** It answers 201 unless told otherwise. */
export async function startPushService(): Promise<PushService> {
  const received: ReceivedPush[] = [];
  const waiting = new Set<() => void>();
  let respond: (response: ServerResponse, push: ReceivedPush) => void = (response) => response.writeHead(201).end();
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    const push = { path: request.url!, headers: request.headers, body: Buffer.concat(chunks) };
    received.push(push);
    respond(response, push);
    for (const check of waiting) check();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    origin,
    received,
    browser(serverKey) {
      const pair = createECDH('prime256v1');
      const p256dh = pair.generateKeys('base64url');
      const auth = randomBytes(16);
      const path = `/push/planted-${randomBytes(16).toString('hex')}`;
      return {
        subscription: { endpoint: origin + path, p256dh, auth: auth.toString('base64url'), server_key: serverKey },
        received: () => received.filter((push) => push.path === path),
        read: ({ body }) => decrypt(pair, auth, body),
      };
    },
    answer(how) {
      respond = typeof how === 'number' ? (response) => response.writeHead(how).end() : how;
    },
    until: (count) =>
      new Promise((resolve) => {
        const check = () => {
          if (received.length < count) return;
          waiting.delete(check);
          resolve(received);
        };
        waiting.add(check);
        check();
      }),
    async close() {
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
}

/** One record of aes128gcm: salt (16), record size (4), length of the sender's key (1), that key, ciphertext with tag. */
function decrypt(browser: ECDH, auth: Buffer, body: Buffer): string {
  const salt = body.subarray(0, 16);
  const keyEnd = 21 + body.readUInt8(20);
  const sender = body.subarray(21, keyEnd);
  const derive = (secret: Buffer, from: Buffer, info: Buffer, bytes: number) =>
    Buffer.from(hkdfSync('sha256', secret, from, info, bytes));
  const label = Buffer.concat([Buffer.from('WebPush: info\0'), browser.getPublicKey(), sender]);
  const secret = derive(browser.computeSecret(sender), auth, label, 32);
  const key = derive(secret, salt, Buffer.from('Content-Encoding: aes128gcm\0'), 16);
  const nonce = derive(secret, salt, Buffer.from('Content-Encoding: nonce\0'), 12);
  const decipher = createDecipheriv('aes-128-gcm', key, nonce).setAuthTag(body.subarray(-16));
  const padded = Buffer.concat([decipher.update(body.subarray(keyEnd, -16)), decipher.final()]);
  const end = padded.lastIndexOf(2); // the last record; zeros follow
  if (end < 0 || padded.subarray(end + 1).some((byte) => byte !== 0)) throw new Error('The padding is wrong.');
  return padded.subarray(0, end).toString('utf8');
}

/** What the server says of itself, and the key that it proves to have. @throws Error if the signature is not by that key */
export function readVapid({ authorization = '' }: IncomingHttpHeaders): {
  publicKey: string;
  claims: { aud: string; exp: number; sub: string };
} {
  const [, token = '', publicKey = ''] = /^vapid t=([\w.-]+), ?k=([\w-]{87})$/.exec(authorization) ?? [];
  const [head = '', claims = '', signature = ''] = token.split('.');
  const point = Buffer.from(publicKey, 'base64url');
  const [x, y] = [point.subarray(1, 33), point.subarray(33)].map((half) => half.toString('base64url'));
  const key = createPublicKey({ key: { kty: 'EC', crv: 'P-256', x, y }, format: 'jwk' });
  const isSigned = verify(
    'sha256',
    Buffer.from(`${head}.${claims}`),
    { key, dsaEncoding: 'ieee-p1363' },
    Buffer.from(signature, 'base64url'),
  );
  if (!isSigned) throw new Error(`This is not signed: ${authorization}`);
  return { publicKey, claims: JSON.parse(Buffer.from(claims, 'base64url').toString()) };
}
