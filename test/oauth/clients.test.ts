import { Client as V2Client, StreamableHTTPClientTransport as V2Transport } from '@modelcontextprotocol/client';
import { Client as V1Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as V1Transport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import type { Browser } from '../helpers/browser.ts';
import { answerOf, signIn } from '../helpers/oauth.ts';
import { startPosthorn, type TestOwner } from '../helpers/posthorn.ts';
import type { ToolAnswer } from '../mcp/clients.ts';

// Real MCP clients, which find everything from the first 401 on; the person is played by a browser without a screen.

const posthorn = await startPosthorn();
afterAll(posthorn.close);
const url = posthorn.pods[0]!.url;

let owner: TestOwner;
let browser: Browser;
beforeEach(async () => {
  owner = await posthorn.owner();
  browser = await signIn(owner, url);
});

/** What a client keeps of one server, in memory. */
function createStore(scope?: string) {
  const kept: Record<string, unknown> = {};
  const provider = {
    redirectUrl: 'http://127.0.0.1:7777/callback',
    clientMetadata: {
      client_name: 'SDK client',
      redirect_uris: ['http://127.0.0.1:7777/callback'],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
    },
    clientInformation: () => kept.client as never,
    saveClientInformation: (client: unknown) => void Object.assign(kept, { client }),
    tokens: () => kept.tokens as never,
    saveTokens: (tokens: unknown) => void Object.assign(kept, { tokens }),
    redirectToAuthorization(address: URL) {
      // both SDKs ask for what the challenge names; others ask for something else
      if (scope !== undefined) address.searchParams.set('scope', scope);
      kept.address = address.href;
    },
    saveCodeVerifier: (verifier: string) => void Object.assign(kept, { verifier }),
    codeVerifier: () => kept.verifier as string,
    invalidateCredentials: (what: string) => void delete kept[what === 'all' ? 'client' : what],
    discoveryState: () => kept.discovery as never,
    saveDiscoveryState: (discovery: unknown) => void Object.assign(kept, { discovery }),
  };
  return { kept, provider };
}

type Store = ReturnType<typeof createStore>;

interface Connection {
  call(name: string, input?: object): Promise<ToolAnswer>;
  close(): Promise<void>;
}

/** The person consents to what the client opened in the browser. */
async function consentTo({ kept }: Store): Promise<URLSearchParams> {
  const page = await browser.open(kept.address as string);
  return answerOf(await browser.submit(page, { decision: 'allow' }));
}

const clients: Record<string, (store: Store) => Promise<Connection>> = {
  async 'v1 SDK'(store) {
    const connect = async () => {
      const client = new V1Client({ name: 'test', version: '1' });
      const transport = new V1Transport(new URL(`${url}/mcp`), { authProvider: store.provider });
      return { client, transport, connecting: client.connect(transport) };
    };
    const first = await connect();
    const failed = await first.connecting.then(
      () => false,
      () => true,
    );
    if (failed) await first.transport.finishAuth((await consentTo(store)).get('code')!);
    const { client, connecting } = failed ? await connect() : first;
    await connecting;
    await client.listTools();
    return {
      call: async (name, input = {}) => (await client.callTool({ name, arguments: { ...input } })) as ToolAnswer,
      close: () => client.close(),
    };
  },
  'v2 SDK, 2026-07-28': (store) => connectV2(store, 'auto'),
  'v2 SDK, 2025-11-25': (store) => connectV2(store, 'legacy'),
};

async function connectV2(store: Store, mode: 'auto' | 'legacy'): Promise<Connection> {
  const connect = async () => {
    const client = new V2Client({ name: 'test', version: '1' }, { versionNegotiation: { mode } });
    const transport = new V2Transport(new URL(`${url}/mcp`), { authProvider: store.provider });
    return { client, transport, connecting: client.connect(transport) };
  };
  const first = await connect();
  const failed = await first.connecting.then(
    () => false,
    () => true,
  );
  if (failed) await first.transport.finishAuth(await consentTo(store));
  const { client, connecting } = failed ? await connect() : first;
  await connecting;
  await client.listTools();
  return {
    call: async (name, input = {}) => (await client.callTool({ name, arguments: { ...input } })) as ToolAnswer,
    close: () => client.close(),
  };
}

describe.each(Object.entries(clients))('the %s', (_, connect) => {
  test('finds, registers, asks, and works without naming an agent', async () => {
    const client = await connect(createStore());
    expect((await client.call('status')).structuredContent).toMatchObject({ granted: true, agent_id: null });
    const registered = await client.call('register_agent', { label: 'Reviewer', runtime: 'claude-code' });
    expect(registered.structuredContent).toMatchObject({ label: 'Reviewer', client: { name: 'SDK client' } });
    const peer = await owner.agent('peer');
    await owner.group([{ id: registered.structuredContent.id }, peer]);
    const sent = await client.call('send_message', {
      recipient_agent_id: peer.id,
      body: 'Hello',
      idempotency_key: 'k1',
    });
    expect(sent.structuredContent).toMatchObject({ state: 'queued' });
    await client.close();
  });

  test('refreshes by itself, and asks again once it was revoked', async () => {
    const store = createStore();
    const first = await connect(store);
    await first.close();
    await posthorn.database.admin.query(`update posthorn.grant_tokens set expires_at = now() where kind = 'access'`);
    delete store.kept.address;
    const second = await connect(store);
    expect((await second.call('list_agents')).isError).toBeFalsy();
    expect(store.kept.address).toBeUndefined(); // nobody was asked
    const { connections } = (await browser.call('GET', '/owner/v1/connections')).json as {
      connections: { id: string; kind: string }[];
    };
    await browser.call(
      'POST',
      `/owner/v1/connections/${connections.find(({ kind }) => kind === 'oauth')!.id}/revoke`,
      {},
    );
    await expect(second.call('status')).rejects.toThrow(); // it has opened the browser
    await second.close();
    const third = await connect(store);
    expect(store.kept.address).toEqual(expect.stringContaining('/authorize'));
    expect((await third.call('status')).structuredContent).toMatchObject({
      granted: true,
      agent_id: expect.any(String),
    });
    await third.close();
  });

  test('is told to reconnect where messaging was not granted', async () => {
    const client = await connect(createStore('functions'));
    const answer = await client.call('receive_messages');
    expect(answer.isError).toBeFalsy();
    expect(answer.structuredContent).toMatchObject({
      granted: false,
      how_to_enable: 'reconnect',
      connectors_url: null,
    });
    await client.close();
  });
});
