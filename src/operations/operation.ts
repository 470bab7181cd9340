import type pg from 'pg';
import type { z } from 'zod';
import type { OwnerKeysOf } from '../crypto/owner-keys.ts';
import type { CredentialUse } from '../db/credential-use.ts';
import type { Listener } from '../db/listener.ts';
import type { ReceiptLane } from '../db/receipt-lane.ts';
import type { SendLane } from '../db/send-lane.ts';
import type { AllowList } from '../net/allow-list.ts';
import type { OpenIdProvider } from '../openid/provider.ts';

/** What an operation works with: one set per pod. */
export interface Services {
  pool: pg.Pool;
  ownerKeysOf: OwnerKeysOf;
  sendLane: SendLane;
  receiptLane: ReceiptLane;
  listener: Listener;
  /** Told of each credential that was good for a call. */
  credentialUse: CredentialUse;
  /** Where webhooks and pushes may go besides public HTTPS. */
  webhookAllow: AllowList;
  /** What push services know this server by; browsers are told when they ask to be notified. */
  pushPublicKey: () => Promise<string>;
  /** Where owners may sign in besides; undefined where the operator has none. */
  openid: OpenIdProvider | undefined;
  /** Where people and agents reach this server, without a slash at the end. */
  publicUrl: string;
}

/** Who calls, as far as a pod knows: the database turns the credential into an owner, a connection and an agent. */
export interface Caller {
  /** SHA-256 of what was presented. */
  credential: Buffer;
  /** Aborts when nobody waits for the answer any more. */
  signal: AbortSignal;
}

/**
 * One operation of the contract. Its HTTP route, OpenAPI entry, MCP tool and CLI command all come from here, so that
 * they cannot drift.
 */
export interface Operation<Input extends z.ZodObject = z.ZodObject, Output extends z.ZodObject = z.ZodObject> {
  /** The MCP tool's name and the OpenAPI operation id. */
  name: string;
  title: string;
  /** For tools and documentation: what it does and when to use it, in a sentence or three. */
  description: string;
  /** The scope that the connection needs. */
  scope: 'messaging';
  /** What it may change: nothing, only forward and repeatably, or something new each time. */
  effect: 'reads' | 'repeatable' | 'writes';
  /** Below /messaging/v1; `:name` takes an input field from the path. */
  routes: { method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'; path: string }[];
  /** Whether it is an MCP tool. */
  isTool: boolean;
  /** The CLI command, such as `messages send`; none where the command line has no use for it. */
  command?: string;
  input: Input;
  output: Output;
  /** 201 where the answer is something new. */
  status?: (output: z.output<Output>) => number;
  run: (services: Services, caller: Caller, input: z.output<Input>) => Promise<z.output<Output>>;
}

/** One operation of the owner, below /owner/v1: called with the session of a browser, and by nothing else. */
export type OwnerOperation<Input extends z.ZodObject = z.ZodObject, Output extends z.ZodObject = z.ZodObject> = Omit<
  Operation<Input, Output>,
  'scope' | 'isTool' | 'command'
>;

/** Ties the types of an owner's operation together. */
export function defineOwnerOperation<Input extends z.ZodObject, Output extends z.ZodObject>(
  operation: OwnerOperation<Input, Output>,
): OwnerOperation {
  return operation as unknown as OwnerOperation;
}

/** Ties the types of an operation's parts together. */
export function defineOperation<Input extends z.ZodObject, Output extends z.ZodObject>(
  operation: Operation<Input, Output>,
): Operation {
  return operation as unknown as Operation;
}
