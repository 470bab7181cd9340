import { stderr, stdin } from 'node:process';
import { createInterface } from 'node:readline/promises';

/** Whether there is somebody to ask. */
export const canAsk = (): boolean => stdin.isTTY === true;

/** Asks the person at the terminal. */
export async function ask(question: string): Promise<string> {
  const terminal = createInterface({ input: stdin, output: stderr });
  try {
    return (await terminal.question(question)).trim();
  } finally {
    terminal.close();
  }
}
