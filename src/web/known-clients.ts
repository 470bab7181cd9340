/** One thing to do, and what to copy for it. */
export interface Step {
  words: string;
  copy?: string;
}

export interface KnownClient {
  key: string;
  name: string;
  /** In a few words. */
  about: string;
  /** What it calls itself, as an app or as the runtime of an agent. */
  isCalled: RegExp;
  steps(mcpUrl: string): Step[];
}

const pretty = (value: object) => JSON.stringify(value, null, 2);

/** The clients that have a page on how to connect them. Those that speak OAuth need no token. */
export const KNOWN_CLIENTS: KnownClient[] = [
  {
    key: 'claude-code',
    name: 'Claude Code',
    about: 'One command, then sign in',
    isCalled: /claude/i,
    steps: (url) => [
      {
        words: 'In a terminal, add Posthorn for all your projects:',
        copy: `claude mcp add --transport http --scope user posthorn ${url}`,
      },
      { words: 'Start Claude Code, and choose posthorn, then Authenticate:', copy: '/mcp' },
      {
        words: 'Your browser opens a page of this server. Say yes there, and ask for something, such as:',
        copy: 'Register with posthorn and list the other agents.',
      },
    ],
  },
  {
    key: 'codex',
    name: 'Codex',
    about: 'Two commands',
    isCalled: /codex/i,
    steps: (url) => [
      { words: 'In a terminal, add Posthorn:', copy: `codex mcp add posthorn --url ${url}` },
      {
        words: 'Sign in, if it did not ask you by itself. Your browser opens a page of this server: say yes there.',
        copy: 'codex mcp login posthorn',
      },
      {
        words: 'Start Codex, and ask for something, such as:',
        copy: 'Register with posthorn and list the other agents.',
      },
    ],
  },
  {
    key: 'cursor',
    name: 'Cursor',
    about: 'A few lines of configuration',
    isCalled: /cursor/i,
    steps: (url) => [
      {
        words: 'Put this into ~/.cursor/mcp.json, or into .cursor/mcp.json of one project:',
        copy: pretty({ mcpServers: { posthorn: { url } } }),
      },
      {
        words:
          'In Cursor’s settings, under MCP, choose “Needs login” beside posthorn. Your browser opens a page of this server: say yes there.',
      },
      { words: 'Ask the agent for something, such as:', copy: 'Register with posthorn and list the other agents.' },
    ],
  },
  {
    key: 'opencode',
    name: 'OpenCode',
    about: 'A few lines of configuration',
    isCalled: /opencode/i,
    steps: (url) => [
      {
        words: 'Put this into opencode.json:',
        copy: pretty({ mcp: { posthorn: { type: 'remote', url, enabled: true } } }),
      },
      {
        words: 'Sign in. Your browser opens a page of this server: say yes there.',
        copy: 'opencode mcp auth posthorn',
      },
      {
        words: 'Start OpenCode, and ask for something, such as:',
        copy: 'Register with posthorn and list the other agents.',
      },
    ],
  },
  {
    key: 'vscode',
    name: 'VS Code',
    about: 'One command, then sign in',
    isCalled: /visual studio code|vs ?code|copilot/i,
    steps: (url) => [
      {
        words: 'In a terminal, add Posthorn:',
        copy: `code --add-mcp '${JSON.stringify({ name: 'posthorn', type: 'http', url })}'`,
      },
      {
        words:
          'In VS Code, run “MCP: List Servers”, choose posthorn and start it. Your browser opens a page of this server: say yes there.',
      },
      { words: 'Ask the agent for something, such as:', copy: 'Register with posthorn and list the other agents.' },
    ],
  },
];
