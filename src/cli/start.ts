import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { type LocalServer, startLocalServer } from '../local-server.ts';
import { createLog } from '../log.ts';
import { reaching } from './database.ts';
import { CommandError } from './failure.ts';
import { addCommand, type Output, posthorn } from './output.ts';
import { runUntilStopped } from './run-until-stopped.ts';

export function addStart(program: Command): void {
  addCommand(program, 'start', 'Run everything here until Ctrl-C: PostgreSQL, API, MCP and jobs.')
    .addHelpText('after', '\nSettings are environment variables: see docs/settings.md.')
    .action(start);
}

async function start(output: Output): Promise<void> {
  const config = readConfig(process.env);
  // Who watches a terminal wants to see what is wrong, and not each request.
  const log = createLog(process.stderr.isTTY ? 'warn' : 'info');
  await runUntilStopped(
    log,
    async () => {
      const starting = () => startLocalServer(config, log);
      const server = await (config.databaseUrl ? reaching(config.databaseUrl, starting) : starting());
      const failed = server.databaseEnded.then(refuseToGoOn);
      failed.catch(() => {}); // it ends when we stop it, too
      const signInUrl = output.json ? '' : await server.makeSignInUrl();
      return { ...server, failed, signInUrl };
    },
    (server) => process.stdout.write(output.json ? readyLine(server) : welcome(server)),
  );
}

/** Its log lines tell why; its error lines may quote what somebody wrote, and are left out. */
function refuseToGoOn(lines: string): never {
  const said = lines.split('\n').filter((line) => /\b(LOG|FATAL|PANIC):/.test(line));
  throw new CommandError('database_ended', `PostgreSQL has ended by itself.\n${said.join('\n')}`);
}

function readyLine({ url, mcpUrl, ownerUrl, databaseUrl }: LocalServer): string {
  const line = {
    event: 'ready',
    pid: process.pid,
    url,
    mcp_url: mcpUrl,
    owner_url: ownerUrl,
    database_url: databaseUrl,
  };
  return `${JSON.stringify(line)}\n`;
}

function welcome({ url, mcpUrl, madeKeyRing, signInUrl }: LocalServer & { signInUrl: string }): string {
  return `Posthorn runs at ${url} (MCP: ${mcpUrl}).
${madeKeyRing ? `Its keys are in ${madeKeyRing}: keep a copy.\nWithout them no message can be read again.\n` : ''}
Sign in, within 15 minutes, once (or make another link: ${posthorn} owner link):
  ${signInUrl}

Next, in another terminal${process.env.POSTHORN_DATA_DIR ? `, after\n  export POSTHORN_DATA_DIR='${process.env.POSTHORN_DATA_DIR}'` : ''}

  1. Connect an agent: paste ${mcpUrl} into its client.
     Or make a token for it:
     ${posthorn} token create --label alpha --scope messaging

  2. Let the agent register with it, which gives it an id. By MCP, or here:
     POSTHORN_TOKEN=… ${posthorn} messages register \\
       --label alpha --runtime script --installation main

  3. Let agents talk:
     ${posthorn} owner groups create --name review \\
       --purpose "Review the change" --agent ID --agent ID

Ctrl-C stops it.
`;
}
