import { invalidRequest } from '../errors.ts';
import type { Operation } from './operation.ts';

/** Where the operations' routes hang. */
export const BASE_PATH = '/messaging/v1';

/** One HTTP request, without the server's address and the credential. */
export interface OperationRequest {
  method: Operation['routes'][number]['method'];
  path: string;
  query: URLSearchParams;
  /** To send as JSON; undefined where the method has no body. */
  body: Record<string, unknown> | undefined;
}

/**
 * The HTTP request that carries out an operation: the first route whose path parameters the input has. What is not in
 * the path goes into the query of GET and DELETE, and into the body of every other method.
 *
 * @param input the arguments as the caller gave them; the server judges all but those that must stand in the path
 * @throws PosthornError invalid_request naming the parameters that no route can do without
 */
export function requestFor(operation: Operation, input: Record<string, unknown>): OperationRequest {
  const routes = operation.routes.map((route) => ({ ...route, parameters: parametersOf(route.path) }));
  const route = routes.find(({ parameters }) => parameters.every((name) => isSegment(input[name])));
  if (!route) {
    const names = [...new Set(routes.flatMap(({ parameters }) => parameters))];
    throw invalidRequest(names, `Pass ${names.join(' or ')}.`);
  }
  const { method, parameters } = route;
  const path = BASE_PATH + route.path.replace(PARAMETER, (_, name) => encodeURIComponent(input[name] as string));
  const rest = Object.entries(input).filter(([name, value]) => !parameters.includes(name) && value !== undefined);
  if (method !== 'GET' && method !== 'DELETE') {
    return { method, path, query: new URLSearchParams(), body: Object.fromEntries(rest) };
  }
  const query = new URLSearchParams(Object.fromEntries(rest.map(([name, value]) => [name, queryValue(value)])));
  return { method, path, query, body: undefined };
}

const PARAMETER = /:(\w+)/g;

function parametersOf(path: string): string[] {
  return [...path.matchAll(PARAMETER)].map(([, name]) => name as string);
}

/** What would change the path's shape, such as `..`, is no segment, however it is encoded. */
function isSegment(value: unknown): boolean {
  return typeof value === 'string' && value.isWellFormed() && !/^\.{0,2}$/.test(value);
}

/** A query has text only; the server refuses by name what is not the text of the right type. */
function queryValue(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}
