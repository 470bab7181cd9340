import { expect } from 'vitest';

/** Credentials and webhook secrets: no test, whatever it is about, may find one in a log. */
const SECRET = /ph[dcs]_[\w-]{43}|whsec_[\w+/]{16}/;

const logs = new Set<() => string>();

/** Has a log of this test file looked through at its end. */
export function watchLog(read: () => string): void {
  logs.add(read);
}

/** Called at the end of each test file. */
export function expectCleanLogs(): void {
  const lines = [...logs].flatMap((read) => read().split('\n'));
  expect(
    lines.filter((line) => SECRET.test(line)),
    'log lines with a secret',
  ).toEqual([]);
}
