import type { z } from 'zod';
import { invalidRequest } from '../errors.ts';
import type { Operation } from './operation.ts';

/**
 * Holds what a caller passed against the operation's schema; the same at every door.
 *
 * @throws PosthornError invalid_request naming the fields, unknown ones too, and what is wrong with each
 */
export function parseInput(operation: Pick<Operation, 'input'>, value: unknown): Record<string, unknown> {
  const parsed = operation.input.safeParse(value);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.flatMap((issue) =>
    issue.code === 'unrecognized_keys'
      ? issue.keys.map((key) => ({ field: key, message: 'is not known here' }))
      : [{ field: issue.path.join('.'), message: sayProblem(issue) }],
  );
  const fields = [...new Set(problems.map(({ field }) => field))];
  throw invalidRequest(
    fields,
    problems.map(({ field, message }) => `${field || 'The request'}: ${message}`).join('; '),
  );
}

/** zod writes what is allowed as one long word, which no terminal can break. */
function sayProblem(issue: z.core.$ZodIssue): string {
  return issue.code === 'invalid_value' ? `must be one of ${issue.values.join(', ')}` : issue.message;
}
