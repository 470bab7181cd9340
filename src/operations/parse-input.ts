import type { z } from 'zod';
import { invalidRequest, isFieldName } from '../errors.ts';
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
      ? issue.keys.map(sayUnknown)
      : [{ field: issue.path.join('.'), message: sayProblem(issue) }],
  );
  const fields = [...new Set(problems.map(({ field }) => field))];
  const lines = new Set(problems.map(({ field, message }) => `${field || 'The request'}: ${message}`));
  throw invalidRequest(fields, [...lines].join('; '));
}

function sayUnknown(key: string): { field: string; message: string } {
  return isFieldName(key)
    ? { field: key, message: 'is not known here' }
    : { field: '', message: 'has a field whose name is no name of a field' };
}

/** zod writes what is allowed as one long word, which no terminal can break. */
function sayProblem(issue: z.core.$ZodIssue): string {
  return issue.code === 'invalid_value' ? `must be one of ${issue.values.join(', ')}` : issue.message;
}
