import { once } from 'node:events';
import http from 'node:http';
import { text } from 'node:stream/consumers';

export interface RawCall {
  method: string;
  /** As it goes out: fetch would tidy it up. */
  path: string;
  headers?: Record<string, string | string[]>;
  body?: string | Uint8Array;
}

export interface RawAnswer {
  status: number;
  headers: http.IncomingHttpHeaders;
  text: string;
}

const agent = new http.Agent({ keepAlive: true });

/** One HTTP request as it is given. */
export async function rawCall(url: string, { body, ...call }: RawCall): Promise<RawAnswer> {
  const { hostname, port } = new URL(url);
  const request = http.request({ agent, hostname, port, ...call });
  request.end(body);
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  return { status: response.statusCode!, headers: response.headers, text: await text(response) };
}

/** Closes what is kept open. */
export function endCalls(): void {
  agent.destroy();
}
