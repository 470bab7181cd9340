import { expect } from 'vitest';
import { ERRORS, type ErrorCode } from '../../src/errors.ts';
import { MARK } from './hostile.ts';

/** What may stand beside a code, as sql/errors.md lists it. */
const FACTS: Partial<Record<ErrorCode, string[]>> = {
  invalid_request: ['fields', 'limit'],
  not_found: ['fields'],
  already_decided: ['state'],
  conversation_capped: ['conversation_id', 'proposal_id'],
  group_required: ['shared_group_ids'],
  proposal_limit: ['limit'],
  queue_full: ['recipient_agent_ids'],
  rate_limited: ['retry_after'],
  sensitive_content: ['rule', 'line', 'column'],
  unavailable: ['retry_after'],
};

const SHAPE = ['error', 'retryable', 'message', 'request_id'];

/** Fails unless this is the error object of the contract, with a code that there is and nothing that a caller wrote. */
export function expectRefusal(body: unknown): ErrorCode {
  expect(body).toBeTypeOf('object');
  const refusal = body as Record<string, unknown>;
  const code = refusal.error as ErrorCode;
  expect(Object.keys(ERRORS)).toContain(code);
  expect(code, JSON.stringify(refusal)).not.toBe('unavailable');
  expect(refusal.retryable).toBe(ERRORS[code].retryable);
  expect(refusal.message).toBeTypeOf('string');
  expect(refusal.request_id).toMatch(/^[0-9a-f-]{36}$/);
  expect([...SHAPE, ...(FACTS[code] ?? [])]).toEqual(expect.arrayContaining(Object.keys(refusal)));
  expect(JSON.stringify(refusal)).not.toContain(MARK);
  return code;
}
