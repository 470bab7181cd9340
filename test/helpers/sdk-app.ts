import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import type { ToolAnswer } from '../mcp/clients.ts';

export const CALLBACK = 'http://127.0.0.1:7777/callback';

export interface SdkApp {
  call(name: string, input?: object): Promise<ToolAnswer>;
  /** What it presents, for calls beside the SDK. */
  accessToken(): string;
  close(): Promise<void>;
}

/**
 * An app of the official SDK, which finds all from the address of the server alone.
 *
 * @param consent opens an address where the owner is signed in, and answers what the app is sent back with
 */
export async function connectSdkApp(
  url: string,
  name: string,
  consent: (address: string) => Promise<URLSearchParams>,
): Promise<SdkApp> {
  const kept: Record<string, unknown> = {};
  const authProvider = {
    redirectUrl: CALLBACK,
    clientMetadata: {
      client_name: name,
      redirect_uris: [CALLBACK],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
    },
    clientInformation: () => kept.client as never,
    saveClientInformation: (client: unknown) => void Object.assign(kept, { client }),
    tokens: () => kept.tokens as never,
    saveTokens: (tokens: unknown) => void Object.assign(kept, { tokens }),
    redirectToAuthorization: (address: URL) => void Object.assign(kept, { address: address.href }),
    saveCodeVerifier: (verifier: string) => void Object.assign(kept, { verifier }),
    codeVerifier: () => kept.verifier as string,
    discoveryState: () => kept.discovery as never,
    saveDiscoveryState: (discovery: unknown) => void Object.assign(kept, { discovery }),
  };
  const connect = () => {
    const client = new Client({ name, version: '1' }, { versionNegotiation: { mode: 'auto' } });
    const transport = new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { authProvider });
    return { client, transport, connecting: client.connect(transport) };
  };
  const refused = connect();
  await refused.connecting.catch(() => {}); // the 401 that says where to ask
  await refused.transport.finishAuth(await consent(kept.address as string));
  const { client, connecting } = connect();
  await connecting;
  await client.listTools();
  return {
    call: async (tool, input = {}) => (await client.callTool({ name: tool, arguments: { ...input } })) as ToolAnswer,
    accessToken: () => (kept.tokens as { access_token: string }).access_token,
    close: () => client.close(),
  };
}
