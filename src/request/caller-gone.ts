import type { ServerResponse } from 'node:http';

/** Aborts when the connection ends before the answer did; not after it, since making that error would cost every call. */
export function callerGone(response: ServerResponse): AbortSignal {
  const gone = new AbortController();
  const look = () => response.writableFinished || gone.abort();
  if (response.closed) look();
  else response.once('close', look);
  return gone.signal;
}
