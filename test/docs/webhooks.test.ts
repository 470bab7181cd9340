import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { packageRoot } from '../../src/package-root.ts';
import { deliveryRequest } from '../../src/webhooks/delivery-request.ts';
import { makeWebhookSecret } from '../../src/webhooks/signature.ts';

// The examples of docs/webhooks.md verify what we send, and nothing else.
const page = await readFile(join(packageRoot, 'docs', 'webhooks.md'), 'utf8');
const examples = [...page.matchAll(/^```js (\w+)\n(.*?)^```/gms)].map(([, name, code]) => ({
  name: name!,
  code: code!,
}));

type Verify = (secret: string, headers: Record<string, string>, body: string) => unknown;

/** Inside the repository, so that packages are found. */
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(packageRoot, 'test', 'docs', '.example-'));
});
afterAll(() => rm(folder, { recursive: true }));

test('there is one with a stock verifier and one without', () => {
  expect(examples.map(({ name }) => name)).toEqual(['standardwebhooks', 'node']);
});

describe.each(examples)('$name', ({ name, code }) => {
  let verify: Verify;
  beforeAll(async () => {
    const path = join(folder, `${name}.mjs`);
    await writeFile(path, code);
    ({ verify } = await import(pathToFileURL(path).href));
  });

  const content = { type: 'messaging.pending', agent_id: 'an agent', pending_count: 1, note: 'zażółć 🌅' };

  /** As a receiver gets it: names in lower case. */
  function sent(secrets: string[]) {
    const { headers, body } = deliveryRequest({
      webhookId: 'a webhook',
      deliveryId: 'a-delivery',
      content,
      secrets,
      authHeader: undefined,
    });
    const lower = Object.fromEntries(Object.entries(headers).map(([key, value]) => [key.toLowerCase(), value]));
    return { headers: lower, body };
  }

  test('takes what is signed with the secret', () => {
    const secret = makeWebhookSecret();
    const { headers, body } = sent([secret]);
    const event = { webhook_id: 'a webhook', delivery_id: 'a-delivery', ...content };
    expect(verify(secret, headers, body)).toEqual(event);
  });

  test('takes either secret of a rotation', () => {
    const [old, fresh] = [makeWebhookSecret(), makeWebhookSecret()];
    const { headers, body } = sent([fresh, old]);
    expect(verify(old, headers, body)).toEqual(verify(fresh, headers, body));
  });

  test('refuses another secret, a changed body, and what is old', () => {
    const secret = makeWebhookSecret();
    const { headers, body } = sent([secret]);
    expect(() => verify(makeWebhookSecret(), headers, body)).toThrow();
    expect(() => verify(secret, headers, body.replace('1', '2'))).toThrow();
    const time = headers['webhook-timestamp']!;
    const older = String(Number(time) - 301);
    const aged = Object.fromEntries(Object.entries(headers).map(([key, value]) => [key, value.replace(time, older)]));
    expect(() => verify(secret, aged, body)).toThrow();
  });
});
