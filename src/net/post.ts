import { type Egress, EgressError, type EgressFailure } from './egress.ts';
import { readRetryAfter } from './retry-after.ts';

/** For the whole attempt, in milliseconds: name, connection, TLS, request and the head of the answer. */
const ATTEMPT_MS = 10_000;

/** How an attempt went: what the receiver answered, or why there was no answer. */
export interface PostOutcome {
  httpStatus: number | null;
  problem: EgressFailure | null;
  retryAfterSeconds: number | null;
}

/** Posts once to whom nobody vouches for; what comes back beside status and `Retry-After` is discarded. */
export async function post(
  egress: Egress,
  url: string,
  headers: Record<string, string>,
  body: Buffer | string,
): Promise<PostOutcome> {
  try {
    const answer = await egress.request(url, { method: 'POST', headers, body, deadlineMs: ATTEMPT_MS });
    const retryAfterSeconds = readRetryAfter(answer.headers['retry-after'], Date.now());
    return { httpStatus: answer.status, problem: null, retryAfterSeconds };
  } catch (error) {
    if (!(error instanceof EgressError)) throw error;
    return { httpStatus: null, problem: error.kind, retryAfterSeconds: null };
  }
}

/** What an attempt is counted as: succeeded, the class of its status, such as 4xx, or why there was no answer. */
export function classOf({ httpStatus, problem }: PostOutcome): string {
  if (problem !== null) return problem;
  return httpStatus! >= 200 && httpStatus! < 300 ? 'succeeded' : `${Math.floor(httpStatus! / 100)}xx`;
}
