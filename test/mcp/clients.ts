import { Client as V2Client, StreamableHTTPClientTransport as V2Transport } from '@modelcontextprotocol/client';
import { Client as V1Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as V1Transport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

export interface ToolAnswer {
  isError?: boolean;
  // biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
  structuredContent?: any;
  content: { type: string; text?: string }[];
  _meta?: Record<string, unknown>;
}

export interface ToolClient {
  call(name: string, input?: object): Promise<ToolAnswer>;
  instructions: string | undefined;
  close(): Promise<void>;
}

const clientInfo = { name: 'posthorn-test', version: '1' };

/** Real clients, each of which has listed the tools, so that it holds every answer against its output schema. */
export const connectors: Record<string, (url: string, token: string) => Promise<ToolClient>> = {
  async 'v1 SDK'(url, token) {
    const client = new V1Client(clientInfo);
    await client.connect(new V1Transport(new URL(url), { requestInit: withBearer(token) }));
    await client.listTools();
    return {
      call: async (name, input = {}) => (await client.callTool({ name, arguments: { ...input } })) as ToolAnswer,
      instructions: client.getInstructions(),
      close: () => client.close(),
    };
  },
  'v2 SDK, 2026-07-28': (url, token) => connectV2(url, token, 'auto', 'modern'),
  'v2 SDK, 2025-11-25': (url, token) => connectV2(url, token, 'legacy', 'legacy'),
};

async function connectV2(url: string, token: string, mode: 'auto' | 'legacy', era: string): Promise<ToolClient> {
  const client = new V2Client(clientInfo, { versionNegotiation: { mode } });
  await client.connect(new V2Transport(new URL(url), { requestInit: withBearer(token) }));
  if (client.getProtocolEra() !== era) throw new Error(`Negotiated ${client.getProtocolEra()}`);
  await client.listTools();
  return {
    call: async (name, input = {}) => (await client.callTool({ name, arguments: { ...input } })) as ToolAnswer,
    instructions: client.getInstructions(),
    close: () => client.close(),
  };
}

function withBearer(token: string): RequestInit {
  return { headers: { authorization: `Bearer ${token}` } };
}

/** The text of an answer as a model sees it. */
export function textOf({ content }: ToolAnswer): string {
  return content.map((block) => block.text).join('\n');
}
