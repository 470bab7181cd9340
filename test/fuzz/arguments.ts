import fc from 'fast-check';
import { encodeCursor } from '../../src/operations/fields.ts';
import { type Known, type Schema, validArguments } from './from-schema.ts';
import { type Arguments, hostileText, MARK, spoiled } from './hostile.ts';
import type { Kind, PopulatedOwner } from './populated-owner.ts';

/** Arguments of an operation: what its schema allows, about what there is, and the same with something wrong. */
export function argumentsOf(operation: string, schema: Schema, owner: PopulatedOwner): fc.Arbitrary<Arguments> {
  const valid = validArguments(schema, knownFor(operation, owner));
  return fc.oneof(valid, spoiled(valid, Object.keys(schema.properties ?? {})));
}

/** Of what the id is that stands in a path as `id`, by the operation's name. */
const SUBJECTS: [RegExp, Kind][] = [
  [/denial/, 'denied'],
  [/proposal/, 'proposal'],
  [/group/, 'group'],
  [/webhook/, 'webhook'],
  [/connection|token/, 'connection'],
  [/agent/, 'agent'],
];

const CURSORS: [RegExp, string][] = [
  [/receive/, 'inbox'],
  [/deliveries/, 'deliveries'],
  [/proposals/, 'proposals'],
  [/groups/, 'groups'],
  [/agents/, 'agents'],
];

const URLS = [
  'https://hooks.example.com/wake',
  'https://example.org:8443/a?b=c',
  `https://example.org/${MARK}`,
  'http://example.org/',
  'https://127.0.0.1/',
  'https://[::1]/',
  `${MARK}:nothing`,
];

const TIMES = [
  '2100-01-01T00:00:00Z',
  '2100-02-28T23:59:59.999Z',
  '9999-12-31T23:59:59Z',
  '0000-01-01T00:00:00Z',
  '0001-01-01T00:00:00Z',
  '2024-02-29T00:00Z',
  `2100-01-01T00:00:00.${'9'.repeat(300)}Z`,
];

function knownFor(operation: string, { caller, ids }: PopulatedOwner): Known {
  const all = [caller.id, ...Object.values(ids).flat()];
  const mostly = (values: string[]) =>
    fc.oneof({ weight: 5, arbitrary: fc.constantFrom(...values) }, { weight: 1, arbitrary: fc.constantFrom(...all) });
  const subject = SUBJECTS.find(([pattern]) => pattern.test(operation))?.[1] ?? 'agent';
  const cursor = CURSORS.find(([pattern]) => pattern.test(operation))?.[1] ?? 'agents';
  const place = cursor === 'inbox' ? '1' : ids.group[0]!;
  return {
    ids: all,
    always: ['agent_id', 'peer_agent_ids', 'purpose', 'installation', 'message_id'],
    fields: {
      id: mostly(operation === 'revoke_agent' ? [caller.id] : ids[subject]),
      agent_id: fc.oneof(
        { weight: 12, arbitrary: fc.constantFrom(caller.id, caller.id.toUpperCase()) },
        { weight: 1, arbitrary: fc.constantFrom(...all) },
      ),
      recipient_agent_id: mostly(ids.agent),
      group_id: mostly(ids.group),
      conversation_id: mostly(ids.conversation),
      message_id: mostly(ids.message),
      message_ids: fc.array(mostly(ids.message), { minLength: 1, maxLength: 4 }),
      post_id: mostly(ids.post),
      reply_to: mostly(ids.received),
      proposal_id: mostly(ids.proposal),
      delivery_id: mostly(ids.delivery),
      peer_agent_ids: fc.uniqueArray(fc.constantFrom(...ids.agent.slice(0, 3)), { minLength: 1, maxLength: 3 }),
      agent_ids: fc.uniqueArray(fc.constantFrom(caller.id, ...ids.agent.slice(0, 3)), { minLength: 2, maxLength: 4 }),
      wait_seconds: fc.constant(0), // longer waits have tests of their own
      after: fc.oneof(
        fc.constant(encodeCursor(cursor, place)),
        fc.string({ minLength: 1, maxLength: 40 }).map((text) => MARK + text),
      ),
      url: fc.constantFrom(...URLS),
      expires_at: fc.constantFrom(...TIMES),
      confirm: hostileText,
    },
  };
}
