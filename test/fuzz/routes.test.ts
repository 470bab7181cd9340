import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { ERRORS } from '../../src/errors.ts';
import { OPERATIONS } from '../../src/operations/index.ts';
import type { OwnerOperation } from '../../src/operations/operation.ts';
import { OWNER_OPERATIONS } from '../../src/operations/owner.ts';
import { startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';
import { argumentsOf } from './arguments.ts';
import type { Schema } from './from-schema.ts';
import { type Arguments, MARK } from './hostile.ts';
import { type PopulatedOwner, populateOwner } from './populated-owner.ts';
import { endCalls, type RawCall, rawCall } from './raw-call.ts';
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

/**
 * What generated arguments hardly bring about: the owner's label typed, one of two ids in the right path, a passkey for a
 * server that has no name, what a provider or a push service would have given.
 */
const HARDLY_DONE = [
  'delete_account',
  'message_status',
  'begin_passkey',
  'add_passkey',
  'remove_passkey',
  'remove_openid_account',
  'add_push_subscription',
];

const doors = [
  { door: '/messaging/v1', operations: OPERATIONS as OwnerOperation[], caller: bearer },
  { door: '/owner/v1', operations: OWNER_OPERATIONS, caller: session },
];

function bearer({ caller }: PopulatedOwner): Record<string, string> {
  return { authorization: `Bearer ${caller.token}` };
}

function session({ browser }: PopulatedOwner): Record<string, string> {
  const cookie = [...browser.cookies].map(([name, { value }]) => `${name}=${value}`).join('; ');
  return { cookie, origin: url, 'sec-fetch-site': 'same-origin' };
}

describe.each(doors)('$door', ({ door, operations, caller }) => {
  test.each(operations)(
    '$name',
    async (operation) => {
      const owner = await populateOwner(posthorn);
      const schema = z.toJSONSchema(operation.input, { io: 'input' }) as Schema;
      let done = 0;
      let stored = await digestStored(posthorn.database);
      await fc.assert(
        fc.asyncProperty(
          argumentsOf(operation.name, schema, owner),
          fc.constantFrom(...operation.routes),
          async (given, route) => {
            const logged = posthorn.log().length;
            const answer = await rawCall(url, requestOf(door + route.path, route.method, given, caller(owner)));
            const body = JSON.parse(answer.text);
            expect(answer.headers['x-request-id']).toBeTypeOf('string');
            const before = stored;
            stored = await digestStored(posthorn.database);
            if (answer.status < 300) {
              done++;
              expect(operation.output.strip().parse(body), 'what it says that it answers').toEqual(body);
            } else {
              expect(answer.status).toBe(ERRORS[expectRefusal(body)].status);
              expect(body.request_id).toBe(answer.headers['x-request-id']);
              expect(changedTables(before, stored), 'where a refused act stored something').toEqual([]);
            }
            expect(posthorn.log().slice(logged)).not.toContain(MARK);
          },
        ),
        runs(16),
      );
      if (!HARDLY_DONE.includes(operation.name)) expect(done, 'calls that were carried out').toBeGreaterThan(0);
    },
    patience(30_000),
  );
});

/** Arguments where the contract wants them: in the path, and in the query of GET and DELETE or the body of the others. */
function requestOf(pattern: string, method: string, given: Arguments, headers: Record<string, string>): RawCall {
  const parameters = [...pattern.matchAll(/:(\w+)/g)].map(([, name]) => name!);
  const path = pattern.replace(/:(\w+)/g, (_, name) => encodeURIComponent(asText(given[name])) || MARK);
  const rest = Object.entries(given).filter(([name]) => !parameters.includes(name));
  if (method === 'GET' || method === 'DELETE') {
    const query = new URLSearchParams(rest.map(([name, value]): [string, string] => [name, asText(value)])).toString();
    return { method, path: query === '' ? path : `${path}?${query.slice(0, MAX_QUERY)}`, headers };
  }
  const body = JSON.stringify(Object.fromEntries(rest));
  return { method, path, headers: { ...headers, 'content-type': 'application/json' }, body };
}

/** Node answers longer heads by itself, before anything of ours is asked. */
const MAX_QUERY = 8_000;

function asText(value: unknown): string {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? '');
  return text.toWellFormed().slice(0, MAX_QUERY / 4);
}
