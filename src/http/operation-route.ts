import type { Context, Middleware } from 'koa';
import { z } from 'zod';
import { authenticate } from '../db/functions.ts';
import { invalidRequest, PosthornError } from '../errors.ts';
import type { OwnerOperation, Services } from '../operations/operation.ts';
import { parseInput } from '../operations/parse-input.ts';
import { namedForDevice, readBearer } from '../request/bearer.ts';
import { callerGone } from '../request/caller-gone.ts';
import { readJsonObject } from '../request/json-body.ts';
import { inSpan } from '../tracing.ts';

/** What a request presents, hashed, and how a refusal reads to whoever presented it. @throws PosthornError */
export type Presented = (ctx: Context) => { credential: Buffer; explain: (thrown: unknown) => unknown };

/** Programs present a bearer token. */
export const presentedBearer: Presented = (ctx) => {
  const bearer = readBearer(ctx.req);
  if (!bearer) throw new PosthornError('unauthorized');
  return { credential: bearer.credential, explain: (thrown) => namedForDevice(thrown, bearer) };
};

/** The endpoint of an operation. */
export function operationRoute(
  operation: OwnerOperation,
  services: Services,
  draining: AbortSignal,
  presented: Presented,
): Middleware {
  const numbers = integerFields(operation);

  /** Who is unknown is told so, whatever they asked. */
  async function readInput(ctx: Context, credential: Buffer): Promise<Record<string, unknown>> {
    try {
      return parseInput(operation, await collectArguments(ctx, numbers));
    } catch (error) {
      await authenticate(services.pool, { credential });
      throw error;
    }
  }

  return async function runOperation(ctx) {
    const { credential, explain } = presented(ctx);
    let signal: AbortSignal | undefined;
    const caller = {
      credential,
      // made for the few that wait: its two controllers cost as much as reading the body
      get signal() {
        signal ??= AbortSignal.any([draining, callerGone(ctx.res)]);
        return signal;
      },
    };
    try {
      const input = await readInput(ctx, credential);
      const output = await inSpan(operation.name, {}, () => operation.run(services, caller, input));
      services.credentialUse.note(credential);
      ctx.status = operation.status?.(output) ?? 200;
      ctx.body = output;
    } catch (error) {
      throw explain(error);
    }
  };
}

/**
 * The path, and the query of GET and DELETE or the body of the others, in one object. A query beside a body is refused:
 * it would put what belongs into the body into the logs of proxies.
 */
async function collectArguments(ctx: Context, numbers: Set<string>): Promise<Record<string, unknown>> {
  const hasBody = ctx.method !== 'GET' && ctx.method !== 'DELETE';
  const query = [...new URLSearchParams(ctx.querystring)];
  if (hasBody && query.length > 0)
    throw invalidRequest(
      query.map(([name]) => name),
      'Pass arguments in the body.',
    );
  const body = hasBody ? await readJsonObject(ctx.req) : {};
  const given = [...Object.entries(ctx.params ?? {}), ...query, ...Object.entries(body)];
  const repeated = given.map(([name]) => name).filter((name, index, all) => all.indexOf(name) !== index);
  if (repeated.length > 0) throw invalidRequest(repeated, 'A field was passed twice.');
  return Object.fromEntries(
    given.map(([name, value]) => [name, numbers.has(name) && !(name in body) ? toNumber(value) : value]),
  );
}

/** A path or query holds only text; what is no whole number stays text, for the schema to refuse. */
function toNumber(value: unknown): unknown {
  return typeof value === 'string' && /^-?\d{1,15}$/.test(value) ? Number(value) : value;
}

function integerFields(operation: OwnerOperation): Set<string> {
  const { properties = {} } = z.toJSONSchema(operation.input, { io: 'input' });
  return new Set(Object.keys(properties).filter((name) => (properties[name] as { type?: string }).type === 'integer'));
}
