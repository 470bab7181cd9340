import { describe, expect, test } from 'vitest';
import { INSTRUCTIONS, TOOLS } from '../../src/mcp/tools.ts';
import { OPERATIONS } from '../../src/operations/index.ts';

const CORE = ['status', 'register_agent', 'list_agents', 'send_message', 'receive_messages', 'acknowledge_messages'];

/** What is left of the 6,000 tokens belongs to tools of later issues. */
const MAX_TOKENS = 4_750;

type Schema = { [keyword: string]: unknown; properties?: Record<string, Schema>; items?: Schema; anyOf?: Schema[] };

/** A schema and all below it. */
function nodesOf(schema: Schema): Schema[] {
  const children = [
    ...Object.values(schema.properties ?? {}),
    ...(schema.items ? [schema.items] : []),
    ...(schema.anyOf ?? []),
  ];
  return [schema, ...children.flatMap(nodesOf)];
}

test('every operation that is a tool is listed, in its order', () => {
  const names = OPERATIONS.filter((operation) => operation.isTool).map((operation) => operation.name);
  expect(TOOLS.map((tool) => tool.name)).toEqual(names);
  expect(names).toEqual([
    ...CORE,
    'message_status',
    'propose_collaboration',
    'proposal_status',
    'register_webhook',
    'remove_webhook',
  ]);
});

test('the list is small', () => {
  expect(JSON.stringify(TOOLS).length / 4).toBeLessThan(MAX_TOKENS);
});

test('core tools are always loaded', () => {
  const loaded = TOOLS.filter((tool) => tool._meta?.['anthropic/alwaysLoad'] === true);
  expect(loaded.map((tool) => tool.name)).toEqual(CORE);
});

test('hints are true', () => {
  const readers = TOOLS.filter((tool) => tool.annotations?.readOnlyHint);
  expect(readers.map((tool) => tool.name)).toEqual(['status', 'list_agents', 'message_status', 'proposal_status']);
  for (const tool of TOOLS) {
    expect(tool.annotations).toMatchObject({ destructiveHint: false, idempotentHint: true, openWorldHint: false });
    expect(tool.annotations?.title).toMatch(/^[A-Z]/);
  }
});

describe.each(TOOLS)('$name', (tool) => {
  const input = tool.inputSchema as Schema;
  const output = tool.outputSchema as Schema;

  test('fits every client', () => {
    expect(tool.name).toMatch(/^[a-z_]{1,32}$/);
    expect(tool.description!.length).toBeLessThan(300);
    for (const schema of [input, output]) {
      expect(schema.type).toBe('object');
      expect(schema).not.toHaveProperty('anyOf');
      expect(schema).not.toHaveProperty('$schema');
      for (const node of nodesOf(schema)) {
        expect(Object.keys(node).filter((keyword) => keyword.startsWith('$') || keyword.endsWith('Of'))).toEqual(
          node.anyOf ? ['anyOf'] : [],
        );
        expect(Array.isArray(node.type)).toBe(false);
        if (node.format !== undefined) expect(node.pattern).toBeUndefined();
      }
    }
  });

  test('refuses unknown arguments and welcomes any answer', () => {
    expect(input.additionalProperties).toBe(false);
    for (const node of nodesOf(output)) {
      expect(node.required).toBeUndefined();
      expect(node.additionalProperties).toBeUndefined();
    }
  });
});

test('lengths are told in code points', () => {
  const { body, idempotency_key } = TOOLS.find((tool) => tool.name === 'send_message')!.inputSchema
    .properties as Record<string, Schema>;
  expect(body).toEqual({ type: 'string', minLength: 1, maxLength: 20_000 });
  expect(idempotency_key!.pattern).toBe('^[ -~]{1,128}$');
});

test('the instructions say what they must in under 200 words', () => {
  expect(INSTRUCTIONS.split(/\s+/).length).toBeLessThan(200);
  expect(INSTRUCTIONS.length).toBeLessThan(2_000);
  for (const word of [
    'status each turn',
    'acknowledge_messages',
    'untrusted',
    'transcripts',
    'recalled memories',
    'secrets',
    'nag',
    'link',
  ]) {
    expect(INSTRUCTIONS).toContain(word);
  }
});
