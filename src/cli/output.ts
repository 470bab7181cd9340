import { type Command, CommanderError } from 'commander';
import { describeFailure, EXIT } from './failure.ts';
import { harmless, harmlessLine, paragraphs } from './text.ts';

/** What to type to get here again: we may be installed, or run by npx, or from the repository. */
export const posthorn = howToRun(process.env.npm_lifecycle_event);

function howToRun(npmScript: string | undefined): string {
  if (npmScript === undefined) return 'posthorn';
  return npmScript === 'npx' ? 'npx posthorn' : 'npm run -s posthorn --';
}

/** Whether the person asked for JSON; every command takes it. */
export interface Output {
  json?: boolean;
}

/** Adds a command that answers in one of two ways: text for people, or with --json one line for programs. */
export function addCommand(parent: Command, nameAndArguments: string, about: string): Command {
  return parent.command(nameAndArguments).description(about).option('--json', 'answer in JSON, for programs');
}

/** Writes a command's answer. */
export function answer({ json }: Output, value: unknown, text: string): void {
  process.stdout.write(json ? `${JSON.stringify(value)}\n` : `${text}\n`);
}

/** Writes something beside the answer, for the person alone. */
export function remark(text: string): void {
  process.stderr.write(`${text}\n`);
}

/**
 * Says what went wrong, on stderr.
 *
 * @returns the exit code
 */
export function fail(thrown: unknown, { json }: Output): number {
  // the command line's parser has printed its help or its complaint already
  if (thrown instanceof CommanderError) {
    const wasHelp = thrown.code === 'commander.helpDisplayed' || thrown.code === 'commander.version';
    if (wasHelp) return EXIT.done;
    if (json) remark(JSON.stringify({ error: 'usage', message: thrown.message.replace(/^error: /, '') }));
    return EXIT.usage;
  }
  const { exitCode, body } = describeFailure(thrown);
  if (json) {
    remark(JSON.stringify(body));
    return exitCode;
  }
  const { error, message, retryable: _, ...facts } = body;
  const said = `${error}: ${harmless(message)}`;
  // what names fields may be long; other messages hold commands and paths, to be copied whole
  remark(error === 'invalid_request' ? paragraphs(said) : said);
  for (const [name, value] of Object.entries(facts)) {
    remark(`  ${name}: ${harmlessLine(sayFact(value))}`);
  }
  return exitCode;
}

function sayFact(value: unknown): string {
  if (Array.isArray(value)) return value.map(sayFact).join(', ');
  return typeof value === 'string' ? value : JSON.stringify(value);
}
