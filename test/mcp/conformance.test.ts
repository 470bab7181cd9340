import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { packageRoot } from '../../src/package-root.ts';
import { startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';

// The official suite. Most of its scenarios call tools, prompts and resources with names of their own (test_simple_text,
// test://static-text …) that exist only in a server made for the suite: we have none of them, and no prompts, resources,
// completion, logging, sampling, elicitation or tasks. Left out for other reasons: server-session-lifecycle and
// server-sse-polling, since a stateless server has no session and no stream to resume; caching, which also wants lists
// of prompts and resources. What is left is what every server must do.
const SCENARIOS = {
  '2025-11-25': ['server-initialize', 'ping', 'tools-list', 'dns-rebinding-protection'],
  '2026-07-28': [
    'server-stateless',
    'http-header-validation',
    'tools-list',
    'dns-rebinding-protection',
    'server-sse-multiple-streams',
    'input-required-result-unsupported-methods',
    'input-required-result-validate-input',
  ],
};

/** Checks of these scenarios that say "not testable" of a server without their tools. */
const NEED_FIXTURES = [
  'sep-2575-server-rejects-undeclared-capability',
  'sep-2575-missing-capability-http-400',
  'sep-2575-http-server-no-independent-requests-on-stream',
  'sep-2575-server-no-log-without-loglevel',
];

let posthorn: TestPosthorn;
let proxy: { url: string; close(): void };
let folder: string;

beforeAll(async () => {
  posthorn = await startPosthorn();
  const owner = await posthorn.owner();
  proxy = await startProxy(posthorn.pods[0]!.url, (await owner.token()).token);
  folder = await mkdtemp(join(tmpdir(), 'posthorn-conformance-'));
});
afterAll(async () => {
  proxy.close();
  await posthorn.close();
  await rm(folder, { recursive: true });
});

const cases = Object.entries(SCENARIOS).flatMap(([revision, names]) => names.map((name) => [revision, name] as const));

test.each(cases)('%s %s', { timeout: 60_000 }, async (revision, scenario) => {
  const checks = await runScenario(revision, scenario);
  const failed = checks.filter(({ status }) => status === 'FAILURE' || status === 'WARNING');
  expect(failed.filter(({ id }) => !NEED_FIXTURES.includes(id))).toEqual([]);
  for (const check of failed) expect(check.errorMessage).toMatch(/^Not testable/);
  expect(checks.filter(({ status }) => status === 'SUCCESS')).not.toEqual([]);
});

interface Check {
  id: string;
  status: string;
  errorMessage?: string;
}

async function runScenario(revision: string, scenario: string): Promise<Check[]> {
  const suite = join(packageRoot, 'node_modules', '@modelcontextprotocol', 'conformance', 'dist', 'index.js');
  const output = join(folder, `${revision} ${scenario}`);
  const target = ['server', '--url', proxy.url, '--spec-version', revision, '--scenario', scenario, '-o', output];
  // a failed check is its exit code; the files say which
  await promisify(execFile)(process.execPath, [suite, ...target]).catch(() => {});
  const files = await readdir(output, { recursive: true });
  const checks = files.filter((name) => name.endsWith('checks.json'));
  return (await Promise.all(checks.map(async (name) => JSON.parse(await readFile(join(output, name), 'utf8'))))).flat();
}

/** The suite has no option for a credential, so that this adds one; Host and Origin pass as they came. */
async function startProxy(target: string, token: string): Promise<typeof proxy> {
  const { hostname, port } = new URL(target);
  const server = http.createServer((request, response) => {
    const headers = { ...request.headers, authorization: `Bearer ${token}` };
    const { method, url: path } = request;
    const onward = http.request({ hostname, port, method, path, headers }, (answer) => {
      response.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(response);
    });
    onward.on('error', () => response.destroy());
    response.on('close', () => onward.destroy());
    request.pipe(onward);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`,
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}
