import { afterAll, expect, test } from 'vitest';
import { begin, connectApp, consent, exchange, postForm, refresh, register, signIn } from '../helpers/oauth.ts';
import { callHttp, startPosthorn } from '../helpers/posthorn.ts';

const posthorn = await startPosthorn({ pods: 2 });
afterAll(posthorn.close);
const [first, second] = posthorn.pods.map((pod) => pod.url) as [string, string];

test('try', async () => {
  const owner = await posthorn.owner();
  const browser = await signIn(owner, first);
  const r = await register(first);
  console.log(r.status, r.body);
  const flow = begin(first, r.body.client_id);
  const page = await browser.open(flow.url);
  console.log(page.status, page.url, page.text);
  const code = await consent(browser, flow);
  const tokens = await exchange(first, flow, code);
  console.log(tokens.status, tokens.body);
  const status = await callHttp(first, tokens.body.access_token, 'GET', '/messaging/v1/status');
  console.log(status.status, status.body);
  const agents = await callHttp(first, tokens.body.access_token, 'GET', '/messaging/v1/agents');
  console.log(agents.status, agents.body);
  console.log((await callHttp(first, tokens.body.access_token, 'GET', '/messaging/v1/status')).body);
  const again = await refresh(first, r.body.client_id, tokens.body.refresh_token);
  console.log(again.status, again.body);
  console.log(
    posthorn
      .log()
      .split('\n')
      .filter((l) => l.includes('error') || l.includes('"level":50')),
  );
});
