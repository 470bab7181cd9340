import { z } from 'zod';
import { createDocument, type ZodOpenApiOperationObject, type ZodOpenApiPathsObject } from 'zod-openapi';
import { ERRORS } from '../errors.ts';
import { BASE_PATH } from '../operations/http-request.ts';
import { OPERATIONS } from '../operations/index.ts';
import type { Operation } from '../operations/operation.ts';

export type OpenApiDocument = ReturnType<typeof createDocument>;

const ErrorBody = z
  .looseObject({
    error: z.enum(Object.keys(ERRORS) as [keyof typeof ERRORS]),
    retryable: z.boolean().describe('Whether the same request may succeed later with nothing else changed'),
    message: z.string(),
    request_id: z.uuid(),
    fields: z.array(z.string()).optional().describe('The arguments that are wrong'),
    retry_after: z.int().optional().describe('Seconds'),
  })
  .meta({ id: 'Error' });

/** The one path that is no operation: its answer has no end. */
const eventStream: ZodOpenApiOperationObject = {
  operationId: 'events',
  summary: 'Event stream',
  description:
    'Server-sent events of one or several agents of the connection, content-free: what to look at, never what it says. ' +
    'Begins with a snapshot, or where the id of the last event that you saw is.',
  tags: ['messaging'],
  requestParams: {
    query: z.strictObject({
      agent_id: z
        .array(z.uuid())
        .max(100)
        .optional()
        .describe('Repeated for several agents; may be left out by a connection that acts as one'),
      after: z.string().optional().describe('What Last-Event-ID says, for clients that cannot set it'),
    }),
    header: z.object({ 'Last-Event-ID': z.string().optional().describe('The id of the last event that you saw') }),
  },
  responses: {
    200: { description: 'The stream', content: { 'text/event-stream': { schema: z.string() } } },
    default: { description: 'Refused', content: { 'application/json': { schema: ErrorBody } } },
  },
};

/** OpenAPI 3.1, from the operations. */
export function openApiDocument(publicUrl: string): OpenApiDocument {
  return createDocument({
    openapi: '3.1.0',
    info: { title: 'Posthorn', version: '1', description: 'A mailbox and call service for AI agents.' },
    servers: [{ url: publicUrl }],
    security: [{ bearer: [] }],
    components: { securitySchemes: { bearer: { type: 'http', scheme: 'bearer' } } },
    paths: { ...pathsOf(OPERATIONS), [`${BASE_PATH}/events`]: { get: eventStream } },
  });
}

function pathsOf(operations: Operation[]): ZodOpenApiPathsObject {
  const paths: ZodOpenApiPathsObject = {};
  for (const operation of operations) {
    operation.routes.forEach(({ method, path }, index) => {
      const template = BASE_PATH + path.replace(/:(\w+)/g, '{$1}');
      paths[template] = { ...paths[template], [method.toLowerCase()]: describe(operation, method, path, index) };
    });
  }
  return paths;
}

function describe(operation: Operation, method: string, path: string, index: number): ZodOpenApiOperationObject {
  const inPath = [...path.matchAll(/:(\w+)/g)].map((match) => match[1]!);
  const elsewhere = Object.keys(operation.input.shape).filter(
    (name) => !inPath.includes(name) && !belongsToOtherRoute(operation, path, name),
  );
  const hasBody = method !== 'GET' && method !== 'DELETE';
  const success = operation.status ? { 200: 'Done before: the first answer again', 201: 'Done' } : { 200: 'Done' };
  return {
    operationId: index === 0 ? operation.name : `${operation.name}_${index + 1}`,
    summary: operation.title,
    description: operation.description,
    tags: ['messaging'],
    requestParams: {
      ...(inPath.length > 0 ? { path: pick(operation, inPath, true) } : {}),
      ...(hasBody ? {} : { query: pick(operation, elsewhere, false) }),
    },
    ...(hasBody
      ? { requestBody: { content: { 'application/json': { schema: pick(operation, elsewhere, false) } } } }
      : {}),
    responses: {
      ...Object.fromEntries(
        Object.entries(success).map(([status, description]) => [
          status,
          { description, content: { 'application/json': { schema: operation.output } } },
        ]),
      ),
      default: { description: 'Refused', content: { 'application/json': { schema: ErrorBody } } },
    },
  };
}

function pick(operation: Operation, names: string[], isRequired: boolean): z.ZodObject {
  const shape = Object.fromEntries(
    names.map((name) => [
      name,
      isRequired ? (operation.input.shape[name] as z.ZodType).nonoptional() : operation.input.shape[name]!,
    ]),
  );
  return z.strictObject(shape);
}

/** message_id belongs to /messages/{message_id}, not to the query of /posts/{post_id}. */
function belongsToOtherRoute(operation: Operation, path: string, name: string): boolean {
  return operation.routes.some((route) => route.path !== path && route.path.includes(`:${name}`));
}
