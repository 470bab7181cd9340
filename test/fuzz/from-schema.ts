import fc from 'fast-check';
import { type Arguments, MARK } from './hostile.ts';

/** As much of JSON Schema as the operations use. */
export interface Schema {
  type?: string;
  const?: unknown;
  enum?: unknown[];
  anyOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  minItems?: number;
  maxItems?: number;
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
  pattern?: string;
  format?: string;
}

/** What a schema cannot know: which ids there are, and what else a field of some name must be to be of use. */
export interface Known {
  ids: string[];
  fields: Record<string, fc.Arbitrary<unknown>>;
  /** Fields that an operation may do without, and hardly ever does anything without. */
  always: string[];
}

/** Longer lists and texts say nothing new, and the limits have tests of their own. */
const MAX_ITEMS = 4;
const MAX_TEXT = 200;

/** Arguments that a schema of an object allows. */
export function validArguments(schema: Schema, known: Known): fc.Arbitrary<Arguments> {
  const fields = Object.entries(schema.properties ?? {}).map(
    ([name, property]) => [name, known.fields[name] ?? validValue(property, known)] as const,
  );
  const always = [...(schema.required ?? []), ...known.always.filter((name) => name in (schema.properties ?? {}))];
  const all: Record<string, fc.Arbitrary<unknown>> = Object.fromEntries(fields);
  const least = Object.fromEntries(fields.filter(([name]) => always.includes(name)));
  return fc.oneof(
    fc.record(all, { requiredKeys: always, noNullPrototype: true }),
    fc.record(least, { noNullPrototype: true }),
  );
}

function validValue(schema: Schema, known: Known): fc.Arbitrary<unknown> {
  if ('const' in schema) return fc.constant(schema.const);
  if (schema.enum) return fc.constantFrom(...schema.enum);
  if (schema.anyOf) return fc.oneof(...schema.anyOf.map((branch) => validValue(branch, known)));
  switch (schema.type) {
    case 'object':
      return validArguments(schema, known);
    case 'array': {
      const least = schema.minItems ?? 0;
      const most = Math.max(least, Math.min(schema.maxItems ?? MAX_ITEMS, MAX_ITEMS));
      return fc.array(validValue(schema.items!, known), { minLength: least, maxLength: most });
    }
    case 'integer':
      return fc.integer({ min: schema.minimum ?? -1_000, max: schema.maximum ?? 1_000 });
    case 'boolean':
      return fc.boolean();
    case 'string':
      return validText(schema, known);
    default:
      throw new Error(`There is no generator for ${JSON.stringify(schema)}`);
  }
}

function validText(
  { format, pattern, minLength = 0, maxLength = MAX_TEXT }: Schema,
  known: Known,
): fc.Arbitrary<unknown> {
  if (format === 'uuid') return validId(known.ids);
  if (pattern !== undefined) return fc.stringMatching(new RegExp(pattern));
  const room = Math.min(maxLength, MAX_TEXT) - MARK.length;
  return fc
    .string({ unit: 'grapheme-ascii', minLength: Math.max(0, minLength - MARK.length), maxLength: room })
    .map((text) => MARK + text);
}

/** Ids that there are, in small letters and in capitals, and some that there are not. */
function validId(ids: string[]): fc.Arbitrary<string> {
  return fc.oneof(
    { weight: 6, arbitrary: fc.constantFrom(...ids) },
    { weight: 2, arbitrary: fc.constantFrom(...ids).map((id) => id.toUpperCase()) },
    { weight: 1, arbitrary: fc.uuid() },
    {
      weight: 1,
      arbitrary: fc.constantFrom('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
    },
  );
}
