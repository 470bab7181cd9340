import { InvalidArgumentError } from 'commander';
import { z } from 'zod';
import { parseInput } from '../operations/parse-input.ts';

// Parsers of option values: what is no number is a mistake in typing, what is a wrong number is for the rules to refuse.

/** Collects an option that may come several times. */
export function repeat(value: string, before: string[] = []): string[] {
  return [...before, value];
}

export function wholeNumber(value: string): number {
  if (!/^-?\d{1,15}$/.test(value)) throw new InvalidArgumentError('It is not a whole number.');
  return Number(value);
}

export function onOrOff(value: string): boolean {
  if (value !== 'on' && value !== 'off') throw new InvalidArgumentError('It is on or off.');
  return value === 'on';
}

const UNIT_MS = { m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A time from now, such as 90m, 12h or 30d. */
export function timeFromNow(value: string): Date {
  const [, count, unit] = /^([1-9]\d{0,4})([mhd])$/.exec(value) ?? [];
  if (!count) throw new InvalidArgumentError('It is a number of minutes, hours or days, such as 90m, 12h or 30d.');
  return new Date(Date.now() + Number(count) * UNIT_MS[unit as keyof typeof UNIT_MS]);
}

/** Holds what a person typed against the bounds that the database has too. @throws PosthornError invalid_request */
export function checked<Schema extends z.ZodObject>(schema: Schema, value: unknown): z.output<Schema> {
  return parseInput({ input: schema }, value) as z.output<Schema>;
}

/** An id from the command line; what is none is named before the database sees it. */
export function checkedId(id: string): string {
  return checked(z.strictObject({ id: z.uuid() }), { id }).id;
}
