import { toPosthornError } from '../errors.ts';

export const EXIT = { done: 0, refused: 1, usage: 2, unreachable: 3, schemaTooNew: 57 } as const;

/** Something that the command line itself has to say no to; the contract's own refusals are PosthornErrors. */
export class CommandError extends Error {
  override name = 'CommandError';
  readonly code: string;
  readonly exitCode: number;
  /** Facts beside the message, such as the request id. */
  readonly facts: Record<string, unknown>;

  constructor(code: string, message: string, exitCode: number = EXIT.refused, facts: Record<string, unknown> = {}) {
    super(message);
    this.code = code;
    this.exitCode = exitCode;
    this.facts = facts;
  }
}

export const usage = (message: string) => new CommandError('usage', message, EXIT.usage);

export const unreachable = (message: string) => new CommandError('unreachable', message, EXIT.unreachable);

/** How errors of the program's parts are called on the command line, by their name. */
const KNOWN: Record<string, { code: string; exitCode: number }> = {
  AlreadyRunningError: { code: 'already_running', exitCode: EXIT.refused },
  DataDirectoryInUseError: { code: 'already_running', exitCode: EXIT.refused },
  ExposedFileError: { code: 'exposed_file', exitCode: EXIT.refused },
  InvalidSettingError: { code: 'invalid_setting', exitCode: EXIT.usage },
  KeyRingError: { code: 'key_ring', exitCode: EXIT.refused },
  NotAdminError: { code: 'not_admin', exitCode: EXIT.refused },
  SchemaTooNewError: { code: 'schema_too_new', exitCode: EXIT.schemaTooNew },
};

/** What a database answers, as a SQLSTATE, that was restored and not yet fenced. */
const RESTORED = 'MHUNV';

export interface Failure {
  exitCode: number;
  /** The contract's error object, as far as it is one. */
  body: { error: string; message: string } & Record<string, unknown>;
}

/** What to say of an error and how to exit. */
export function describeFailure(thrown: unknown): Failure {
  if (thrown instanceof CommandError) {
    return { exitCode: thrown.exitCode, body: { error: thrown.code, message: thrown.message, ...thrown.facts } };
  }
  const refusal = toPosthornError(thrown);
  // whatever it does not know is "unavailable" to it; here a person asks, who may see more
  if (refusal === thrown || refusal.code !== 'unavailable') {
    return failure(EXIT.refused, refusal.code, refusal.message, refusal.detail);
  }
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  if ((error as { code?: string }).code === RESTORED) {
    const what = 'This database was restored from a backup, and the mail in it is not fenced yet.';
    return failure(EXIT.refused, refusal.code, `${what} Start the server, or run \`posthorn restore\`.`);
  }
  const known = KNOWN[error.name];
  if (known) return failure(known.exitCode, known.code, error.message);
  const { code, syscall, address, port } = error as NodeJS.ErrnoException & { address?: string; port?: number };
  if (code === 'EADDRINUSE') {
    const other = 'Set POSTHORN_PORT or POSTHORN_METRICS_PORT to a free one (0 takes any).';
    return failure(EXIT.refused, 'port_in_use', `Port ${port} on ${address} is taken by another program. ${other}`);
  }
  if (syscall === 'connect') return failure(EXIT.unreachable, 'unreachable', `No answer: ${error.message}.`);
  return failure(EXIT.refused, 'failed', error.message);
}

function failure(exitCode: number, code: string, message: string, facts: Record<string, unknown> = {}): Failure {
  return { exitCode, body: { error: code, message, ...facts } };
}
