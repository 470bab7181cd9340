#!/usr/bin/env node
import { enableCompileCache } from 'node:module';
import { homedir } from 'node:os';
import { join } from 'node:path';

// Compiled code is kept, which halves the time of a command. In the user's own folder: in a shared one such as /tmp,
// somebody else could put theirs.
enableCompileCache(join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'posthorn'));

// A reader that has seen enough, such as head, is no failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) => process.exit(error.code === 'EPIPE' ? 0 : 1));

const { runProgram } = await import('./cli/program.ts');
const exitCode = await runProgram(process.argv.slice(2), {
  loadServeStdio: async () => (await import('./mcp/stdio.ts')).serveStdio,
});
if (exitCode !== undefined) process.exitCode = exitCode;
