import { type Egress, EgressError } from '../net/egress.ts';
import { createRecentMap } from '../recent-map.ts';

/** For a whole document, in milliseconds: a person waits for the page. */
const DEADLINE_MS = 4_000;
const MAX_BYTES = 5 * 1_024;

/** Documents that were good, the one used longest ago going first. */
const KEPT_DOCUMENTS = 100;

/**
 * Fetches clients' own metadata documents, through the one place that opens outbound connections. Vendors have had
 * theirs answer 404 or a page for hours, so the last good one of each serves while its host has none.
 */
export function createDocumentFetch(egress: Egress): (url: string | URL) => Promise<Response> {
  const lastGood = createRecentMap<Buffer>(KEPT_DOCUMENTS);

  return async (url) => {
    const address = String(url);
    try {
      const answer = await egress.request(address, {
        method: 'GET',
        headers: { accept: 'application/json' },
        deadlineMs: DEADLINE_MS,
        maxBodyBytes: MAX_BYTES,
      });
      if (answer.status === 200 && isObject(answer.body!)) {
        lastGood.set(address, answer.body!);
        return new Response(new Uint8Array(answer.body!), { status: 200, headers: cacheHeaders(answer.headers) });
      }
      return respondWithLastGood(address) ?? new Response(null, { status: answer.status >= 200 ? answer.status : 502 });
    } catch (error) {
      const known = error instanceof EgressError ? respondWithLastGood(address) : undefined;
      if (!known) throw error;
      return known;
    }
  };

  function respondWithLastGood(address: string): Response | undefined {
    const document = lastGood.get(address);
    return document && new Response(new Uint8Array(document), { status: 200 });
  }
}

function isObject(body: Buffer): boolean {
  try {
    const value = JSON.parse(body.toString());
    return typeof value === 'object' && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

function cacheHeaders(headers: Record<string, string>): Record<string, string> {
  const cacheControl = headers['cache-control'];
  return cacheControl === undefined ? {} : { 'cache-control': cacheControl };
}
