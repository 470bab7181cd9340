import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { packageRoot } from '../../src/package-root.ts';
import { newKey, startPosthorn, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';

// The reference client's command line, which has a mind of its own about which schemas clients can use.

const inspector = join(packageRoot, 'node_modules', '.bin', 'mcp-inspector');
const run = promisify(execFile);

let posthorn: TestPosthorn;
let a: TestAgent;
let b: TestAgent;

beforeAll(async () => {
  posthorn = await startPosthorn();
  const owner = await posthorn.owner();
  [a, b] = [await owner.agent('a'), await owner.agent('b')];
  await owner.group([a, b]);
});
afterAll(() => posthorn.close());

async function inspect(agent: TestAgent, era: string, method: string, ...args: string[]) {
  const target = ['--cli', `${posthorn.pods[0]!.url}/mcp`, '--transport', 'http', '--protocol-era', era];
  const header = ['--header', `Authorization: Bearer ${agent.token}`];
  const command = ['--method', method, '--format', 'json', ...args];
  const { stdout, stderr } = await run(inspector, [...target, ...header, ...command], { timeout: 25_000 });
  return { ...JSON.parse(stdout), stderr };
}

const callTool = (name: string, input: object) =>
  ['tools/call', '--tool-name', name, '--tool-args-json', JSON.stringify(input)] as const;

describe.each(['legacy', 'modern'])('inspector, %s era', (era) => {
  test('finds nothing to say about the tools', async () => {
    const { result, schemaFindings, stderr } = await inspect(a, era, 'tools/list', '--strict');
    expect(result.tools).toHaveLength(11);
    expect(schemaFindings).toBeUndefined();
    expect(stderr).not.toContain('portability');
  });

  test('sends and receives', async () => {
    const input = { agent_id: a.id, recipient_agent_id: b.id, body: `from ${era}`, idempotency_key: newKey() };
    const sent = await inspect(a, era, ...callTool('send_message', input));
    expect(sent.result.structuredContent).toMatchObject({ state: 'queued' });
    const received = await inspect(b, era, ...callTool('receive_messages', { agent_id: b.id }));
    expect(received.result.structuredContent.messages).toContainEqual(expect.objectContaining({ body: `from ${era}` }));
  });
});
