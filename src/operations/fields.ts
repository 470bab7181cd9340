import { z } from 'zod';
import { PosthornError } from '../errors.ts';

// Lengths are counted in Unicode code points everywhere: here, in SQL (char_length), in JSON Schema (maxLength) and in
// the CLI. zod's own max() counts UTF-16 units, so that ten emoji would be twenty.

function codePoints(text: string): number {
  let count = 0;
  for (const _ of text) count++;
  return count;
}

/** Text that PostgreSQL and JSON can both hold: no NUL, no lone surrogate. */
function isStorable(text: string): boolean {
  return text.isWellFormed() && !text.includes('\0');
}

function text(max: number, isAllowed: (text: string) => boolean, rule: string) {
  return z
    .string()
    .superRefine((value, context) => {
      const length = value.length > max * 2 ? value.length : codePoints(value);
      if (length < 1 || length > max)
        context.addIssue({ code: 'custom', message: `must have 1 to ${max} Unicode code points` });
      else if (!isStorable(value))
        context.addIssue({ code: 'custom', message: 'must be well-formed Unicode without NUL' });
      else if (!isAllowed(value)) context.addIssue({ code: 'custom', message: rule });
    })
    .meta({ minLength: 1, maxLength: max });
}

// C0 and C1 controls and the line and paragraph separators; a body or purpose may hold them
const BREAKS_LINE = /[\p{Cc}\u2028\u2029]/u;

// What leaves a mark on paper; posthorn.shows_ink says the same. The blank of Braille and three marks of notes do not.
const INK = /[^\p{Cc}\p{White_Space}\p{Default_Ignorable_Code_Point}\u2800\ufff9-\ufffb]/u;

/** One line of 1 to `max` code points, of which one can be seen. */
export const line = (max: number) =>
  text(
    max,
    (value) => !BREAKS_LINE.test(value) && INK.test(value),
    'must be a single line with a visible character and no control characters',
  );

/** Text of 1 to `max` code points, of which one can be seen. */
export const paragraph = (max: number) => text(max, (value) => INK.test(value), 'must have a visible character');

/** Text of 1 to `max` code points, whatever it shows. */
export const anyText = (max: number) => text(max, () => true, '');

/** In small letters from here on, as the database writes it: a body is sealed for an agent by the text of its id. */
export const id = () => z.uuid().toLowerCase();
export const time = () => z.iso.datetime();

/** Whom the call speaks for. Needed by connections with several agents, left out by those that act as one. */
export const agentId = () => id().optional().describe('The agent that you act as, from register_agent');

export const idempotencyKey = () =>
  z
    .string()
    .regex(/^[ -~]{1,128}$/, 'must have 1 to 128 printable ASCII characters')
    .describe('Your name for this act: repeat it only to retry the same send');

export const pageLimit = (standard: number) => z.int().min(1).max(100).default(standard);
export const pageAfter = () => z.string().min(1).max(200).optional().describe('next_cursor of the page before');

/** An opaque place in a list. Each kind of list has its own, and one given for another is refused. */
export function encodeCursor(kind: string, place: string): string {
  return Buffer.from(`${kind}:${place}`).toString('base64url');
}

/** @throws PosthornError invalid_cursor */
export function decodeCursor(kind: string, cursor: string | undefined, isPlace: RegExp): string | undefined {
  if (cursor === undefined) return undefined;
  const decoded = Buffer.from(cursor, 'base64url').toString();
  const place = decoded.startsWith(`${kind}:`) ? decoded.slice(kind.length + 1) : '';
  if (!isPlace.test(place)) throw new PosthornError('invalid_cursor');
  return place;
}

export const UUID_PLACE = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
export const NUMBER_PLACE = /^\d{1,15}$/;
/** In a list of the owner, which begins with what is current and goes on with what is past. */
export const PART_AND_UUID_PLACE = /^(current|past) [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
