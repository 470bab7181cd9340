import { setTimeout as wait } from 'node:timers/promises';
import type { Command } from 'commander';
import { z } from 'zod';
import { makeId } from '../crypto/ids.ts';
import { createLog } from '../log.ts';
import { WEBHOOK_EVENTS } from '../operations/views.ts';
import { deliveryRequest } from '../webhooks/delivery-request.ts';
import { isWebhookSecret, makeWebhookSecret } from '../webhooks/signature.ts';
import { type AgentOptions, type AgentSettings, addAgentOptions, readAgentSettings } from './agent-settings.ts';
import { CommandError, EXIT, unreachable } from './failure.ts';
import { checked, repeat } from './options.ts';
import { addCommand, type Output } from './output.ts';
import { runUntilStopped } from './run-until-stopped.ts';

/** As long as a webhook's attempt, in milliseconds. */
const ATTEMPT_MS = 10_000;

/** How long the server may take to answer, in milliseconds. */
const ANSWER_MS = 10_000;

const RECONNECT_MS = 1_000;

export function addListen(program: Command): void {
  const command = addCommand(
    program,
    'listen <target>',
    'Forward the agent’s events to a local URL, signed like a webhook, until Ctrl-C. For development: nothing is tried again.',
  )
    .option('--event <type>', `of ${WEBHOOK_EVENTS.join(', ')}; repeatable; default: all`, repeat)
    .option('--secret <secret>', 'sign with this (whsec_…) instead of a new one')
    .option('--agent-id <id>', 'the agent that you act as (POSTHORN_AGENT_ID)');
  addAgentOptions(command).action(listen);
}

interface Options extends Output, AgentOptions {
  event?: string[];
  secret?: string;
  agentId?: string;
}

const Arguments = z.strictObject({
  target: z.url({ protocol: /^https?$/, error: 'must look like http://localhost:3000/hooks' }),
  event: z.array(z.enum(WEBHOOK_EVENTS)).optional(),
  secret: z.string().refine(isWebhookSecret, 'must be whsec_ and base64 of 32 bytes').optional(),
  agent_id: z.uuid().optional(),
});

async function listen(target: string, options: Options): Promise<void> {
  const { event, secret: givenSecret, agentId } = options;
  const given = checked(Arguments, { target, event, secret: givenSecret, agent_id: agentId });
  const settings = await readAgentSettings(options);
  const secret = given.secret ?? makeWebhookSecret();
  const forwarder: Forwarder = { target, secret, webhookId: makeId(), wants: given.event ?? [...WEBHOOK_EVENTS] };
  await runUntilStopped(
    createLog('warn'),
    async (closing) => {
      const asAgent = { ...settings, agentId: given.agent_id ?? settings.agentId };
      const opened = await connect(asAgent, undefined, closing);
      const forwarding = forwardAll(readEvents(asAgent, opened, closing), forwarder, options, closing);
      const failed = forwarding.then(() => new Promise<never>(() => {}));
      failed.catch(() => {}); // it ends when we stop it, too
      return {
        failed,
        close: () => forwarding.catch(() => {}),
      };
    },
    () => {
      const ready = JSON.stringify({ event: 'ready', target, secret });
      process.stdout.write(options.json ? `${ready}\n` : `Forwarding to ${target}, signed with\n${secret}\n`);
    },
  );
}

interface Forwarder {
  target: string;
  secret: string;
  webhookId: string;
  wants: readonly string[];
}

async function forwardAll(
  events: AsyncIterable<StreamEvent>,
  forwarder: Forwarder,
  output: Output,
  closing: AbortSignal,
): Promise<void> {
  for await (const { event, data } of events) {
    if (!forwarder.wants.includes(event)) continue;
    const startedAt = performance.now();
    const { deliveryId, status } = await forward(forwarder, data, closing);
    if (closing.aborted) return;
    const milliseconds = Math.round(performance.now() - startedAt);
    const line = { event: 'forwarded', type: event, delivery_id: deliveryId, status, milliseconds };
    if (output.json) process.stdout.write(`${JSON.stringify(line)}\n`);
    else process.stdout.write(`${event}: ${status ?? 'no answer'}, ${milliseconds} ms\n`);
  }
}

async function forward(
  { target, secret, webhookId }: Forwarder,
  content: Record<string, unknown>,
  closing: AbortSignal,
): Promise<{ deliveryId: string; status: number | null }> {
  const deliveryId = makeId();
  const { headers, body } = deliveryRequest({
    webhookId,
    deliveryId,
    content,
    secrets: [secret],
    authHeader: undefined,
  });
  try {
    const signal = AbortSignal.any([closing, AbortSignal.timeout(ATTEMPT_MS)]);
    const response = await fetch(target, { method: 'POST', headers, body, redirect: 'manual', signal });
    await response.body?.cancel();
    return { deliveryId, status: response.status };
  } catch {
    return { deliveryId, status: null };
  }
}

interface StreamEvent {
  id: string | undefined;
  event: string;
  data: Record<string, unknown>;
}

type Body = ReadableStream<Uint8Array>;

/**
 * Opens the agent's event stream, behind an event where one is named.
 *
 * @throws CommandError with the server's own error, or `unreachable`
 */
async function connect(
  { url, token, agentId }: AgentSettings,
  lastEventId: string | undefined,
  closing: AbortSignal,
): Promise<Body> {
  const query = agentId === undefined ? '' : `?agent_id=${encodeURIComponent(agentId)}`;
  // for the answer alone: the stream that it begins has no end
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), ANSWER_MS);
  try {
    const response = await fetch(`${url}/messaging/v1/events${query}`, {
      headers: {
        authorization: `Bearer ${token}`,
        ...(lastEventId === undefined ? {} : { 'last-event-id': lastEventId }),
      },
      // a redirect would carry the token to wherever it leads
      redirect: 'manual',
      signal: AbortSignal.any([closing, late.signal]),
    }).catch(() => {
      throw unreachable(`${url} does not answer. Does the server run?`);
    });
    const isStream = response.headers.get('content-type')?.startsWith('text/event-stream');
    if (response.ok && isStream && response.body) return response.body;
    const answer = (await response.json().catch(() => ({}))) as Record<string, unknown>;
    const { error, message, ...facts } = answer;
    if (typeof error !== 'string')
      throw unreachable(`${url} answers with HTTP ${response.status}, and not as Posthorn does. Is the address right?`);
    throw new CommandError(error, String(message ?? ''), EXIT.refused, facts);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * The events of a stream, taken up again wherever it breaks off.
 *
 * @throws CommandError when the server refuses to go on
 */
async function* readEvents(settings: AgentSettings, opened: Body, closing: AbortSignal): AsyncGenerator<StreamEvent> {
  let lastEventId: string | undefined;
  for (let body: Body | undefined = opened; body; body = await reconnect(settings, lastEventId, closing)) {
    try {
      for await (const event of parseEvents(body)) {
        lastEventId = event.id ?? lastEventId;
        yield event;
      }
    } catch {
      // it broke off: taken up again behind the last event
    }
  }
}

/** @returns undefined when nobody wants it any more */
async function reconnect(
  settings: AgentSettings,
  lastEventId: string | undefined,
  closing: AbortSignal,
): Promise<Body | undefined> {
  while (!closing.aborted) {
    await wait(RECONNECT_MS, undefined, { signal: closing }).catch(() => {});
    if (closing.aborted) return undefined;
    try {
      return await connect(settings, lastEventId, closing);
    } catch (error) {
      const { exitCode, facts } = error as CommandError;
      if (exitCode === EXIT.refused && facts.retryable !== true) throw error;
    }
  }
  return undefined;
}

async function* parseEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<StreamEvent> {
  let rest = '';
  for await (const chunk of body.pipeThrough(
    new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>,
  )) {
    const blocks = (rest + chunk).split('\n\n');
    rest = blocks.pop()!;
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split('\n').map((line) => line.split(/: (.*)/s).slice(0, 2)));
      if (fields.event !== undefined && fields.data !== undefined)
        yield { id: fields.id, event: fields.event, data: JSON.parse(fields.data) };
    }
  }
}
