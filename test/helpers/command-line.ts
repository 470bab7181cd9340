// The command line as people and supervisors run it: real processes, real signals, whole answers.
import { type ChildProcess, type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { buffer } from 'node:stream/consumers';
import { afterAll, vi } from 'vitest';
import { runProgram } from '../../src/cli/program.ts';
import { packageRoot } from '../../src/package-root.ts';
import { watchLog } from './log-lines.ts';

const MAIN = join(packageRoot, 'src', 'main.ts');

export interface Result {
  code: number | null;
  stdout: string;
  stderr: string;
  /** What stdout holds, as JSON. */
  // biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
  json(): any;
}

export interface Settings {
  [name: `POSTHORN_${string}`]: string | undefined;
  /** What shows processes another time. */
  [name: `FAKETIME${string}`]: string | undefined;
  LD_PRELOAD?: string;
}

/** Nobody's configuration and nobody's server; removed when the tests are over. */
const home = mkdtempSync(join(tmpdir(), 'posthorn-test-'));
afterAll(() => rmSync(home, { recursive: true, force: true }));

/** The environment without settings of whoever runs the tests, and with these. */
function environment(settings: Settings): NodeJS.ProcessEnv {
  const others = Object.entries(process.env).filter(([name]) => !/^(POSTHORN_|npm_)/.test(name));
  return { ...Object.fromEntries(others), HOME: home, XDG_CONFIG_HOME: home, XDG_DATA_HOME: home, ...settings };
}

/**
 * Starts a command, whatever becomes of it.
 *
 * @param main the program's file, in another build
 */
export function spawnCommand(
  args: string[],
  settings: Settings = {},
  main: string = MAIN,
): ChildProcessWithoutNullStreams {
  return spawn(process.execPath, [main, ...args], { env: environment(settings) });
}

/** Runs a command to its end. */
export async function runCommand(
  args: string[],
  settings: Settings = {},
  stdin?: string | Uint8Array,
  main?: string,
): Promise<Result> {
  const child = spawnCommand(args, settings, main);
  child.stdin.end(stdin);
  const [stdout, stderr, [code]] = await Promise.all([
    buffer(child.stdout),
    buffer(child.stderr),
    once(child, 'close'),
  ]);
  const text = stdout.toString();
  return { code, stdout: text, stderr: stderr.toString(), json: () => JSON.parse(text) };
}

/**
 * Runs a command in this process, which takes a twentieth of the time: for what needs no process of its own. Not twice
 * at once.
 */
export async function runHere(args: string[], settings: Settings = {}): Promise<Result> {
  const written = { stdout: '', stderr: '' };
  const before = { env: process.env, exitCode: process.exitCode };
  const listen = (name: 'stdout' | 'stderr') =>
    vi.spyOn(process[name], 'write').mockImplementation((chunk) => {
      written[name] += chunk;
      return true;
    });
  const spies = [listen('stdout'), listen('stderr')];
  process.env = environment(settings);
  process.exitCode = undefined;
  try {
    const code = await runProgram(args, { loadServeStdio: () => Promise.reject(new Error('no process of its own')) });
    return { ...written, code: code ?? Number(process.exitCode ?? 0), json: () => JSON.parse(written.stdout) };
  } finally {
    Object.assign(process, before);
    for (const spy of spies) spy.mockRestore();
  }
}

export interface ServerProcess {
  child: ChildProcess;
  /** The first line of stdout. */
  // biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
  ready: any;
  stdout(): string;
  stderr(): string;
  /** Resolves with the exit code. */
  exited: Promise<number | null>;
}

/** Starts a command that serves, and resolves at its ready line. Stop it by a signal to `child`. */
export async function startProcess(args: string[], settings: Settings, main?: string): Promise<ServerProcess> {
  const child = spawnCommand([...args, '--json'], settings, main);
  let stdout = '';
  let stderr = '';
  watchLog(() => stderr);
  child.stdout.on('data', (chunk) => {
    stdout += chunk;
  });
  child.stderr.on('data', (chunk) => {
    stderr += chunk;
  });
  const exited = once(child, 'close').then(([code]) => code as number | null);
  const line = once(createInterface(child.stdout), 'line').then(([text]) => text as string);
  const first = await Promise.race([line, exited]);
  if (typeof first !== 'string') throw new Error(`${args.join(' ')} exited with ${first}: ${stderr}`);
  return { child, ready: JSON.parse(first), stdout: () => stdout, stderr: () => stderr, exited };
}
