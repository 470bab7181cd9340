import { createHmac, createSecretKey, hkdfSync, type KeyObject } from 'node:crypto';
import { decrypt, encrypt } from './aes-gcm.ts';

/**
 * An owner's keys in use, derived from the one data key that the ring wraps. As key objects, since Node takes 8 µs a
 * call to make one of a buffer: as long as sealing takes.
 */
export interface OwnerKeys {
  ownerId: string;
  body: KeyObject;
  fingerprint: KeyObject;
  webhook: KeyObject;
  push: KeyObject;
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
const FORMAT = Buffer.of(1);
const HEADER_BYTES = 29;

export function deriveOwnerKeys(ownerId: string, dataKey: Buffer): OwnerKeys {
  return {
    ownerId,
    body: derive(dataKey, 'posthorn body'),
    fingerprint: derive(dataKey, 'posthorn fingerprint'),
    webhook: derive(dataKey, 'posthorn webhook'),
    push: derive(dataKey, 'posthorn push'),
  };
}

function derive(dataKey: Buffer, purpose: string): KeyObject {
  return createSecretKey(Buffer.from(hkdfSync('sha256', dataKey, Buffer.alloc(0), purpose, 32)));
}

/** Seals one copy. */
export function seal(keys: OwnerKeys, binding: SealBinding, text: string): Buffer {
  return sealText(keys.body, additionalData(binding), text);
}

/** @throws Error if the copy was altered, moved to another row or sealed under another key */
export function open(keys: OwnerKeys, binding: SealBinding, sealed: Buffer): string {
  return openText(keys.body, additionalData(binding), sealed);
}

/** What of a webhook's registration is sealed. */
export interface WebhookSealBinding {
  agentId: string;
  field: 'url' | 'secret' | 'auth_header';
}

/** Seals part of an agent's webhook under the owner's key for that. */
export function sealForWebhook(keys: OwnerKeys, binding: WebhookSealBinding, text: string): Buffer {
  return sealText(keys.webhook, webhookData(keys.ownerId, binding), text);
}

/** @throws Error if it was altered, moved to another agent or field, or sealed under another key */
export function openForWebhook(keys: OwnerKeys, binding: WebhookSealBinding, sealed: Buffer): string {
  return openText(keys.webhook, webhookData(keys.ownerId, binding), sealed);
}

/**
 * Seals where a browser is reached under the owner's key for that.
 *
 * @param endpointHash SHA-256 of its address, by which the row is found
 */
export function sealForPush(keys: OwnerKeys, endpointHash: Buffer, text: string): Buffer {
  return sealText(keys.push, pushData(keys.ownerId, endpointHash), text);
}

/** @throws Error if it was altered, moved to another owner or address, or sealed under another key */
export function openForPush(keys: OwnerKeys, endpointHash: Buffer, sealed: Buffer): string {
  return openText(keys.push, pushData(keys.ownerId, endpointHash), sealed);
}

function sealText(key: KeyObject, bound: string, text: string): Buffer {
  return Buffer.concat([FORMAT, encrypt(key, bound, Buffer.from(text, 'utf8'))]);
}

function openText(key: KeyObject, bound: string, sealed: Buffer): string {
  if (sealed[0] !== FORMAT[0] || sealed.length < HEADER_BYTES)
    throw new Error('This has a format that this build does not know.');
  return decrypt(key, bound, sealed.subarray(1)).toString('utf8');
}

function webhookData(ownerId: string, { agentId, field }: WebhookSealBinding): string {
  return `posthorn|webhook|1|${ownerId}|${agentId}|${field}`;
}

function pushData(ownerId: string, endpointHash: Buffer): string {
  return `posthorn|push|1|${ownerId}|${endpointHash.toString('hex')}`;
}

function additionalData(b: SealBinding): string {
  return `posthorn|1|${b.ownerId}|${b.containerKind}|${b.containerId}|${b.senderAgentId}|${b.recipientAgentId}|${b.messageId}`;
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
