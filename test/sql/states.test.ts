import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../src/package-root.ts';
import { createTestDatabase } from '../helpers/database.ts';

const database = await createTestDatabase();
const text = await readFile(join(packageRoot, 'docs', 'states.md'), 'utf8');

interface Arrow {
  from: string;
  to: string;
  label: string;
}

/** The arrows of the diagram below a heading of docs/states.md. */
function arrowsOf(heading: string): Arrow[] {
  const section = text.split(/^## /m).find((part) => part.startsWith(`${heading}\n`)) ?? '';
  const diagram = /^```mermaid\nstateDiagram-v2\n(.*?)^```$/ms.exec(section)?.[1] ?? '';
  return diagram
    .split('\n')
    .filter(Boolean)
    .map((line) => {
      const [, from, to, label = ''] = /^ {2}(\[\*\]|\w+) --> (\[\*\]|\w+)(?:: (.+))?$/.exec(line) ?? [];
      if (!from || !to) throw new Error(`${heading}: not an arrow: ${line}`);
      return { from, to, label };
    });
}

const isInner = ({ from, to }: Arrow) => from !== '[*]' && to !== '[*]';

test.each([
  ['Message', 'message', 'messages'],
  ['Proposal', 'proposal', 'proposals'],
])('the arrows of %s are the rows of its table of transitions', async (heading, noun, table) => {
  const { rows } = await database.admin.query(
    `select from_state || ' --> ' || to_state as arrow from posthorn.${noun}_transitions order by 1`,
  );
  const arrows = arrowsOf(heading);
  expect(
    arrows
      .filter(isInner)
      .map(({ from, to }) => `${from} --> ${to}`)
      .toSorted(),
  ).toEqual(rows.map((row) => row.arrow));

  // every state that a row may have is drawn, and those that nothing leaves are ends
  const { rows: states } = await database.admin.query(
    `select (regexp_matches(pg_get_constraintdef(oid), '''(\\w+)''', 'g'))[1] as state from pg_constraint
      where conrelid = ('posthorn.' || $1)::regclass and conname = 'state_is_known' order by 1`,
    [table],
  );
  const drawn = new Set(arrows.flatMap(({ from, to }) => [from, to]).filter((state) => state !== '[*]'));
  expect([...drawn].toSorted()).toEqual(states.map((row) => row.state));
  const left = new Set(arrows.filter(isInner).map(({ from }) => from));
  const ends = arrows.filter(({ to }) => to === '[*]').map(({ from }) => from);
  expect(ends.toSorted()).toEqual([...drawn].filter((state) => !left.has(state)).toSorted());
});

test.each(['Message', 'Proposal', 'Group', 'Conversation'])('%s is drawn with a cause at every arrow', (heading) => {
  const arrows = arrowsOf(heading);
  expect(arrows.length).toBeGreaterThan(4);
  expect(arrows.filter(({ to, label }) => to !== '[*]' && label === '')).toEqual([]);
  expect(arrows.some(({ from }) => from === '[*]')).toBe(true);
});
