import { signatureHeaders } from './signature.ts';

/** One attempt, ready to be sent. */
export interface DeliveryRequest {
  headers: Record<string, string>;
  body: string;
}

/**
 * The request of a delivery: the event with the ids of endpoint and delivery inside, since one of the signatures covers
 * the body alone.
 *
 * @param options.content the event as streams tell it, with its `type`
 * @param options.secrets the secrets that sign, the newest first
 * @param options.authHeader sent as `Authorization`
 */
export function deliveryRequest(options: {
  webhookId: string;
  deliveryId: string;
  content: Record<string, unknown>;
  secrets: string[];
  authHeader: string | undefined;
}): DeliveryRequest {
  const { webhookId, deliveryId, content, secrets, authHeader } = options;
  const body = JSON.stringify({ webhook_id: webhookId, delivery_id: deliveryId, ...content });
  const unixSeconds = Math.floor(Date.now() / 1_000);
  return {
    headers: {
      'Content-Type': 'application/json',
      'User-Agent': 'Posthorn-Webhooks/1',
      'X-Posthorn-Webhook-Id': webhookId,
      'X-Posthorn-Delivery-Id': deliveryId,
      'X-Posthorn-Event': String(content.type),
      ...signatureHeaders({ deliveryId, body, secrets, unixSeconds }),
      ...(authHeader === undefined ? {} : { Authorization: authHeader }),
    },
    body,
  };
}
