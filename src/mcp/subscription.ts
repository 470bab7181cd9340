import type { ServerResponse } from 'node:http';
import { InMemoryServerEventBus } from '@modelcontextprotocol/server';
import type { InboxSnapshot } from '../events/event-content.ts';
import type { CloseReason, Outlet } from '../events/stream-hub.ts';
import { addressesOf } from './inbox-resource.ts';

/** What changes an inbox; receipts of what an agent sent do not. */
const INBOX_KINDS = ['messaging.pending', 'proposal.decided'];

/** How long a client may take to read the end, in milliseconds. */
const LINGER_MS = 5_000;

/**
 * A stream of the hub whose events become `notifications/resources/updated`. Those only say "look", so one that its
 * client has not taken yet stands for all that follow, and none is kept for a client that takes nothing.
 */
export class Subscription implements Outlet {
  readonly bus = new InMemoryServerEventBus();
  readonly #response: ServerResponse;
  readonly #uris: string[];
  readonly #unsaid = new Set<string>();
  #isStarted = false;
  #onEnd = () => {};

  /** @param uris the inboxes as the client named them */
  constructor(response: ServerResponse, uris: string[]) {
    this.#response = response;
    this.#uris = uris;
    response.on('drain', () => this.#say());
  }

  /** From now on the bus has its reader: what waited is said. @param onEnd told when the hub ends the stream */
  start(onEnd: () => void): void {
    this.#isStarted = true;
    this.#onEnd = onEnd;
    this.#say();
  }

  begin(): void {}

  write(_text: string, agentId: string, kind: string): void {
    if (INBOX_KINDS.includes(kind)) this.#note(agentId);
  }

  /** Who comes back after a while is told to look, since notifications have no ids to resume by. */
  snapshot(_id: string, agents: InboxSnapshot[]): void {
    for (const { agent_id, pending_count } of agents) if (pending_count > 0) this.#note(agent_id);
  }

  reset(): void {}

  #note(agentId: string): void {
    for (const uri of addressesOf(agentId, this.#uris)) this.#unsaid.add(uri);
    this.#say();
  }

  #say(): void {
    if (!this.#isStarted || this.#response.writableNeedDrain) return;
    for (const uri of this.#unsaid) this.bus.publish({ kind: 'resource_updated', uri });
    this.#unsaid.clear();
  }

  /** The comments are the SDK's. */
  beat(): boolean {
    return !this.#response.writableNeedDrain;
  }

  get waiting(): number {
    return this.#response.writableLength;
  }

  get isGone(): boolean {
    return this.#response.destroyed;
  }

  onGone(tell: () => void): void {
    this.#response.once('close', tell);
  }

  drained(): Promise<void> {
    return Promise.resolve();
  }

  end(_reason: CloseReason): void {
    this.#onEnd();
    const late = setTimeout(() => this.#response.destroy(), LINGER_MS);
    this.#response.once('close', () => clearTimeout(late));
  }
}
