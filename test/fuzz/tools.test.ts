import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { operationOf, TOOLS } from '../../src/mcp/tools.ts';
import { startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';
import { argumentsOf } from './arguments.ts';
import type { Schema } from './from-schema.ts';
import { hostileText, hostileValue, MARK } from './hostile.ts';
import { askMcp, expectJsonRpc } from './json-rpc.ts';
import { type PopulatedOwner, populateOwner } from './populated-owner.ts';
import { endCalls } from './raw-call.ts';
import { expectRefusal } from './refusal.ts';
import { patience, runs } from './runs.ts';
import { changedTables, digestStored } from './stored.ts';

let posthorn: TestPosthorn;
let url: string;

beforeAll(async () => {
  posthorn = await startPosthorn();
  url = posthorn.pods[0]!.url;
});
afterAll(async () => {
  endCalls();
  await posthorn.close();
});

const era = fc.constantFrom('2026-07-28', '2025-11-25');

describe('tools', () => {
  test.each(TOOLS)(
    '$name',
    async (tool) => {
      const owner = await populateOwner(posthorn);
      const { output } = operationOf(tool.name)!;
      const declared = z.fromJSONSchema(tool.outputSchema as never);
      let done = 0;
      let stored = await digestStored(posthorn.database);
      await fc.assert(
        fc.asyncProperty(argumentsOf(tool.name, tool.inputSchema as Schema, owner), era, async (given, revision) => {
          const logged = posthorn.log().length;
          const params = { name: tool.name, arguments: given };
          const answer = await askMcp(url, owner.caller.token, revision, { id: 1, method: 'tools/call', params });
          const before = stored;
          stored = await digestStored(posthorn.database);
          const { result } = expectJsonRpc(answer, 1);
          expect(result).toBeTypeOf('object');
          declared.parse(result.structuredContent);
          const twin = JSON.parse(result.content[0].text);
          expect(twin, 'its text twin').toEqual(result.structuredContent);
          if (result.isError) {
            expectRefusal(result.structuredContent);
            expect(JSON.stringify(result)).not.toContain(MARK);
            expect(changedTables(before, stored), 'where a refused act stored something').toEqual([]);
          } else {
            done++;
            expect(output.strip().parse(result.structuredContent)).toEqual(result.structuredContent);
          }
          expect(posthorn.log().slice(logged)).not.toContain(MARK);
        }),
        runs(16),
      );
      expect(done, 'calls that were carried out').toBeGreaterThan(0);
    },
    patience(30_000),
  );
});

describe('what is no call of a tool', () => {
  let owner: PopulatedOwner;
  beforeAll(async () => {
    owner = await populateOwner(posthorn);
  });

  const methods = fc.oneof(
    fc.constantFrom(
      'tools/call',
      'tools/list',
      'initialize',
      'ping',
      'server/discover',
      'resources/read',
      'resources/list',
      'resources/templates/list',
      'resources/subscribe',
      'prompts/get',
      'completion/complete',
      'logging/setLevel',
      'notifications/initialized',
      'notifications/cancelled',
      'sampling/createMessage',
      'rpc.discover',
      '__proto__',
      'constructor',
    ),
    hostileText,
  );
  const params = fc.oneof(
    hostileValue,
    fc.record(
      {
        name: fc.oneof(fc.constantFrom('status', 'send_message', 'toString', '__proto__'), hostileText),
        arguments: hostileValue,
        uri: fc.oneof(fc.constantFrom('posthorn://inbox', 'posthorn://inbox/', 'file:///etc/passwd'), hostileText),
        protocolVersion: fc.oneof(fc.constantFrom('2025-11-25', '2024-11-05', '1999-01-01'), hostileValue),
        capabilities: fc.oneof(fc.constant({}), hostileValue),
        clientInfo: fc.oneof(fc.constant({ name: 'x', version: '1' }), hostileValue),
        cursor: hostileValue,
        _meta: hostileValue,
      },
      { requiredKeys: [], noNullPrototype: true },
    ),
  );
  const id = fc.oneof({ weight: 4, arbitrary: fc.constantFrom<unknown>(0, 7, 'seven') }, hostileValue);
  const frame = fc.record(
    {
      jsonrpc: fc.oneof({ weight: 6, arbitrary: fc.constant('2.0') }, hostileValue),
      id,
      method: fc.oneof({ weight: 8, arbitrary: methods }, hostileValue),
      params,
      result: hostileValue,
      error: hostileValue,
    },
    { requiredKeys: ['jsonrpc', 'method'], noNullPrototype: true },
  );

  test(
    'is answered in the protocol, and stores nothing',
    async () => {
      const before = await digestStored(posthorn.database);
      await fc.assert(
        fc.asyncProperty(fc.oneof({ weight: 9, arbitrary: frame }, hostileValue), era, async (given, revision) => {
          const logged = posthorn.log().length;
          const answer = await askMcp(url, owner.caller.token, revision, given);
          expectJsonRpc(answer, (given as { id?: unknown } | null)?.id);
          expect(posthorn.log().slice(logged)).not.toContain(MARK);
        }),
        runs(150),
      );
      expect(changedTables(before, await digestStored(posthorn.database))).toEqual([]);
    },
    patience(30_000),
  );
});
