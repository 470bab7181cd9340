import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import net, { type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { packageRoot } from '../../src/package-root.ts';
import { answerOf, register, signIn } from '../helpers/oauth.ts';
import { startPosthorn } from '../helpers/posthorn.ts';

// The official suite's scenarios for authorization servers. It prints an address for a person to open; here the person
// is a browser without a screen.

const posthorn = await startPosthorn();
afterAll(posthorn.close);
const url = posthorn.pods[0]!.url;
const folder = mkdtempSync(join(tmpdir(), 'posthorn-conformance-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test('the metadata and the code grant', { timeout: 60_000 }, async () => {
  const browser = await signIn(await posthorn.owner(), url);
  const port = await freePort();
  const redirectUri = `http://127.0.0.1:${port}/callback`;
  const { body: client } = await register(url, { redirect_uris: [redirectUri] });
  const suite = join(packageRoot, 'node_modules', '@modelcontextprotocol', 'conformance', 'dist', 'index.js');
  const settings = ['--url', url, '--client-id', client.client_id, '--resource', `${url}/mcp`, '-p', String(port)];
  const child = spawn(process.execPath, [suite, 'authorization', ...settings, '-o', folder]);
  let output = '';
  let isOpened = false;
  const read = async (chunk: Buffer) => {
    output += chunk;
    const address = /(http\S+\/authorize\?\S+)/.exec(output)?.[1];
    if (address === undefined || isOpened) return;
    isOpened = true;
    const page = await browser.submit(await browser.open(address), { decision: 'allow' });
    answerOf(page);
    await fetch(page.headers.get('location')!);
  };
  child.stdout.on('data', read);
  child.stderr.on('data', read);
  await once(child, 'close');
  const checks = await readChecks();
  expect(
    checks.filter(({ status }) => status === 'FAILURE' || status === 'WARNING'),
    output,
  ).toEqual([]);
  expect(
    checks.map(({ id }) => id),
    output,
  ).toContain('authorization-code-grant');
});

async function readChecks(): Promise<{ id: string; status: string }[]> {
  const files = (await readdir(folder, { recursive: true })).filter((name) => name.endsWith('checks.json'));
  return (await Promise.all(files.map(async (name) => JSON.parse(await readFile(join(folder, name), 'utf8'))))).flat();
}

async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
