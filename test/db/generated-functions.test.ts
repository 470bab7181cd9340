import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { generateFunctions } from '../../scripts/generate-functions.ts';
import { withClient } from '../../src/db/pool.ts';
import { createTestDatabase, type TestDatabase } from '../helpers/database.ts';

const SAMPLES = `
  create schema posthorn_api;
  create schema ops;
  create type ops.mood as enum ('calm', 'busy');
  create type ops.person as (full_name text, born_at timestamptz, mood ops.mood);

  create function posthorn_api.add_up(p_first int, p_second bigint default 10) returns bigint
    language sql as 'select p_first + p_second';
  comment on function posthorn_api.add_up(int, bigint) is 'The sum.';

  create function posthorn_api.list_lines(p_lines text[], p_hashes bytea[]) returns table (line_number int, line text, hash bytea)
    language sql as 'select n::int, line, hash from unnest(p_lines, p_hashes) with ordinality as each (line, hash, n)';
  comment on function posthorn_api.list_lines(text[], bytea[]) is 'Lines as they came. [nullable: line, hash]';

  create function posthorn_api.echo_json(p_value jsonb default null) returns jsonb language sql as 'select p_value';
  create function posthorn_api.count_to(p_last int) returns setof int language sql as 'select generate_series(1, p_last)';
  create function posthorn_api.do_nothing() returns void language sql as '';
  create function posthorn_api.find_id(p_id uuid) returns uuid language sql as 'select p_id';
  comment on function posthorn_api.find_id(uuid) is 'Null for null. [nullable: p_id, result]';

  create function ops.describe_person(p_born_at timestamptz) returns ops.person
    language sql as $$ select row('Ada', p_born_at, 'calm')::ops.person $$;`;

test('wrappers have the types of their functions', async () => {
  const database = await sampleDatabase(SAMPLES);
  const text = await withClient(database.admin, generateFunctions);
  const declarations = text.match(/^export (async function .*?>|interface [^}]*})/gms);
  expect(declarations).toEqual([
    `export interface Person {\n  fullName: string;\n  bornAt: Date;\n  mood: 'calm' | 'busy';\n}`,
    'export async function addUp(db: Queryable, p: { first: number; second?: number | null }): Promise<number>',
    'export async function countTo(db: Queryable, p: { last: number }): Promise<number[]>',
    'export async function doNothing(db: Queryable): Promise<void>',
    'export async function echoJson(db: Queryable, p: { value?: unknown }): Promise<unknown>',
    'export async function findId(db: Queryable, p: { id: string | null }): Promise<string | null>',
    'export interface ListLinesRow {\n  lineNumber: number;\n  line: string | null;\n  hash: Buffer | null;\n}',
    'export async function listLines(db: Queryable, p: { lines: (string | null)[]; hashes: (Buffer | null)[] }): Promise<ListLinesRow[]>',
    'export async function describePerson(db: Queryable, p: { bornAt: Date }): Promise<Person>',
  ]);
  expect(text).toContain('/** The sum. */\nexport async function addUp(');
  expect(text).toContain('/** Lines as they came. */\n');
});

test('wrappers pass arguments by name and give back what the function answers', async () => {
  const database = await sampleDatabase(SAMPLES);
  const functions = await load(await withClient(database.admin, generateFunctions));
  const db = database.admin;
  expect(await functions.addUp(db, { first: 1 })).toBe(11);
  expect(await functions.addUp(db, { first: 1, second: 2 })).toBe(3);
  expect(await functions.addUp(db, { first: 1, second: null })).toBeNull();
  expect(await functions.countTo(db, { last: 3 })).toEqual([1, 2, 3]);
  expect(await functions.doNothing(db)).toBeUndefined();
  expect(await functions.echoJson(db, { value: ['a', { b: null }] })).toEqual(['a', { b: null }]);
  expect(await functions.echoJson(db, { value: 'text' })).toBe('text');
  expect(await functions.echoJson(db, {})).toBeNull();
  expect(await functions.findId(db, { id: null })).toBeNull();
  expect(
    await functions.listLines(db, {
      lines: ['a "quoted", {braced} \\ line', null],
      hashes: [null, Buffer.from([0, 255])],
    }),
  ).toEqual([
    { lineNumber: 1, line: 'a "quoted", {braced} \\ line', hash: null },
    { lineNumber: 2, line: null, hash: Buffer.from([0, 255]) },
  ]);
  const bornAt = new Date('1815-12-10T00:00:00.123Z');
  expect(await functions.describePerson(db, { bornAt })).toEqual({ fullName: 'Ada', bornAt, mood: 'calm' });
});

test('what has no faithful wrapper is refused by name', async () => {
  const refusal = async (sql: string) => {
    const database = await sampleDatabase(`create schema posthorn_api; create schema ops; ${sql}`);
    return await withClient(database.admin, generateFunctions).catch((error: Error) => error.message);
  };
  const body = `language sql as 'select 1'`;
  expect(await refusal(`create function ops.one(value int) returns int ${body}`)).toContain(
    '"value" does not begin with p_',
  );
  expect(
    await refusal(
      `create function ops.one() returns int ${body}; create function ops.one(p_a int) returns int ${body}`,
    ),
  ).toContain('have one name');
  expect(await refusal(`create function ops.one(p_a money) returns int ${body}`)).toContain(
    'No TypeScript type for money',
  );
});

async function sampleDatabase(sql: string): Promise<TestDatabase> {
  const database = await createTestDatabase({ isEmpty: true });
  await database.admin.query(sql);
  return database;
}

// biome-ignore lint/suspicious/noExplicitAny: the module has just been generated.
async function load(text: string): Promise<any> {
  const folder = await mkdtemp(join(tmpdir(), 'posthorn-generated-'));
  try {
    await writeFile(join(folder, 'functions.ts'), text);
    return await import(join(folder, 'functions.ts'));
  } finally {
    await rm(folder, { recursive: true });
  }
}
