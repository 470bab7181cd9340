import { createHmac, randomBytes } from 'node:crypto';

const PREFIX = 'whsec_';

/** A new secret, in the form that stock verifiers read: the key of both signatures is the 32 bytes after the prefix. */
export function makeWebhookSecret(): string {
  return PREFIX + randomBytes(32).toString('base64');
}

/** Whether a text has the form of a secret. */
export function isWebhookSecret(text: string): boolean {
  return /^whsec_[A-Za-z0-9+/]{43}=$/.test(text);
}

/**
 * The headers that prove a request: ours, whose signature covers the body, and those of Standard Webhooks, whose covers
 * the delivery's id, too.
 *
 * @param options.secrets the secrets that sign, the newest first; two while a rotation's grace lasts
 * @param options.unixSeconds when it is sent; receivers refuse what is minutes old, so that each attempt is signed anew
 */
export function signatureHeaders(options: {
  deliveryId: string;
  body: string;
  secrets: string[];
  unixSeconds: number;
}): Record<string, string> {
  const { deliveryId, body, secrets, unixSeconds } = options;
  const signatures = (text: string, encoding: 'hex' | 'base64') =>
    secrets.map((secret) => createHmac('sha256', keyOf(secret)).update(text).digest(encoding));
  const ours = signatures(`${unixSeconds}.${body}`, 'hex').map((signature) => `v1=${signature}`);
  const standard = signatures(`${deliveryId}.${unixSeconds}.${body}`, 'base64').map((signature) => `v1,${signature}`);
  return {
    'X-Posthorn-Signature': [`t=${unixSeconds}`, ...ours].join(','),
    'webhook-id': deliveryId,
    'webhook-timestamp': String(unixSeconds),
    'webhook-signature': standard.join(' '),
  };
}

function keyOf(secret: string): Buffer {
  return Buffer.from(secret.slice(PREFIX.length), 'base64');
}
