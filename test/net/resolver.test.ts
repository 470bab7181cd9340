import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { expect, onTestFinished, test } from 'vitest';
import { createResolver, resolveLocalName } from '../../src/net/resolver.ts';

const TYPES: Record<number, string> = { 1: 'A', 28: 'AAAA' };

/** A name server on this machine: answers each type of question with these bytes as the address, or with nothing. */
async function startNameServer(records: Record<string, number[] | undefined>, isNameKnown = true) {
  const asked: string[] = [];
  const server = createSocket('udp4', (query, { address, port }) => {
    const questionEnd = query.indexOf(0, 12) + 5;
    const type = query.readUInt16BE(questionEnd - 4);
    asked.push(TYPES[type]!);
    const data = records[TYPES[type]!];
    const header = Buffer.from(query.subarray(0, 12));
    header.writeUInt16BE(isNameKnown ? 0x8180 : 0x8183, 2);
    header.writeUInt16BE(data ? 1 : 0, 6);
    header.writeUInt32BE(0, 8);
    const record = data ? [0xc0, 0x0c, 0, type, 0, 1, 0, 0, 0, 60, 0, data.length, ...data] : [];
    server.send(Buffer.concat([header, query.subarray(12, questionEnd), Buffer.from(record)]), port, address);
  });
  server.bind(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  return { resolve: createResolver([`127.0.0.1:${server.address().port}`]), asked };
}

const LOOPBACK6 = [...Array(15).fill(0), 1];

test('all addresses of both families', async () => {
  const { resolve, asked } = await startNameServer({ A: [93, 184, 215, 14], AAAA: LOOPBACK6 });
  expect(await resolve('split.example.net')).toEqual(['93.184.215.14', '::1']);
  expect(asked.toSorted()).toEqual(['A', 'AAAA']);
});

test('nothing is remembered', async () => {
  const { resolve, asked } = await startNameServer({ A: [93, 184, 215, 14] });
  await resolve('again.example.net');
  await resolve('again.example.net');
  expect(asked).toHaveLength(4);
});

test('a name with addresses of one family, and one without any', async () => {
  expect(await (await startNameServer({ A: [10, 0, 0, 9] })).resolve('v4.example.net')).toEqual(['10.0.0.9']);
  expect(await (await startNameServer({ AAAA: LOOPBACK6 })).resolve('v6.example.net')).toEqual(['::1']);
  await expect((await startNameServer({})).resolve('none.example.net')).rejects.toMatchObject({ code: 'ENODATA' });
  const unknown = await startNameServer({}, false);
  await expect(unknown.resolve('nx.example.net')).rejects.toMatchObject({ code: 'ENOTFOUND' });
});

test('an allowed name may be one of this machine alone', async () => {
  expect(await resolveLocalName('localhost')).toContain('127.0.0.1');
});
