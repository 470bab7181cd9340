import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { packageRoot } from '../../src/package-root.ts';

// The program as people and supervisors run it: processes of its own, with nothing of this environment that is Posthorn's.

const main = join(packageRoot, 'src', 'main.ts');

function environment(settings: Record<string, string>): NodeJS.ProcessEnv {
  const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith('POSTHORN_'));
  return { ...Object.fromEntries(inherited), ...settings };
}

export interface Result {
  code: number;
  stdout: string;
  stderr: string;
}

/** Runs a command to its end. */
export async function runProgram(args: string[], settings: Record<string, string>, input = ''): Promise<Result> {
  const child = spawn(process.execPath, [main, ...args], { env: environment(settings) });
  child.stdin.on('error', () => {}); // it may have ended without reading
  child.stdin.end(input);
  const [stdout, stderr, [code, signal]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ]);
  return { code: code ?? 128 + (signal as string).length, stdout, stderr };
}

/** The same with --json: what it answered, or the error that it gave. */
// biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
export async function runJson(args: string[], settings: Record<string, string>): Promise<any> {
  const { code, stdout, stderr } = await runProgram([...args, '--json'], settings);
  if (code === 0) return JSON.parse(stdout);
  const last = stderr.trim().split('\n').at(-1)!;
  return { ...JSON.parse(last), exit_code: code };
}

export interface RunningProgram {
  child: ChildProcess;
  /** The line that said that it is ready. */
  // biome-ignore lint/suspicious/noExplicitAny: each command has its own
  ready: any;
  /** What it wrote to stderr so far. */
  log(): string;
  /** Asks it to stop. @returns its exit code */
  stop(): Promise<number>;
  /** Ends it without a word. */
  kill(): Promise<void>;
}

/** Starts a command that serves, and waits until it says that it is ready. */
export async function startProgram(args: string[], settings: Record<string, string>): Promise<RunningProgram> {
  const program = spawnProgram([...args, '--json'], settings);
  const lines = createInterface({ input: program.child.stdout! });
  const first = await Promise.race([once(lines, 'line'), once(program.child, 'exit').then(() => undefined)]);
  if (!first) throw new Error(`${args.join(' ')} ended with ${program.child.exitCode}: ${program.log()}`);
  return { ...program, ready: JSON.parse(first[0]) };
}

/** Starts a command without waiting for anything. */
export function spawnProgram(args: string[], settings: Record<string, string>): Omit<RunningProgram, 'ready'> {
  const child = spawn(process.execPath, [main, ...args], {
    env: environment(settings),
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let log = '';
  child.stderr.on('data', (chunk) => {
    log += chunk;
  });
  const exited = once(child, 'exit');
  return {
    child,
    log: () => log,
    async stop() {
      child.kill('SIGTERM');
      const [code] = await exited;
      return code;
    },
    async kill() {
      child.kill('SIGKILL');
      await exited;
    },
  };
}
