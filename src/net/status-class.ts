/** What an HTTP status is counted as: succeeded, or its class, such as 4xx. */
export function statusClass(status: number): string {
  return status >= 200 && status < 300 ? 'succeeded' : `${Math.floor(status / 100)}xx`;
}
