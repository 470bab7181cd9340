import * as agents from './agents.ts';
import * as messages from './messages.ts';
import type { Operation } from './operation.ts';
import * as proposals from './proposals.ts';
import * as webhooks from './webhooks.ts';

/** Every operation of /messaging/v1, in the order in which an agent meets them. */
export const OPERATIONS: Operation[] = [
  agents.status,
  agents.register,
  agents.list,
  messages.send,
  messages.receive,
  messages.acknowledge,
  messages.messageReceipt,
  proposals.propose,
  proposals.proposalStatus,
  proposals.list,
  webhooks.registerWebhook,
  webhooks.unregisterWebhook,
  webhooks.webhookRegistration,
  webhooks.testDelivery,
  webhooks.deliveries,
  webhooks.deliverAgain,
  agents.groups,
  agents.revoke,
  agents.mintChild,
];
