import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { registerAgent } from '../../src/db/functions.ts';
import { line, paragraph } from '../../src/operations/fields.ts';
import { packageRoot } from '../../src/package-root.ts';
import { createWorld, refusal } from '../helpers/world.ts';

const world = await createWorld();
const { admin } = world.database;

test('schemas and database call the same characters visible', async () => {
  const { rows } = await admin.query(
    `select array_agg(c order by c) as blank from (select generate_series(1, 131071) union select generate_series(917504, 921700)) x(c)
      where c not between 55296 and 57343 and not posthorn.shows_ink(chr(c))`,
  );
  const all = [
    ...Array.from({ length: 131_071 }, (_, n) => n + 1),
    ...Array.from({ length: 4_197 }, (_, n) => n + 917_504),
  ];
  const blank = all.filter(
    (c) => (c < 0xd800 || c > 0xdfff) && !paragraph(1).safeParse(String.fromCodePoint(c)).success,
  );
  expect(rows[0].blank).toEqual(blank);
});

test.each([' ', '\u00a0\u2003', '\u202e', '\u200b\u2066', '\u3164'])(
  'a label of %j is refused by both',
  async (label) => {
    expect(line(64).safeParse(label).success).toBe(false);
    expect(line(64).safeParse(`${label}a`).success).toBe(true);
    const { credential } = await (await world.makeOwner()).connect();
    const agent = { credential, installation: 'test', label, runtime: 'other' };
    expect(await refusal(registerAgent(world.app, agent))).toEqual({ code: '23514' });
    await registerAgent(world.app, { ...agent, label: `${label}a` });
  },
);

test('what was let in before gets a name', async () => {
  const agent = await (await world.makeOwner()).agent('before');
  await admin.query('drop function posthorn.shows_ink cascade');
  await admin.query(`update posthorn.agents set label = ' ', runtime_version = U&'\\202E' where agent_id = $1`, [
    agent.id,
  ]);
  const migration = await readFile(join(packageRoot, 'sql', 'migrations', '1500_visible_text.sql'), 'utf8');
  await admin.query(`begin; ${migration}; commit`);
  const { rows } = await admin.query(
    `select a.label, a.runtime_version, c.relforcerowsecurity as is_forced
       from posthorn.agents a cross join pg_catalog.pg_class c where a.agent_id = $1 and c.oid = 'posthorn.agents'::regclass`,
    [agent.id],
  );
  expect(rows).toEqual([{ label: 'unnamed', runtime_version: null, is_forced: true }]);
});
