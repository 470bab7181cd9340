/** One row per error code of the contract: HTTP status, whether the same request may succeed later, and what to tell a person. */
export const ERRORS = {
  invalid_request: { status: 400, retryable: false, message: 'The request is not valid.' },
  agent_required: {
    status: 400,
    retryable: false,
    message: 'This connection speaks for several agents: pass agent_id.',
  },
  invalid_cursor: { status: 400, retryable: false, message: 'The cursor was not made by this call.' },
  unauthorized: { status: 401, retryable: false, message: 'The credential is unknown, expired or revoked.' },
  device_unauthorized: {
    status: 401,
    retryable: false,
    message: 'This device is unknown, expired or revoked: pair it again.',
  },
  scope_required: { status: 403, retryable: false, message: 'This connection lacks the scope that the call needs.' },
  person_required: {
    status: 403,
    retryable: false,
    message: 'Only a person may do this, from a paired device or the web app.',
  },
  agent_revoked: { status: 403, retryable: false, message: 'The owner revoked this agent.' },
  owner_suspended: { status: 403, retryable: false, message: 'The owner of this connection is suspended.' },
  group_unauthorized: { status: 403, retryable: false, message: 'The collaboration has expired or was revoked.' },
  not_found: { status: 404, retryable: false, message: 'There is no such thing, or it is not yours to see.' },
  expired: { status: 410, retryable: false, message: 'The request has expired.' },
  idempotency_conflict: { status: 409, retryable: false, message: 'This idempotency key was used for other content.' },
  conversation_capped: {
    status: 409,
    retryable: false,
    message: 'The conversation has used its posts and waits for the owner.',
  },
  conversation_frozen: {
    status: 409,
    retryable: false,
    message: 'The collaboration was renewed: continue in its new conversation.',
  },
  proposal_limit: { status: 409, retryable: true, message: 'Too many requests wait for the owner.' },
  recently_denied: { status: 409, retryable: false, message: 'The owner denied this within the last 24 hours.' },
  not_capped: { status: 409, retryable: false, message: 'The conversation still has posts left.' },
  renewal_not_open: {
    status: 409,
    retryable: false,
    message: 'Renewal opens 48 hours before the end and closes 7 days after it.',
  },
  already_decided: { status: 409, retryable: false, message: 'The request was decided before.' },
  queue_full: { status: 409, retryable: true, message: 'An inbox is full until its agent acknowledges mail.' },
  group_required: {
    status: 409,
    retryable: false,
    message: 'You share several collaborations with this agent: name one.',
  },
  recipient_unavailable: {
    status: 409,
    retryable: true,
    message: 'The recipient cannot be reached through a collaboration.',
  },
  payload_too_large: { status: 413, retryable: false, message: 'The request body is larger than 1 MiB.' },
  purpose_required: {
    status: 422,
    retryable: false,
    message: 'No collaboration carries this: say what it is for in purpose, and the owner is asked.',
  },
  sensitive_content: {
    status: 422,
    retryable: false,
    message: 'The body looks like it holds a secret; nothing was stored.',
  },
  rate_limited: { status: 429, retryable: true, message: 'The collaboration has used its posts of this minute.' },
  stream_limit: { status: 429, retryable: true, message: 'This connection holds as many event streams as it may.' },
  unavailable: { status: 503, retryable: true, message: 'The service cannot answer now; nothing is lost.' },
} as const satisfies Record<string, { status: number; retryable: boolean; message: string }>;

export type ErrorCode = keyof typeof ERRORS;

/** SQLSTATEs of class MH, as sql/errors.md lists them. */
export const SQLSTATES: Record<string, ErrorCode> = {
  MHINV: 'invalid_request',
  MHAGR: 'agent_required',
  MHCUR: 'invalid_cursor',
  MHUNA: 'unauthorized',
  MHSCO: 'scope_required',
  MHPER: 'person_required',
  MHARV: 'agent_revoked',
  MHSUS: 'owner_suspended',
  MHNFD: 'not_found',
  MHLIM: 'invalid_request',
  MHGUN: 'group_unauthorized',
  MHFRZ: 'conversation_frozen',
  MHCAP: 'conversation_capped',
  MHPUR: 'purpose_required',
  MHPLM: 'proposal_limit',
  MHDEN: 'recently_denied',
  MHNCP: 'not_capped',
  MHRNO: 'renewal_not_open',
  MHADC: 'already_decided',
  MHEXP: 'expired',
  MHUNV: 'unavailable',
  MHSTL: 'stream_limit',
};

/** Facts for the caller beside the code, such as `fields` or `retry_after`; never content. */
export type ErrorDetail = Record<string, unknown>;

/** A refusal that every door renders the same way. */
export class PosthornError extends Error {
  override name = 'PosthornError';
  readonly code: ErrorCode;
  readonly detail: ErrorDetail;

  constructor(code: ErrorCode, detail: ErrorDetail = {}, message: string = ERRORS[code].message) {
    super(message);
    this.code = code;
    this.detail = detail;
  }

  get status(): number {
    return ERRORS[this.code].status;
  }

  /** The error object of the contract. */
  toBody(requestId: string): Record<string, unknown> {
    return {
      error: this.code,
      retryable: ERRORS[this.code].retryable,
      message: this.message,
      request_id: requestId,
      ...this.detail,
    };
  }
}

/**
 * Whether a field's name may be said back: `body`, `message_ids.3` and the like. A name of any other shape is text that a
 * caller made up, which no refusal repeats.
 */
export function isFieldName(name: string): boolean {
  return /^\w{1,64}(\.\w{1,64}){0,8}$/.test(name);
}

/** Invalid arguments, named where that can be, with what is wrong with each. */
export function invalidRequest(fields: string[], message?: string): PosthornError {
  return new PosthornError('invalid_request', { fields: fields.filter(isFieldName) }, message);
}

/**
 * Whatever was thrown, as a refusal. A refusal of the database keeps its code and facts. Anything that we did
 * not foresee is `unavailable`: the caller learns nothing of it, and its log line goes with the request id.
 */
export function toPosthornError(error: unknown): PosthornError {
  if (error instanceof PosthornError) return error;
  const { code, detail } = (error ?? {}) as { code?: string; detail?: string };
  const known = code === undefined ? undefined : SQLSTATES[code];
  if (known) return new PosthornError(known, parseDetail(detail));
  // check_violation, string_data_right_truncation, character_not_in_repertoire: the database holds a bound that the schema of the call should have
  if (code === '23514' || code === '23502' || code === '22001' || code === '22021')
    return new PosthornError('invalid_request');
  return new PosthornError('unavailable', { retry_after: 1 });
}

function parseDetail(detail: string | undefined): ErrorDetail {
  try {
    return JSON.parse(detail ?? '{}');
  } catch {
    return {};
  }
}
