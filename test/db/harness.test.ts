import net from 'node:net';
import pg from 'pg';
import { expect, test } from 'vitest';
import { createTestDatabase } from '../helpers/database.ts';

test('tests cannot reach other machines', async () => {
  // An address that is set aside for documentation.
  expect(() => net.connect(80, '192.0.2.1')).toThrow('may not connect to 192.0.2.1');
  expect(() => net.connect({ port: 443, host: 'posthorn.example' })).toThrow('may not connect to posthorn.example');
  await expect(fetch('http://192.0.2.1/')).rejects.toMatchObject({
    cause: { message: expect.stringContaining('192.0.2.1') },
  });
});

test('each database is a migrated clone of its own', async () => {
  const [one, other] = await Promise.all([createTestDatabase(), createTestDatabase()]);
  await one.admin.query('create table only_here ()');
  const has = async (name: string) =>
    (await other.admin.query('select to_regclass($1) is not null as has', [name])).rows[0].has;
  expect(await has('only_here')).toBe(false);
  expect(await has('posthorn.messages')).toBe(true);
});

test('a connection that a test leaves open is told', async () => {
  const database = await createTestDatabase();
  const forgotten = new pg.Client({ connectionString: database.url, application_name: 'forgotten' });
  forgotten.on('error', () => {});
  await forgotten.connect();
  await expect(database.drop()).rejects.toThrow('forgotten');
  await forgotten.end();
});
