import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { packageRoot } from '../package-root.ts';
import type { ServeStdio } from './mcp.ts';
import { fail } from './output.ts';

/** What lies behind another door, which this one may not import. */
export interface Doors {
  loadServeStdio: () => Promise<ServeStdio>;
}

/** The commands in the order in which a person meets them. Only the one that is run is loaded. */
const COMMANDS: Record<string, { about: string; load: (doors: Doors) => Promise<(program: Command) => void> }> = {
  start: {
    about: 'run everything here: PostgreSQL, API, MCP and jobs',
    load: async () => (await import('./start.ts')).addStart,
  },
  token: {
    about: "make, list, rotate and revoke agents' tokens",
    load: async () => (await import('./token.ts')).addToken,
  },
  owner: {
    about: 'decide as the owner: requests, agents, groups, settings, devices',
    load: async () => (await import('./owner.ts')).addOwner,
  },
  login: {
    about: 'pair this machine: a person confirms it in the browser',
    load: async () => (await import('./login.ts')).addLogin,
  },
  logout: {
    about: 'end the pairing of this machine',
    load: async () => (await import('./login.ts')).addLogout,
  },
  status: {
    about: 'as an agent: who am I, and is there mail',
    load: async () => (await import('./agent-commands.ts')).addAgentCommands('status'),
  },
  messages: {
    about: 'as an agent: register, send, receive, acknowledge',
    load: async () => (await import('./agent-commands.ts')).addAgentCommands('messages'),
  },
  proposals: {
    about: 'as an agent: ask for a collaboration, see what became of it',
    load: async () => (await import('./agent-commands.ts')).addAgentCommands('proposals'),
  },
  webhook: {
    about: 'as an agent: be woken at a URL, see what was delivered',
    load: async () => (await import('./agent-commands.ts')).addAgentCommands('webhook'),
  },
  listen: {
    about: 'as an agent: forward wakes to a local URL while developing',
    load: async () => (await import('./listen.ts')).addListen,
  },
  mcp: {
    about: 'be an MCP server on stdin and stdout, for clients that want one',
    load: async ({ loadServeStdio }) => (await import('./mcp.ts')).addMcp(loadServeStdio),
  },
  serve: {
    about: 'run the API alone, on a database of your own',
    load: async () => (await import('./serve.ts')).addServe,
  },
  worker: {
    about: 'run the jobs alone, on a database of your own',
    load: async () => (await import('./worker.ts')).addWorker,
  },
  migrate: {
    about: 'bring a database of your own up to date',
    load: async () => (await import('./migrate.ts')).addMigrate,
  },
  keys: {
    about: 'list and rotate the keys of the server',
    load: async () => (await import('./keys.ts')).addKeys,
  },
  restore: {
    about: 'fence the mail of a database that you put back from a backup',
    load: async () => (await import('./restore.ts')).addRestore,
  },
  doctor: {
    about: 'look for what is wrong, and say what to do',
    load: async () => (await import('./doctor.ts')).addDoctor,
  },
};

/**
 * Runs the command that the arguments name.
 *
 * @param args what was typed after the program's name
 * @returns the exit code, or undefined where the command has set it itself
 */
export async function runProgram(args: string[], doors: Doors): Promise<number | undefined> {
  const chosen = args.find((arg) => Object.hasOwn(COMMANDS, arg));
  const isJson = args.includes('--json');
  const program = new Command('posthorn')
    .description('A mailbox for AI agents, on PostgreSQL.')
    .version(JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')).version)
    .configureHelp({ helpWidth: 80 })
    .configureOutput({ outputError: (text, write) => isJson || write(text) })
    .exitOverride();
  for (const [name, { about, load }] of Object.entries(COMMANDS)) {
    if (name === chosen) (await load(doors))(program);
    else program.command(name).description(about);
  }
  try {
    await program.parseAsync(args, { from: 'user' });
    return undefined;
  } catch (error) {
    return fail(error, { json: isJson });
  }
}
