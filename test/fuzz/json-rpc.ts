import { expect } from 'vitest';
import { MARK } from './hostile.ts';
import { type RawAnswer, rawCall } from './raw-call.ts';
import { expectRefusal } from './refusal.ts';

/** Posts to /mcp, as a client of a revision does; what is no object goes out as it is. */
export async function askMcp(url: string, token: string, revision: string, message: unknown): Promise<RawAnswer> {
  const isModern = revision === '2026-07-28';
  const isFrame = typeof message === 'object' && message !== null && !Array.isArray(message);
  const frame = isFrame ? (message as Record<string, unknown>) : {};
  const params = frame.params as Record<string, unknown> | undefined;
  const isPlain = typeof params === 'object' && params !== null && !Array.isArray(params) && !('_meta' in params);
  const body = isFrame
    ? { jsonrpc: '2.0', ...frame, ...(isModern && isPlain && { params: { ...params, _meta } }) }
    : message;
  const named = Object.entries({ 'mcp-method': frame.method, 'mcp-name': params?.name }).filter(
    ([, value]) => typeof value === 'string' && /^[\w/.]{1,100}$/.test(value),
  ) as [string, string][];
  return await rawCall(url, {
    method: 'POST',
    path: '/mcp',
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      authorization: `Bearer ${token}`,
      ...(isModern && { 'mcp-protocol-version': revision, ...Object.fromEntries(named) }),
    },
    body: JSON.stringify(body),
  });
}

const _meta = {
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientCapabilities': {},
  'io.modelcontextprotocol/clientInfo': { name: 'test', version: '1' },
};

const INTERNAL_ERROR = -32_603;

interface JsonRpcAnswer {
  // biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
  result?: any;
}

/** Fails unless this is nothing after a notification, a refusal of the door, or JSON-RPC that blames no error of ours. */
export function expectJsonRpc({ status, headers, text }: RawAnswer, id: unknown): JsonRpcAnswer {
  if (status === 202) {
    expect(text).toBe('');
    return {};
  }
  expect(text, `the answer with status ${status}`).not.toBe('');
  const isStream = headers['content-type']?.startsWith('text/event-stream');
  // not by a pattern: to those a line also ends at U+2028, which a body may hold
  const data = isStream
    ? text
        .split('\n')
        .find((line) => line.startsWith('data: '))!
        .slice(6)
    : text;
  const body = JSON.parse(data);
  expect(status, text).toBeLessThan(500);
  if (!('jsonrpc' in body)) {
    expectRefusal(body);
    return {};
  }
  expect(body.jsonrpc).toBe('2.0');
  expect('result' in body).not.toBe('error' in body);
  if (typeof id === 'string' || Number.isInteger(id)) expect([id, null]).toContainEqual(body.id);
  if ('error' in body) {
    expect(Number.isInteger(body.error.code)).toBe(true);
    expect(body.error.code, text).not.toBe(INTERNAL_ERROR);
    expect(body.error.message).toBeTypeOf('string');
    expect(JSON.stringify(body.error)).not.toContain(MARK);
  }
  return body;
}
