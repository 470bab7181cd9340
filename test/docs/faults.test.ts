import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../src/package-root.ts';

const page = await readFile(join(packageRoot, 'docs', 'faults.md'), 'utf8');
const rows = page.split('\n').filter((line) => line.startsWith('| ') && !line.startsWith('| fault |'));
const shownBy = (row: string) =>
  [
    ...row
      .split('|')
      .at(-2)!
      .matchAll(/`([\w-]+\/[\w-]+)`/g),
  ].map(([, name]) => name!);

test('every fault names the tests that show it, and they exist', async () => {
  expect(rows.length).toBeGreaterThan(20);
  for (const row of rows) {
    expect(shownBy(row), row).not.toEqual([]);
    for (const name of shownBy(row)) await readFile(join(packageRoot, 'test', `${name}.test.ts`));
  }
});

test('every test of a fault is on the page', async () => {
  const files = await readdir(join(packageRoot, 'test', 'faults'));
  const names = files.map((file) => `faults/${file.replace('.test.ts', '')}`);
  expect([...new Set(rows.flatMap(shownBy))].filter((name) => name.startsWith('faults/')).sort()).toEqual(names.sort());
});
