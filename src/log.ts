import { type Logger, pino } from 'pino';

/**
 * The program's log: JSON lines on stderr, since stdout belongs to what commands answer. No body, label, credential or
 * free text may reach it: errors are cut down to where they happened, and the fields that could hold one are blanked.
 *
 * @param level the least severe level that is written
 */
export function createLog(level: 'debug' | 'info' | 'warn' = 'info'): Logger {
  return pino(
    {
      level,
      base: { pid: process.pid },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: { paths: SECRET_FIELDS.flatMap((name) => [name, `*.${name}`]), censor: '[secret]' },
      serializers: { err: describeError },
    },
    // a write for each line costs a busy pod 8 % of its time, so lines wait up to a quarter second for others; what is
    // left is written when the process ends
    pino.destination({ dest: 2, sync: false, minLength: 4_096, periodicFlush: 250 }),
  );
}

const SECRET_FIELDS = [
  'authHeader',
  'authorization',
  'body',
  'credential',
  'label',
  'password',
  'payload',
  'purpose',
  'secret',
  'token',
];

/**
 * What went wrong and where, without its message: those of parsers and of the database may quote what somebody wrote.
 * Only the system's own errors (a refused connection, a full disk) keep theirs.
 */
function describeError(thrown: unknown): unknown {
  if (!(thrown instanceof Error)) return typeof thrown === 'string' ? '[text]' : thrown;
  const { code, syscall, routine, constraint } = thrown as unknown as Record<string, string | undefined>;
  return {
    type: thrown.constructor.name,
    code,
    routine,
    constraint,
    ...(syscall === undefined ? {} : { message: thrown.message }),
    at: framesOf(thrown),
    ...(thrown.cause === undefined ? {} : { cause: describeError(thrown.cause) }),
  };
}

/** The stack's places. Its head is the message, whose lines may look like places. */
function framesOf({ stack = '', message }: Error): string[] {
  const lines = stack.replace(message, '').split('\n');
  return lines.filter((line) => line.startsWith('    at ')).slice(0, 5);
}
