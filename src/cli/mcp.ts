import type { Command } from 'commander';
import { type AgentOptions, addAgentOptions, readAgentSettings } from './agent-settings.ts';

/** What speaks MCP; a door of its own, so it is handed in. */
export type ServeStdio = (options: { url: string; token: () => Promise<string>; agentId?: string }) => Promise<void>;

export function addMcp(loadServeStdio: () => Promise<ServeStdio>): (program: Command) => void {
  return (program) => {
    const mcp = program.command('mcp').description('MCP for clients that start a program instead of opening a URL.');
    addAgentOptions(mcp.command('serve').description('Speak MCP on stdin and stdout until stdin ends.')).action(
      async (options: AgentOptions) => {
        const [settings, serveStdio] = await Promise.all([readAgentSettings(options), loadServeStdio()]);
        await serveStdio({ url: settings.url, token: settings.currentToken, agentId: settings.agentId });
      },
    );
  };
}
