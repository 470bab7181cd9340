import { chmod, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { type Result, runCommand, runHere, type Settings } from '../helpers/command-line.ts';
import { startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

// Many processes, on a machine that may be busy.
vi.setConfig({ testTimeout: 120_000 });

let posthorn: TestPosthorn;
let owner: TestOwner;
let alpha: TestAgent;
let beta: TestAgent;
let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'posthorn-cli-'));
  posthorn = await startPosthorn();
  owner = await posthorn.owner();
  [alpha, beta] = await Promise.all([owner.agent('alpha'), owner.agent('beta')]);
  await owner.group([alpha, beta]);
});

afterAll(async () => {
  await posthorn.close();
  await rm(folder, { recursive: true });
});

const url = () => posthorn.pods[0]!.url;

/** Runs a command as an agent; in a process of its own where it reads standard input. */
function as(agent: TestAgent, args: string[], options: { settings?: Settings; stdin?: string | Uint8Array } = {}) {
  const settings = { POSTHORN_URL: url(), POSTHORN_TOKEN: agent.token, POSTHORN_AGENT_ID: agent.id };
  const all = { ...settings, ...options.settings };
  return options.stdin === undefined ? runHere(args, all) : runCommand(args, all, options.stdin);
}

const sendTo = (agent: TestAgent) => ['messages', 'send', '--recipient-agent-id', agent.id];

/** What a program reads of a refusal. */
function refused(result: Result): Record<string, unknown> {
  expect(result.stdout).toBe('');
  return JSON.parse(result.stderr);
}

describe('a round trip', () => {
  test('send, receive, acknowledge, reply, look at receipts: in JSON', async () => {
    const body = '  Ready ✅\nfor "review"\\u0000\t';
    const sent = await as(alpha, [...sendTo(beta), '--message', body, '--idempotency-key', 'round-1', '--json']);
    expect(sent).toMatchObject({ code: 0, stderr: '' });
    const message = sent.json();
    expect(message).toMatchObject({ state: 'queued', recipient_agent_id: beta.id, idempotency_key: 'round-1' });

    const again = await as(alpha, [...sendTo(beta), '--message', body, '--idempotency-key', 'round-1', '--json']);
    expect(again.json()).toMatchObject({ id: message.id, replayed: true });
    const clash = await as(alpha, [...sendTo(beta), '--message', 'else', '--idempotency-key', 'round-1', '--json']);
    expect(clash.code).toBe(1);
    expect(refused(clash)).toMatchObject({ error: 'idempotency_conflict', idempotency_key: 'round-1' });

    const inbox = (await as(beta, ['messages', 'receive', '--json'])).json();
    expect(inbox.messages).toMatchObject([{ id: message.id, body, content_trust: 'untrusted_peer' }]);
    const acknowledged = await as(beta, ['messages', 'ack', '--message-id', message.id, '--json']);
    expect(acknowledged.json().messages).toMatchObject([{ id: message.id, state: 'acknowledged' }]);
    const reply = ['messages', 'send', '--conversation-id', message.conversation_id, '--reply-to', message.id];
    expect((await as(beta, [...reply, '--message', 'done', '--json'])).json()).toMatchObject({ state: 'queued' });
    const receipt = await as(alpha, ['messages', 'status', '--message-id', message.id, '--json']);
    expect(receipt.json()).toMatchObject({ state: 'replied' });
    expect((await as(alpha, ['status', '--json'])).json()).toMatchObject({ agent_id: alpha.id, pending_messages: 1 });
  });

  test('for people: a body is quoted, named after its sender, called untrusted, and steers nothing', async () => {
    const gamma = await owner.agent('gamma');
    await owner.group([alpha, gamma]);
    // neither doors nor table let such a label in; whoever wrote it is the database's administrator
    await posthorn.database.admin.query('alter table posthorn.agents drop constraint label_is_one_line');
    await posthorn.database.admin.query('update posthorn.agents set label = $2 where agent_id = $1', [
      gamma.id,
      'gamma\u001b[2J',
    ]);
    const sent = await as(gamma, [
      ...sendTo(alpha),
      '--message',
      'one\n\u001b[31mtwo',
      '--idempotency-key',
      'people-1',
    ]);
    expect(sent.stdout).toMatch(/^queued\n/);
    expect(sent.stdout).toContain('people-1');
    const { stdout } = await as(alpha, ['messages', 'receive']);
    expect(stdout).toContain('From gamma\\x1b[2J\n');
    expect(stdout).toContain('untrusted');
    expect(stdout).toContain('\n  > one\n  > \\x1b[31mtwo\n');
    expect(stdout).not.toContain('\u001b');
    expect((await as(alpha, ['messages', 'list'])).stdout).not.toContain('\u001b');
  });

  test('--wait returns when there is mail', async () => {
    const delta = await owner.agent('delta');
    await owner.group([alpha, delta]);
    const waiting = as(delta, ['messages', 'receive', '--wait', '--json'], { stdin: '' });
    expect((await as(alpha, [...sendTo(delta), '--message', 'wake up'])).code).toBe(0);
    expect((await waiting).json().messages).toMatchObject([{ body: 'wake up' }]);
  });
});

describe('bodies', () => {
  test('come from a file or from standard input, byte for byte', async () => {
    const body = '\ufeffline\r\n  two\n\n';
    const path = join(folder, 'body.txt');
    await writeFile(path, body);
    for (const result of [
      await as(alpha, [...sendTo(beta), '--message-file', path, '--json']),
      await as(alpha, [...sendTo(beta), '--message-file', '-', '--json'], { stdin: body }),
    ]) {
      expect(result.code).toBe(0);
      const { messages } = (await beta.receive({ limit: 100 })).body;
      expect(messages.find(({ id }: { id: string }) => id === result.json().id)).toMatchObject({ body });
    }
  });

  test('that are not UTF-8 are refused by place, whatever door they come through', async () => {
    const bytes = Buffer.concat([Buffer.from('zażółć '), Buffer.from([0xff, 0x41])]);
    const path = join(folder, 'bad.txt');
    await writeFile(path, bytes);
    for (const result of [
      await as(alpha, [...sendTo(beta), '--message-file', path, '--json']),
      await as(alpha, [...sendTo(beta), '--message-file', '-', '--json'], { stdin: bytes }),
    ]) {
      expect(result.code).toBe(1);
      expect(refused(result)).toMatchObject({ error: 'invalid_request', fields: ['body'] });
      expect(result.stderr).toContain('byte 12, 0xff');
    }
  });

  test('are counted in code points: 20,000 emoji are sent, 20,001 are not', async () => {
    const emoji = (count: number) => '😀'.repeat(count);
    const most = await as(alpha, [...sendTo(beta), '--message-file', '-', '--json'], { stdin: emoji(20_000) });
    expect(most.json()).toMatchObject({ state: 'queued' });
    const tooMany = await as(alpha, [...sendTo(beta), '--message-file', '-', '--json'], { stdin: emoji(20_001) });
    expect(tooMany.code).toBe(1);
    expect(refused(tooMany)).toMatchObject({ error: 'invalid_request', fields: ['body'] });
    expect(tooMany.stderr).toContain('20000 Unicode code points');
    expect((await as(alpha, [...sendTo(beta), '--message', ''])).stderr).toMatch(/^invalid_request: body/);
    const nul = await as(alpha, [...sendTo(beta), '--message-file', '-'], { stdin: 'a\0b' });
    expect(nul.stderr).toMatch(/^invalid_request: body: must be well-formed Unicode without NUL/);
  });

  test('are needed, once', async () => {
    for (const more of [[], ['--message', 'a', '--message-file', '-']]) {
      const result = await as(alpha, [...sendTo(beta), ...more]);
      expect(result).toMatchObject({ code: 2, stdout: '' });
      expect(result.stderr).toMatch(/^usage: /);
    }
    expect((await as(alpha, [...sendTo(beta), '--message-file', join(folder, 'none')])).code).toBe(2);
  });
});

describe('exit codes', () => {
  test('1 with the code of the refusal, for people and for programs', async () => {
    const stranger = await owner.agent('stranger');
    const result = await as(alpha, [...sendTo(stranger), '--message', 'hello']);
    expect(result).toMatchObject({ code: 1, stdout: '' });
    expect(result.stderr).toMatch(/^purpose_required: .+\n {2}request_id: .+\n {2}idempotency_key: .+\n$/);
    const unknown = await as(alpha, ['messages', 'status', '--message-id', alpha.id, '--json']);
    expect(unknown.code).toBe(1);
    expect(refused(unknown)).toMatchObject({ error: 'not_found', retryable: false });
    const bad = await as(alpha, ['messages', 'receive', '--limit', '101', '--json']);
    expect(refused(bad)).toMatchObject({ error: 'invalid_request', fields: ['limit'] });
    const other = await as(alpha, ['status', '--json'], { settings: { POSTHORN_TOKEN: 'phs_none' } });
    expect(refused(other)).toMatchObject({ error: 'unauthorized' });
  });

  test('2 for what was typed wrong', async () => {
    const mistakes = [
      ['messages', 'receive', '--nonsense'],
      ['messages', 'ack', '--message-id', 'x', '--delivery', 'eaten'],
      ['messages', 'ack'],
      ['messages', 'send', '--message', 'x', 'more'],
      ['nonsense'],
      [],
    ];
    for (const args of mistakes) {
      const result = await as(alpha, args);
      expect(result).toMatchObject({ code: 2, stdout: '' });
      expect(result.stderr).not.toBe('');
    }
  });

  test('2 with an object for programs', async () => {
    const result = await as(alpha, ['messages', 'receive', '--limit', 'many', '--json']);
    expect(result.code).toBe(2);
    expect(refused(result)).toMatchObject({ error: 'usage', message: expect.stringContaining('--limit') });
  });

  test('2 without a token, saying how to get one', async () => {
    const result = await runHere(['status'], { POSTHORN_URL: url() });
    expect(result.code).toBe(2);
    expect(result.stderr).toContain('token create');
  });

  test('3 where nobody answers, or somebody else does', async () => {
    const nobody = await as(alpha, ['status', '--json'], { settings: { POSTHORN_URL: 'http://127.0.0.1:9' } });
    expect(nobody.code).toBe(3);
    expect(refused(nobody)).toMatchObject({ error: 'unreachable' });
    const other = await as(alpha, ['status', '--json'], { settings: { POSTHORN_URL: `${url()}/docs` } });
    expect(other.code).toBe(1); // Posthorn itself, with nothing at that path
    const sent = await as(alpha, [...sendTo(beta), '--message', 'x', '--json'], {
      settings: { POSTHORN_URL: 'http://127.0.0.1:9' },
    });
    expect(refused(sent)).toMatchObject({ error: 'unreachable', idempotency_key: expect.any(String) });
  });

  test('0 for help and version, which load neither database nor schema', async () => {
    const help = await runCommand(['--help']);
    expect(help).toMatchObject({ code: 0, stderr: '' });
    expect(help.stdout.split('\n').every((line) => line.length <= 80)).toBe(true);
    expect((await runCommand(['messages', 'send', '--help'])).code).toBe(0);
    expect((await runCommand(['--version'])).stdout).toMatch(/^\d+\.\d+\.\d+\n$/);
  });
});

describe('the configuration file', () => {
  const register = ['messages', 'register', '--label', 'Gamma', '--runtime', 'script', '--installation', 'main'];

  test('is read only if nobody else can, learns the agent, and keeps what else it holds', async () => {
    const { token } = await owner.token();
    const path = join(folder, 'config.json');
    await writeFile(path, JSON.stringify({ url: url(), token, theme: 'dark' }), { mode: 0o644 });
    await chmod(path, 0o644);
    const exposed = await runHere(['status', '--config', path]);
    expect(exposed).toMatchObject({ code: 1, stdout: '' });
    expect(exposed.stderr).toContain(`chmod 600 '${path}'`);

    await chmod(path, 0o600);
    const registered = await runHere([...register, '--config', path, '--json']);
    expect(registered.code).toBe(0);
    const { id } = registered.json();
    expect(JSON.parse(await readFile(path, 'utf8'))).toEqual({ url: url(), token, theme: 'dark', agent_id: id });
    expect((await stat(path)).mode & 0o777).toBe(0o600);
    const status = await runHere(['status', '--json'], { POSTHORN_CONFIG: path });
    expect(status.json()).toMatchObject({ agent_id: id });
    // an option wins over the environment, and the environment over the file
    const other = await runHere(['status', '--json', '--agent-id', alpha.id], { POSTHORN_CONFIG: path });
    expect(refused(other)).toMatchObject({ error: 'not_found' });
  });

  test('is made by register where it is asked for', async () => {
    const { token } = await owner.token();
    const path = join(folder, 'new', 'config.json');
    const result = await runHere([...register, '--config', path], { POSTHORN_URL: url(), POSTHORN_TOKEN: token });
    expect(result.stderr).toContain(path);
    expect((await stat(path)).mode & 0o777).toBe(0o600);
    expect(Object.keys(JSON.parse(await readFile(path, 'utf8')))).toEqual(['agent_id']);
  });

  test('that is broken is named', async () => {
    const path = join(folder, 'broken.json');
    await writeFile(path, '{"token": 5}', { mode: 0o600 });
    const result = await runHere(['status', '--config', path]);
    expect(result.code).toBe(1);
    expect(result.stderr).toContain(path);
  });

  test('is not needed: the token may come from a file of its own', async () => {
    const path = join(folder, 'token');
    await writeFile(path, `${alpha.token}\n`);
    const result = await runHere(['status', '--url', url(), '--token-file', path, '--agent-id', alpha.id, '--json']);
    expect(result.json()).toMatchObject({ agent_id: alpha.id });
  });
});

test('nothing of a body, a label or a token reached the log', () => {
  for (const secret of ['Ready', 'wake up', 'gamma', alpha.token, beta.token])
    expect(posthorn.log()).not.toContain(secret);
});
