import { rules } from '@secretlint/secretlint-rule-preset-recommend';
import { describe, expect, test } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { findSensitiveContent, mayHoldSecret } from '../../src/operations/sensitive-content.ts';

// Made up, and put together here, so that no scanner of repositories takes them for lost ones.
const some = (length: number) => 'aB3'.repeat(length).slice(0, length);
const letters = (length: number) => 'aB'.repeat(length).slice(0, length);
const hex = (length: number) => 'a3'.repeat(length).slice(0, length);
const base64 = `MI${some(200)}`;
const pem = (kind: string, body: string) =>
  `-----BEGIN ${kind}PRIVATE KEY-----\n${body}\n-----END ${kind}PRIVATE KEY-----`;
const serviceAccount = { type: 'service_account', private_key_id: 'x', private_key: pem('', base64) };

/** At least one secret of each kind that a rule looks for. */
const EXAMPLES: Record<string, string[]> = {
  '1password': [
    `ops_ey${Buffer.from(`{"a":"${some(122)}"}`)
      .toString('base64')
      .slice(2)}`,
  ],
  anthropic: [`sk-ant-api03-${some(93)}AA`],
  aws: [
    `AWS_SECRET_ACCESS_KEY=${some(40)}`,
    `"SecretAccessKey": "${some(40)}"`,
    `aws_secret_access_key => '${some(40)}'`,
  ],
  basicauth: [`https://maria:${some(12)}@example.org/x`, `ftps://maria:${some(12)}@example.org`],
  cloudflare: ['cfk', 'cfut', 'cfat'].map((prefix) => `${prefix}_${some(40)}${hex(8)}`),
  'database-connection-string': [
    `mongodb+srv://maria:${some(12)}@db.example.org/x`,
    `jdbc:mysql://maria:${some(12)}@db.example.org/x`,
    `MYSQLX://maria:${some(12)}@db.example.org`,
    `postgres://maria:${some(12)}@db.example.org`,
    `PostgreSQL://maria:${some(12)}@db.example.org`,
  ],
  databricks: [`dapi${hex(32)}`, `dapi${hex(32).toUpperCase()}-2`],
  docker: [`dckr_pat_${some(27)}`],
  figma: [`figd_${some(40)}`],
  gcp: [
    JSON.stringify(serviceAccount),
    ` ${JSON.stringify(serviceAccount).replace('PRIVATE', '\\u0050RIVATE').replaceAll('private_key', 'private\\u005fkey')}`,
  ],
  github: [
    ...['ghp', 'gho', 'ghu', 'ghs', 'ghr'].map((prefix) => `${prefix}_${some(36)}`),
    `github_pat_${some(82)}`,
    `ghs_12_${some(20)}.${some(20)}.${some(20)}`,
  ],
  gitlab: [`glpat-${some(20)}`],
  grafana: [`glc_${some(40)}`, `glsa_${some(32)}_${hex(8)}`],
  groq: [`gsk_${some(52)}`],
  'hashicorp-vault': [`hvs.${some(90)}`, `hvb.${some(138)}`, `hvr.${some(90)}`],
  huggingface: [`hf_${letters(34)}`],
  linear: [`lin_api_${some(40)}`],
  notion: [`ntn_${'1'.repeat(11)}${some(35)}`],
  npm: [
    `npm_${some(36)}`,
    `//registry.example.org/:_authToken=${some(20)}`,
    `https://${some(20)}:x-oauth-basic@github.com/a/b`,
  ],
  openai: [`sk-${some(20)}T3BlbkFJ${some(20)}`, `sk-proj-${some(74)}T3BlbkFJ${some(74)}`],
  posthorn: [makeCredential('service').token, makeCredential('device').token, makeCredential('child').token],
  privatekey: [
    ...['', 'RSA ', 'DSA ', 'EC ', 'OPENSSH '].map((kind) => pem(kind, base64)),
    pem('', base64.replaceAll(/(.{64})/g, '$1\n')),
    JSON.stringify({ key: pem('RSA ', base64) }),
  ],
  sendgrid: [`SG.${some(22)}.${some(43)}`],
  shopify: ['shppa', 'shpca', 'shpat', 'shpss'].map((prefix) => `${prefix}_${some(32)}`),
  slack: [
    ...['xoxb', 'xoxp', 'xoxa', 'xoxo', 'xoxr', 'xapp'].map((prefix) => `${prefix}-1-${some(12)}-${some(24)}`),
    `https://hooks.slack.com/services/T${some(8)}/B${some(8)}/${some(24)}`,
    `HTTPS://HOOKS.SLACK.COM/services/T${some(8)}/B${some(8)}/${some(24)}`,
  ],
  stripe: ['sk_live', 'sk_test', 'rk_live', 'rk_test'].map((prefix) => `${prefix}_${some(24)}`),
  tailscale: ['api', 'auth', 'client', 'scim', 'webhook'].map((type) => `tskey-${type}-${some(12)}-${some(24)}`),
  vercel: ['vcp', 'vci', 'vca', 'vcr', 'vck'].map((prefix) => `${prefix}_${some(24)}`),
};

test('every rule that runs has an example here', () => {
  const names = rules.map((rule) => rule.meta.id.replace('@secretlint/secretlint-rule-', ''));
  const running = ['posthorn', ...names.filter((name) => name !== 'filter-comments')];
  expect(Object.keys(EXAMPLES).toSorted()).toEqual(running.toSorted());
});

describe.each(Object.entries(EXAMPLES))('%s', (rule, examples) => {
  test.each(examples)('example %$ is found', async (secret) => {
    expect(await findSensitiveContent(secret)).toMatchObject({ rule, line: 1 });
  });
});

test('a secret is found amid text, and its place counts code points from 1', async () => {
  const body = `Hello 😀,\nhere 😀 is ${EXAMPLES.github![0]} for you.\n`;
  expect(await findSensitiveContent(body)).toEqual({ rule: 'github', line: 2, column: 11 });
});

test('of several secrets the first is named', async () => {
  const body = `${EXAMPLES.stripe![0]}\n${EXAMPLES.github![0]}`;
  expect(await findSensitiveContent(body)).toEqual({ rule: 'stripe', line: 1, column: 1 });
});

test('the finding holds no part of the secret', async () => {
  for (const [rule, [secret]] of Object.entries(EXAMPLES)) {
    const finding = await findSensitiveContent(`x ${secret}`);
    expect(Object.keys(finding ?? { rule: '', line: 0, column: 0 }), rule).toEqual(['rule', 'line', 'column']);
    expect(JSON.stringify(finding)).not.toContain(some(12));
  }
});

test('a sender cannot switch the rules off by a comment', async () => {
  for (const comment of ['secretlint-disable', 'secretlint-disable-next-line', 'secretlint-disable-line']) {
    expect(await findSensitiveContent(`// ${comment}\n${EXAMPLES.github![0]} // ${comment}`)).toMatchObject({
      rule: 'github',
    });
  }
});

test('repeated looks find the same', async () => {
  const found = [];
  for (let look = 0; look < 3; look++) found.push(await findSensitiveContent(EXAMPLES.slack![0]!));
  expect(found).toEqual(Array(3).fill({ rule: 'slack', line: 1, column: 1 }));
});

test.each([
  'Please rotate the GitHub token (it starts with ghp_) and the npm_ one, then set NPM_TOKEN in CI.',
  // biome-ignore lint/suspicious/noTemplateCurlyInString: that is how npm writes it
  'Use //registry.example.org/:_authToken=${NPM_TOKEN} or _authToken=<token> in your .npmrc.',
  'AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY and AKIAIOSFODNN7EXAMPLE are the documented examples.',
  'Connect with postgres://postgres:postgres@localhost:5432/postgres, or mysql://root:password@localhost.',
  'curl https://user:password@example.org works, and so does http://localhost:8080/a:b@c',
  '-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----',
  `-----BEGIN CERTIFICATE-----\n${base64}\n-----END CERTIFICATE-----`,
  `-----BEGIN PUBLIC KEY-----\n${base64}\n-----END PUBLIC KEY-----`,
  'export STRIPE_KEY=sk_test_... # fill in',
  'The commit is 9a87d76c1f2e4d5b6a7f8e9d0c1b2a3f4e5d6c7b and the id 018f3b1e-7c2a-7d3e-9f40-1a2b3c4d5e6f.',
  'The variables hf_model, vcr_path, shp_file and figd_x are unused; dapiece and SG.abc are too.',
  'Our own credentials start with phs_, phd_ or phc_; this one is cut: phs_aB3aB3...',
])('ordinary text is let through: %s', async (body) => {
  expect(await findSensitiveContent(body)).toBe(null);
});

test('ordinary text does not even reach the rules', () => {
  const prose =
    'The migration finished at noon; see src/db/pool.ts:45 and https://docs.example.org:8080/page?x=1 for why.\n';
  expect(mayHoldSecret(prose.repeat(10))).toBe(false);
  expect(mayHoldSecret('{"json": ["with", {"nested": "values"}], "n": 1.5}')).toBe(false);
});
