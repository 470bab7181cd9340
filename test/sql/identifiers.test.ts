import { expect, test } from 'vitest';
import { createTestDatabase } from '../helpers/database.ts';

const { admin } = await createTestDatabase();

test('the ids of the database are UUIDs of version 7 by its clock, all different', async () => {
  const { rows } = await admin.query(
    `select extract(epoch from clock_timestamp()) * 1000 as before, array_agg(posthorn.make_id()::text) as ids, extract(epoch from clock_timestamp()) * 1000 as after
       from generate_series(1, 5000)`,
  );
  const { ids, before, after } = rows[0];
  expect(new Set(ids).size).toBe(5_000);
  for (const id of ids) {
    expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    const time = Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
    expect(time).toBeGreaterThan(before - 1_000);
    expect(time).toBeLessThan(Number(after) + 60_000);
  }
});

test('ids of later milliseconds sort after earlier ones', async () => {
  const { rows } = await admin.query(`select array_agg(posthorn.make_id()::text) as ids from generate_series(1, 5000)`);
  const times = rows[0].ids.map((id: string) => id.slice(0, 13));
  expect(times).toEqual(times.toSorted());
});
