import { createHash, ECDH } from 'node:crypto';
import { z } from 'zod';
import { sealForPush } from '../crypto/seal.ts';
import { addPushSubscription, removePushSubscription, sessionOwner } from '../db/functions.ts';
import { invalidRequest } from '../errors.ts';
import { checkOutboundUrl } from '../net/outbound-url.ts';
import { id } from './fields.ts';
import { defineOwnerOperation } from './operation.ts';

// Whether the browser that asks is notified when a request waits. Each session is one browser.

export const addPush = defineOwnerOperation({
  name: 'add_push_subscription',
  title: 'Notify this browser',
  description: 'Tell this browser by push when a request waits, and nothing but how many do.',
  effect: 'repeatable',
  routes: [{ method: 'PUT', path: '/push' }],
  input: z.strictObject({
    endpoint: z.string().regex(/^[!-~]{1,2048}$/, 'must have 1 to 2048 printable ASCII characters'),
    p256dh: z.string().refine(isPoint, 'must be a point of P-256, uncompressed, in base64url'),
    auth: z.string().regex(/^[\w-]{22}$/, 'must be 16 bytes in base64url'),
    server_key: z.string().describe('The key that the browser subscribed with, from the settings page'),
  }),
  output: z.object({ id: id() }),
  async run(services, { credential }, { endpoint, p256dh, auth, server_key }) {
    const { pool, ownerKeysOf, webhookAllow, pushPublicKey } = services;
    const problem = checkOutboundUrl(endpoint, webhookAllow);
    if (problem !== undefined) throw invalidRequest(['endpoint'], `endpoint: ${problem}`);
    // its push service would refuse whatever this server signs
    if (server_key !== (await pushPublicKey()))
      throw invalidRequest(['server_key'], 'server_key: It is not this server’s.');
    const [session] = await sessionOwner(pool, { credential });
    const keys = await ownerKeysOf(session!.ownerId, credential);
    const endpointHash = createHash('sha256').update(endpoint).digest();
    const subscription = JSON.stringify({ endpoint, keys: { p256dh, auth } });
    const sealedSubscription = sealForPush(keys, endpointHash, subscription);
    return { id: await addPushSubscription(pool, { credential, endpointHash, sealedSubscription }) };
  },
});

export const removePush = defineOwnerOperation({
  name: 'remove_push_subscription',
  title: 'Notify this browser no more',
  description: 'End what add_push_subscription began.',
  effect: 'repeatable',
  routes: [{ method: 'DELETE', path: '/push' }],
  input: z.strictObject({}),
  output: z.object({ removed: z.boolean() }),
  async run({ pool }, { credential }) {
    return { removed: await removePushSubscription(pool, { credential }) };
  },
});

/** What is none would only be found out when something is to be encrypted for it. */
function isPoint(text: string): boolean {
  if (!/^[\w-]{87}$/.test(text)) return false;
  try {
    ECDH.convertKey(text, 'prime256v1', 'base64url');
    return true;
  } catch {
    return false;
  }
}
