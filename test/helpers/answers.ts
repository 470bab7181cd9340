import { runCommand, runHere, type Settings } from './command-line.ts';

/** What a command answered with --json; or the error that it gave, with its exit code. */
// biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
export type Answer = any;

/** Runs a command with --json in this process; not twice at once. */
export async function ask(args: string[], settings: Settings): Promise<Answer> {
  return read(await runHere([...args, '--json'], settings));
}

/** The same in a process of its own. */
export async function askApart(args: string[], settings: Settings): Promise<Answer> {
  return read(await runCommand([...args, '--json'], settings));
}

function read({ code, stdout, stderr }: { code: number | null; stdout: string; stderr: string }): Answer {
  if (code === 0) return JSON.parse(stdout);
  return { ...JSON.parse(stderr.trim().split('\n').at(-1)!), exit_code: code };
}
