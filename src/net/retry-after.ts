/**
 * How long a receiver asks to be left alone, in whole seconds; null if it does not say so or says something else. In
 * both forms of RFC 9110: seconds, or a date.
 */
export function readRetryAfter(header: string | undefined, nowMs: number): number | null {
  if (header === undefined) return null;
  if (/^\d{1,9}$/.test(header)) return Number(header);
  // the one form of date that HTTP allows today; Date.parse alone takes nearly anything
  const date = /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/.test(header)
    ? Date.parse(header)
    : NaN;
  return Number.isNaN(date) ? null : Math.min(999_999_999, Math.max(0, Math.ceil((date - nowMs) / 1_000)));
}
