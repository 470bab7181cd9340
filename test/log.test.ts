import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { packageRoot } from '../src/package-root.ts';

const SECRET = 'hunter2 is in the body';

/** Logs in a process of its own, since the log writes to the real stderr. */
async function logged(script: string): Promise<{ lines: Record<string, unknown>[]; stdout: string }> {
  const text = `
    import { createLog } from ${JSON.stringify(join(packageRoot, 'src', 'log.ts'))};
    const log = createLog();
    const SECRET = ${JSON.stringify(SECRET)};
    ${script}`;
  const { stdout, stderr } = await promisify(execFile)(process.execPath, ['--input-type=module', '--eval', text]);
  return {
    stdout,
    lines: stderr
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line)),
  };
}

test('what somebody wrote does not reach the log, in whatever it is wrapped', async () => {
  const { lines, stdout } = await logged(`
    log.info({ body: SECRET, token: SECRET, label: SECRET, nested: { purpose: SECRET, credential: SECRET } }, 'fields');
    log.error({ err: new Error(SECRET) }, 'an error');
    log.error({ err: Object.assign(new Error('invalid input syntax: "' + SECRET + '"'), { code: '22P02', detail: SECRET }) }, 'of the database');
    try { JSON.parse(SECRET) } catch (err) { log.error({ err }, 'of a parser') }
    log.error({ err: new Error('x\\n    at ' + SECRET) }, 'in disguise');
    log.error({ err: new Error('outer', { cause: new Error(SECRET) }) }, 'with a cause');
    log.error({ err: SECRET }, 'no error at all');`);
  expect(lines).toHaveLength(7);
  expect(JSON.stringify(lines)).not.toContain('hunter2');
  expect(stdout).toBe('');
});

test('what is wrong can be found from the log: what kind, which code, where', async () => {
  const { lines } = await logged(`
    log.error({ err: Object.assign(new TypeError(SECRET), { code: '23514', constraint: 'label_is_bounded' }) }, 'refused');
    const err = Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:5432'), { code: 'ECONNREFUSED', syscall: 'connect' });
    log.warn({ err }, 'away');`);
  expect(lines[0]).toMatchObject({
    level: 'error',
    msg: 'refused',
    err: {
      type: 'TypeError',
      code: '23514',
      constraint: 'label_is_bounded',
      at: expect.arrayContaining([expect.stringContaining('    at ')]),
    },
  });
  expect(lines[1]).toMatchObject({ level: 'warn', err: { message: 'connect ECONNREFUSED 127.0.0.1:5432' } });
});
