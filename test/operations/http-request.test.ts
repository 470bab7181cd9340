import { expect, test } from 'vitest';
import { requestFor } from '../../src/operations/http-request.ts';
import { OPERATIONS } from '../../src/operations/index.ts';

function request(name: string, input: Record<string, unknown>) {
  const operation = OPERATIONS.find((each) => each.name === name)!;
  const { method, path, query, body } = requestFor(operation, input);
  return [`${method} ${path}${query.size > 0 ? `?${query}` : ''}`, body];
}

const id = '018f0000-0000-7000-8000-000000000000';

test.each([
  ['status', {}, 'GET /messaging/v1/status', undefined],
  ['status', { agent_id: id }, `GET /messaging/v1/status?agent_id=${id}`, undefined],
  ['list_agents', { limit: 5, after: 'a&b=c' }, 'GET /messaging/v1/agents?limit=5&after=a%26b%3Dc', undefined],
  ['send_message', { body: 'hi', group_id: undefined }, 'POST /messaging/v1/send', { body: 'hi' }],
  ['revoke_agent', { id }, `DELETE /messaging/v1/agents/${id}`, undefined],
  ['message_status', { message_id: id, agent_id: id }, `GET /messaging/v1/messages/${id}?agent_id=${id}`, undefined],
  ['message_status', { post_id: id }, `GET /messaging/v1/posts/${id}`, undefined],
  ['message_status', { post_id: id, message_id: id }, `GET /messaging/v1/messages/${id}?post_id=${id}`, undefined],
  ['message_status', { message_id: 'a/b?c ü' }, 'GET /messaging/v1/messages/a%2Fb%3Fc%20%C3%BC', undefined],
])('%s of %j', (name, input, line, body) => {
  expect(request(name, input)).toEqual([line, body]);
});

test.each([
  {},
  { message_id: '' },
  { message_id: '..' },
  { message_id: '.' },
  { message_id: 7 },
  { message_id: '\ud800' },
])('what cannot stand in a path is refused by name: %j', (input) => {
  expect(() => request('message_status', input)).toThrow(
    expect.objectContaining({ code: 'invalid_request', detail: { fields: ['message_id', 'post_id'] } }),
  );
});
