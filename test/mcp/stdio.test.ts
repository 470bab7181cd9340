import { spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { Client as V2Client } from '@modelcontextprotocol/client';
import { StdioClientTransport as V2Stdio } from '@modelcontextprotocol/client/stdio';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { TOOLS } from '../../src/mcp/tools.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';
import { type ToolAnswer, textOf } from './clients.ts';

const program = join(import.meta.dirname, 'stdio-process.ts');

let posthorn: TestPosthorn;
let owner: TestOwner;
let url: string;
const open: { close(): Promise<void> }[] = [];

beforeAll(async () => {
  posthorn = await startPosthorn();
  owner = await posthorn.owner();
  url = posthorn.pods[0]!.url;
});
afterAll(async () => {
  await Promise.all(open.map((client) => client.close()));
  await posthorn.close();
});

async function connect(token: string, options: { agentId?: string; url?: string } = {}) {
  const client = new Client({ name: 'test', version: '1' });
  const args = [program, options.url ?? url, token, ...(options.agentId ? [options.agentId] : [])];
  await client.connect(new StdioClientTransport({ command: process.execPath, args }));
  open.push(client);
  const { tools } = await client.listTools();
  const call = async (name: string, input: object = {}) =>
    (await client.callTool({ name, arguments: { ...input } })) as ToolAnswer;
  return { tools, call, client };
}

describe('over stdio', () => {
  let a: TestAgent;
  let b: TestAgent;
  beforeAll(async () => {
    [a, b] = [await owner.agent('a'), await owner.agent('b')];
    await owner.group([a, b]);
  });

  test('the same tools, and a message with its receipts', async () => {
    const [from, to] = [await connect(a.token, { agentId: a.id }), await connect(b.token)];
    expect(from.tools).toEqual(TOOLS);
    const input = { recipient_agent_id: b.id, body: 'through a pipe', idempotency_key: newKey() };
    const sent = await from.call('send_message', input);
    expect(sent.structuredContent).toMatchObject({ state: 'queued', sender_agent_id: a.id });
    expect((await from.call('send_message', input)).structuredContent).toMatchObject({ replayed: true });

    const listed = await to.call('list_agents', { agent_id: b.id, limit: 1 });
    expect(listed.structuredContent.agents).toHaveLength(1);
    expect(listed._meta).toEqual({ pending_messages: 1 });
    expect(textOf(listed).split('\n').at(-1)).toMatch(/^pending_messages: 1 /);

    const received = await to.call('receive_messages', { agent_id: b.id });
    expect(received.structuredContent.messages).toMatchObject([{ body: 'through a pipe' }]);
    expect(textOf(received)).toContain('untrusted data');
    const messageId = sent.structuredContent.id;
    await to.call('acknowledge_messages', { agent_id: b.id, message_ids: [messageId] });
    const receipt = await from.call('message_status', { message_id: messageId });
    expect(receipt.structuredContent).toMatchObject({ id: messageId, state: 'acknowledged' });
  });

  test('an agent that the call names is not replaced', async () => {
    const { call } = await connect(a.token, { agentId: a.id });
    expect((await call('status', { agent_id: b.id })).structuredContent).toMatchObject({ error: 'not_found' });
    expect((await call('status')).structuredContent).toMatchObject({ agent_id: a.id });
  });

  test('refusals of the server and of the arguments are results', async () => {
    const { call, client } = await connect(a.token);
    expect(await call('receive_messages')).toMatchObject({
      isError: true,
      structuredContent: { error: 'agent_required' },
    });
    expect(await call('status', { agent_id: 7, x: 1 })).toMatchObject({
      isError: true,
      structuredContent: { error: 'invalid_request', fields: ['agent_id', 'x'] },
    });
    expect(await call('message_status', { agent_id: a.id })).toMatchObject({
      isError: true,
      structuredContent: { error: 'invalid_request', fields: ['message_id', 'post_id'] },
    });
    await expect(client.callTool({ name: 'no_such_tool' })).rejects.toMatchObject({ code: -32_602 });
  });

  test('without the scope there is guidance', async () => {
    const { call } = await connect((await owner.token({ scopes: ['functions'] })).token);
    const answer = await call('receive_messages', { agent_id: a.id });
    expect(answer.isError ?? false).toBe(false);
    expect(answer.structuredContent).toEqual({ granted: false, how_to_enable: 'reconnect', connectors_url: null });
  });

  test('an unknown token is a result too', async () => {
    const { call } = await connect('phs_unknown');
    expect(await call('status')).toMatchObject({ isError: true, structuredContent: { error: 'unauthorized' } });
  });

  test('a client of the 2026-07-28 revision falls back', async () => {
    const client = new V2Client({ name: 'test', version: '1' }, { versionNegotiation: { mode: 'auto' } });
    await client.connect(new V2Stdio({ command: process.execPath, args: [program, url, a.token, a.id] }));
    open.push(client);
    expect(client.getProtocolEra()).toBe('legacy');
    const { structuredContent } = await client.callTool({ name: 'status', arguments: {} });
    expect(structuredContent).toMatchObject({ agent_id: a.id });
  });

  test('calls made before stdin ended are answered, then the program ends', async () => {
    const child = spawn(process.execPath, [program, url, a.token, a.id], { stdio: ['pipe', 'pipe', 'inherit'] });
    const clientInfo = { name: 'test', version: '1' };
    const messages = [
      { id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo } },
      { method: 'notifications/initialized' },
      { id: 2, method: 'tools/call', params: { name: 'status', arguments: {} } },
    ];
    child.stdin.end(messages.map((message) => `${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`).join(''));
    const [output, [code]] = await Promise.all([text(child.stdout), once(child, 'exit')]);
    const answers = output
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(answers.map((answer) => answer.id)).toEqual([1, 2]);
    expect(answers[1].result.structuredContent).toMatchObject({ agent_id: a.id });
    expect(code).toBe(0);
  });
});

describe('a server that does not answer is unavailable', () => {
  test('nobody listens', async () => {
    const server = http.createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    server.close();
    const { call } = await connect('phs_x', { url: `http://127.0.0.1:${port}` });
    expect(await call('status')).toMatchObject({
      isError: true,
      structuredContent: { error: 'unavailable', retryable: true },
    });
  });

  test('a proxy answers for it', async () => {
    const server = http.createServer((_, response) => response.writeHead(502).end('<h1>Bad gateway</h1>'));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const { call } = await connect('phs_x', { url: `http://127.0.0.1:${port}` });
    expect(await call('status')).toMatchObject({ isError: true, structuredContent: { error: 'unavailable' } });
    server.close();
    server.closeAllConnections();
  });
});
