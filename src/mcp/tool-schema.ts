import type { Tool } from '@modelcontextprotocol/server';
import { z } from 'zod';

/** A JSON Schema whose root is an object, as every MCP client accepts one. */
export type ObjectSchema = Tool['inputSchema'];

type Node = Record<string, unknown>;

/** The arguments of a tool. Lengths and patterns stay, since they tell a model what will be refused. */
export function inputSchema(schema: z.ZodObject): ObjectSchema {
  return compact(z.toJSONSchema(schema, { io: 'input' }) as Node) as ObjectSchema;
}

/**
 * The answers of a tool. Nothing is required and everything may be added, since a refusal and the guidance for a
 * connection without permission are answers too, and strict clients hold those against the schema as well. Below the
 * root, what may be null is left out: it would be a third of the whole list, for what the answer itself says.
 */
export function outputSchema(schema: z.ZodObject): ObjectSchema {
  return loosen(compact(z.toJSONSchema(schema, { io: 'output' }) as Node), true) as ObjectSchema;
}

/** The same schema in fewer characters. */
function compact(node: Node): Node {
  const { $schema: _, ...rest } = node;
  // the format says what zod's patterns of 150 to 300 characters say
  if (rest.format !== undefined) delete rest.pattern;
  if (rest.maximum === Number.MAX_SAFE_INTEGER) delete rest.maximum;
  if (rest.minimum === Number.MIN_SAFE_INTEGER) delete rest.minimum;
  if (isNode(rest.items) && Object.keys(rest.items).length === 0) delete rest.items;
  const words = wordsOf(rest.anyOf);
  if (words) {
    const { anyOf: __, ...others } = rest;
    return { ...others, type: 'string', enum: words };
  }
  return mapChildren(splitTypes(rest), compact);
}

function loosen(node: Node, isRoot: boolean): Node {
  const { required: _, additionalProperties: __, format: ___, ...rest } = node;
  const { properties } = rest;
  if (isNode(properties) && !isRoot) {
    rest.properties = Object.fromEntries(Object.entries(properties).filter(([, property]) => !mayBeNull(property)));
  }
  return mapChildren(rest, (child) => loosen(child, false));
}

/** A list of types as branches: some clients know only one type at a place. */
function splitTypes(node: Node): Node {
  if (!Array.isArray(node.type)) return node;
  const { type: types, ...rest } = node;
  return { ...rest, anyOf: (types as string[]).map((type) => ({ type })) };
}

/** The words of a union of words; undefined for any other union. */
function wordsOf(anyOf: unknown): unknown[] | undefined {
  if (!Array.isArray(anyOf) || !anyOf.every((branch) => branch.enum ?? branch.const)) return undefined;
  return anyOf.flatMap((branch) => branch.enum ?? [branch.const]);
}

function mayBeNull(node: unknown): boolean {
  const branches = (node as Node).anyOf;
  return Array.isArray(branches) && branches.some((branch) => branch.type === 'null');
}

/** Applies a change to the schemas directly below one. */
function mapChildren(node: Node, change: (child: Node) => Node): Node {
  const changed = { ...node };
  if (isNode(node.items)) changed.items = change(node.items);
  if (Array.isArray(node.anyOf)) changed.anyOf = node.anyOf.map(change);
  if (isNode(node.properties)) {
    const properties = Object.entries(node.properties) as [string, Node][];
    changed.properties = Object.fromEntries(properties.map(([name, child]) => [name, change(child)]));
  }
  return changed;
}

function isNode(value: unknown): value is Node {
  return value !== null && typeof value === 'object' && !Array.isArray(value);
}
