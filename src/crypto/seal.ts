import { createCipheriv, createDecipheriv, createHmac, createSecretKey, hkdfSync, type KeyObject } from 'node:crypto';
import { takeRandomBytes } from './random.ts';

/**
 * An owner's keys in use, derived from the one data key that the ring wraps. As key objects, since Node takes 8 µs a
 * call to make one of a buffer: as long as sealing takes.
 */
export interface OwnerKeys {
  ownerId: string;
  body: KeyObject;
  fingerprint: KeyObject;
  webhook: KeyObject;
}

/** What a sealed copy is bound to: a ciphertext moved to another row does not open. */
export interface SealBinding {
  ownerId: string;
  /** The group; or for a held message the hold that the pod made for it, kept for life. */
  containerKind: 'group' | 'hold';
  containerId: string;
  senderAgentId: string;
  recipientAgentId: string;
  messageId: string;
}

// A sealed body is: format (1 byte), nonce (12), tag (16), ciphertext. read_inbox counts on the 29.
const FORMAT = 1;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const HEADER_BYTES = 1 + NONCE_BYTES + TAG_BYTES;

export function deriveOwnerKeys(ownerId: string, dataKey: Buffer): OwnerKeys {
  return {
    ownerId,
    body: derive(dataKey, 'posthorn body'),
    fingerprint: derive(dataKey, 'posthorn fingerprint'),
    webhook: derive(dataKey, 'posthorn webhook'),
  };
}

function derive(dataKey: Buffer, purpose: string): KeyObject {
  return createSecretKey(Buffer.from(hkdfSync('sha256', dataKey, Buffer.alloc(0), purpose, 32)));
}

/** Seals one copy with AES-256-GCM under a random nonce (safe for 2^32 copies of one owner). */
export function seal(keys: OwnerKeys, binding: SealBinding, text: string): Buffer {
  return encrypt(keys.body, additionalData(binding), text);
}

/** @throws Error if the copy was altered, moved to another row or sealed under another key */
export function open(keys: OwnerKeys, binding: SealBinding, sealed: Buffer): string {
  return decrypt(keys.body, additionalData(binding), sealed);
}

/** What of a webhook's registration is sealed. */
export interface WebhookSealBinding {
  agentId: string;
  field: 'url' | 'secret' | 'auth_header';
}

/** Seals part of an agent's webhook under the owner's key for that. */
export function sealForWebhook(keys: OwnerKeys, binding: WebhookSealBinding, text: string): Buffer {
  return encrypt(keys.webhook, webhookData(keys.ownerId, binding), text);
}

/** @throws Error if it was altered, moved to another agent or field, or sealed under another key */
export function openForWebhook(keys: OwnerKeys, binding: WebhookSealBinding, sealed: Buffer): string {
  return decrypt(keys.webhook, webhookData(keys.ownerId, binding), sealed);
}

function encrypt(key: KeyObject, bound: Buffer, text: string): Buffer {
  const plaintext = Buffer.from(text, 'utf8');
  const sealed = Buffer.allocUnsafe(HEADER_BYTES + plaintext.length);
  sealed[0] = FORMAT;
  const nonce = sealed.subarray(1, 1 + NONCE_BYTES);
  takeRandomBytes(NONCE_BYTES).copy(nonce);
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(bound);
  cipher.update(plaintext).copy(sealed, HEADER_BYTES);
  cipher.final();
  cipher.getAuthTag().copy(sealed, 1 + NONCE_BYTES);
  return sealed;
}

function decrypt(key: KeyObject, bound: Buffer, sealed: Buffer): string {
  if (sealed[0] !== FORMAT || sealed.length < HEADER_BYTES)
    throw new Error('This has a format that this build does not know.');
  const nonce = sealed.subarray(1, 1 + NONCE_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: TAG_BYTES });
  decipher.setAAD(bound).setAuthTag(sealed.subarray(1 + NONCE_BYTES, HEADER_BYTES));
  return Buffer.concat([decipher.update(sealed.subarray(HEADER_BYTES)), decipher.final()]).toString('utf8');
}

function webhookData(ownerId: string, { agentId, field }: WebhookSealBinding): Buffer {
  return Buffer.from(`posthorn|webhook|1|${ownerId}|${agentId}|${field}`);
}

function additionalData(b: SealBinding): Buffer {
  return Buffer.from(
    `posthorn|1|${b.ownerId}|${b.containerKind}|${b.containerId}|${b.senderAgentId}|${b.recipientAgentId}|${b.messageId}`,
  );
}

/**
 * What an idempotency key stands for: an HMAC over canonical JSON, so that the same arguments in another order of
 * properties are the same act, and a dump of the database tells nothing of them.
 */
export function fingerprint(keys: OwnerKeys, act: Record<string, unknown>): Buffer {
  return createHmac('sha256', keys.fingerprint).update(canonicalJson(act)).digest();
}

/** RFC 8785 for the values that JSON.parse makes: properties sorted by UTF-16 units, numbers and strings as ECMAScript writes them. */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`;
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  const properties = Object.entries(value)
    .filter(([, each]) => each !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${properties.map(([name, each]) => `${JSON.stringify(name)}:${canonicalJson(each)}`).join(',')}}`;
}
