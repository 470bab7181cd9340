// The stdio server as a program, for tests: stdio-process.ts URL TOKEN [AGENT].
import { serveStdio } from '../../src/mcp/stdio.ts';

const [url = '', token = '', agentId] = process.argv.slice(2);
await serveStdio({ url, token: async () => token, agentId });
