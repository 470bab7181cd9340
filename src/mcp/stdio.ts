import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { CallToolRequestSchema, ErrorCode, ListToolsRequestSchema, McpError } from '@modelcontextprotocol/sdk/types.js';
import { PosthornError } from '../errors.ts';
import { type OperationRequest, requestFor } from '../operations/http-request.ts';
import type { Operation } from '../operations/operation.ts';
import { callTool, type ErrorBody, type ToolHost } from './tool-call.ts';
import { INSTRUCTIONS, operationOf, SERVER_INFO, TOOLS } from './tools.ts';

/** How long one call may take, in milliseconds: more than the longest wait for mail, less than clients wait for us. */
const CALL_TIMEOUT_MS = 45_000;

export interface StdioOptions {
  /** Where the Posthorn is that the calls go to. */
  url: string;
  /** Asked for each call: a paired machine's token is a new one each hour. */
  token: () => Promise<string>;
  /** The agent to act as when a call names none. */
  agentId?: string;
}

/**
 * MCP over this process's stdin and stdout, for clients that start a program instead of opening a URL. Every call goes
 * to a running Posthorn over HTTP, so that the program holds no rule and no state.
 *
 * @returns when stdin has ended and every call that came before is answered
 */
export async function serveStdio(options: StdioOptions): Promise<void> {
  const running = new Set<Promise<unknown>>();
  const server = new Server(SERVER_INFO, { capabilities: { tools: {} }, instructions: INSTRUCTIONS });
  server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: TOOLS }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, { signal }) => {
    const operation = operationOf(params.name);
    if (!operation) throw new McpError(ErrorCode.InvalidParams, 'There is no such tool.');
    const call = callTool(
      httpHost(options, signal),
      operation,
      withAgent(operation, params.arguments, options.agentId),
    );
    running.add(call);
    return await call.finally(() => running.delete(call));
  });
  const ended = Promise.race([once(process.stdin, 'end'), once(process.stdout, 'error')]);
  await server.connect(new StdioServerTransport());
  await ended;
  await Promise.allSettled(running);
  await nextTurn(); // the SDK writes an answer after its handler has returned
}

function withAgent(
  operation: Operation,
  input: Record<string, unknown> = {},
  agentId: string | undefined,
): Record<string, unknown> {
  const isMissing = agentId !== undefined && input.agent_id === undefined && 'agent_id' in operation.input.shape;
  return isMissing ? { ...input, agent_id: agentId } : input;
}

/** Another Posthorn, over HTTP. */
function httpHost({ url, token }: StdioOptions, gone: AbortSignal): ToolHost {
  async function run(operation: Operation, input: Record<string, unknown>): ReturnType<ToolHost['run']> {
    try {
      return await send(requestFor(operation, input));
    } catch (error) {
      const refusal =
        error instanceof PosthornError
          ? error
          : new PosthornError('unavailable', {}, 'The Posthorn server does not answer.');
      return { error: refusal.toBody(randomUUID()) as ErrorBody };
    }
  }

  async function send({ method, path, query, body }: OperationRequest): ReturnType<ToolHost['run']> {
    const target = Object.assign(new URL(path, url), { search: query.toString() });
    const response = await fetch(target, {
      method,
      headers: { authorization: `Bearer ${await token()}`, ...(body && { 'content-type': 'application/json' }) },
      body: body && JSON.stringify(body),
      redirect: 'manual', // a redirect would carry the body to another host
      signal: AbortSignal.any([gone, AbortSignal.timeout(CALL_TIMEOUT_MS)]),
    });
    const answer = (await response.json()) as Record<string, unknown>;
    if (response.ok) return { output: answer };
    // a proxy in between has errors of its own
    if (typeof answer.error !== 'string') throw new Error(`HTTP ${response.status} without an error object`);
    return { error: answer as ErrorBody };
  }

  return {
    run,
    async countPending(agentId) {
      const answer = await run(operationOf('status')!, { agent_id: agentId });
      if ('error' in answer || answer.output.agent_id === null) return null;
      return answer.output.pending_messages as number;
    },
  };
}
