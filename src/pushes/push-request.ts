import webPush from 'web-push';
import type { PushKeys } from '../crypto/server-secrets.ts';

/** Where a browser is reached, as its Push API says it. */
export interface PushSubscription {
  endpoint: string;
  keys: { p256dh: string; auth: string };
}

export interface PushRequest {
  headers: Record<string, string>;
  body: Buffer;
}

/**
 * The request that tells a browser how many requests wait (RFC 8030, encrypted as in RFC 8291). A push service that
 * cannot reach it keeps the last one only.
 *
 * @param options.contact whom a push service may turn to: an https: or mailto: address
 * @param options.waiting all that the browser is told
 * @param options.lifeSeconds after so long nobody needs to be told
 */
export function pushRequest(options: {
  subscription: PushSubscription;
  pushKeys: PushKeys;
  contact: string;
  waiting: number;
  lifeSeconds: number;
}): PushRequest {
  const { subscription, pushKeys, contact, waiting, lifeSeconds } = options;
  const { headers, body } = webPush.generateRequestDetails(subscription, JSON.stringify({ waiting }), {
    vapidDetails: { subject: contact, ...pushKeys },
    TTL: lifeSeconds,
    // agents stand still until somebody decides: not for when the phone is taken up next
    urgency: 'high',
    topic: 'requests',
    contentEncoding: 'aes128gcm',
  });
  return { headers: Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, String(value)])), body };
}

/** What stands in the place of a contact where the server's address is none that push services take. */
const NO_CONTACT = 'mailto:nobody@posthorn.invalid';

/** The contact of a server at this address. Only a public address over https is one. */
export function contactOf(publicUrl: string | undefined): string {
  if (publicUrl === undefined) return NO_CONTACT;
  const { protocol, hostname } = new URL(publicUrl);
  return protocol === 'https:' && hostname !== 'localhost' ? publicUrl : NO_CONTACT;
}
