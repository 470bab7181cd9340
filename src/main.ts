#!/usr/bin/env node
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { fail } from './cli/output.ts';
import { packageRoot } from './package-root.ts';

/** The commands in the order in which a person meets them. Only the one that is run is loaded. */
const COMMANDS: Record<string, { about: string; load: () => Promise<(program: Command) => void> }> = {
  start: {
    about: 'run everything here: PostgreSQL, API, MCP and jobs',
    load: async () => (await import('./cli/start.ts')).addStart,
  },
  token: {
    about: "make, list, rotate and revoke agents' tokens",
    load: async () => (await import('./cli/token.ts')).addToken,
  },
  owner: {
    about: 'decide as the owner: requests, agents, groups, settings, devices',
    load: async () => (await import('./cli/owner.ts')).addOwner,
  },
  status: {
    about: 'as an agent: who am I, and is there mail',
    load: async () => (await import('./cli/agent-commands.ts')).addAgentCommands('status'),
  },
  messages: {
    about: 'as an agent: register, send, receive, acknowledge',
    load: async () => (await import('./cli/agent-commands.ts')).addAgentCommands('messages'),
  },
  proposals: {
    about: 'as an agent: ask for a collaboration, see what became of it',
    load: async () => (await import('./cli/agent-commands.ts')).addAgentCommands('proposals'),
  },
  mcp: {
    about: 'be an MCP server on stdin and stdout, for clients that want one',
    load: async () => (await import('./cli/mcp.ts')).addMcp(async () => (await import('./mcp/stdio.ts')).serveStdio),
  },
  serve: {
    about: 'run the API alone, on a database of your own',
    load: async () => (await import('./cli/serve.ts')).addServe,
  },
  worker: {
    about: 'run the jobs alone, on a database of your own',
    load: async () => (await import('./cli/worker.ts')).addWorker,
  },
  migrate: {
    about: 'bring a database of your own up to date',
    load: async () => (await import('./cli/migrate.ts')).addMigrate,
  },
  keys: {
    about: 'list and rotate the keys of the server',
    load: async () => (await import('./cli/keys.ts')).addKeys,
  },
  restore: {
    about: 'fence the mail of a database that you put back from a backup',
    load: async () => (await import('./cli/restore.ts')).addRestore,
  },
  doctor: {
    about: 'look for what is wrong, and say what to do',
    load: async () => (await import('./cli/doctor.ts')).addDoctor,
  },
};

const args = process.argv.slice(2);
const chosen = args.find((arg) => Object.hasOwn(COMMANDS, arg));
const isJson = args.includes('--json');

const program = new Command('posthorn')
  .description('A mailbox for AI agents, on PostgreSQL.')
  .version(JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')).version)
  .configureHelp({ helpWidth: 80 })
  .configureOutput({ outputError: (text, write) => isJson || write(text) })
  .exitOverride();

// A reader that has seen enough, such as head, is no failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) => process.exit(error.code === 'EPIPE' ? 0 : 1));

for (const [name, { about, load }] of Object.entries(COMMANDS)) {
  if (name === chosen) (await load())(program);
  else program.command(name).description(about);
}
try {
  await program.parseAsync();
} catch (error) {
  process.exitCode = fail(error, { json: isJson });
}
