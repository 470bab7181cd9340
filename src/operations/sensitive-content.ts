/** Where a secret was seen; never the secret itself. */
export interface SensitiveFinding {
  /** The kind of secret, such as `github` or `privatekey`. */
  rule: string;
  /** From 1. */
  line: number;
  /** From 1, in Unicode code points. */
  column: number;
}

/**
 * Looks for private keys, access tokens of known services and URLs with a password. The rules are secretlint's; they
 * run only on text that holds one of the marks without which none of them can match, so that ordinary text costs
 * microseconds. Nothing leaves the process.
 *
 * @returns the first secret's kind and place, or null
 */
export async function findSensitiveContent(text: string): Promise<SensitiveFinding | null> {
  if (!mayHoldSecret(text)) return null;
  rules ??= loadRules();
  const findSecrets = await rules;
  const first = (await findSecrets(text)).toSorted((a, b) => a.index - b.index)[0];
  return first ? { rule: first.rule, ...placeOf(text, first.index) } : null;
}

/**
 * Whether the rules need to look. Never narrower than they are: each mark is what every match of a rule holds, in the
 * same case or in any.
 */
export function mayHoldSecret(text: string): boolean {
  return MARKS.test(text) || ESCAPED_JSON.test(text);
}

const ANY_CASE = (word: string) => word.replaceAll(/[a-z]/g, (letter) => `[${letter}${letter.toUpperCase()}]`);

const MARKS = new RegExp(
  [
    'PRIVATE KEY|private_key', // privatekey, gcp
    `${ANY_CASE('secret')}_?${ANY_CASE('access')}_?${ANY_CASE('key')}`, // aws
    'npm_|_authToken=|:x-oauth-basic@', // npm
    `xox[abopr]-|xapp-|${ANY_CASE('hooks.slack.com').replaceAll('.', '\\.')}`, // slack
    '://[-\\w]{1,256}:[-\\w]{1,256}@', // basicauth
    `${ANY_CASE('mongodb')}(?:\\+${ANY_CASE('srv')})?://|${ANY_CASE('mysql')}[xX]?://|${ANY_CASE('postgres')}(?:${ANY_CASE('ql')})?://`, // database-connection-string
    'T3BlbkFJ', // openai
    'sk-ant-', // anthropic
    'gsk_', // groq
    'hf_', // huggingface
    'lin_api_', // linear
    'ntn_', // notion
    'SG\\.\\w', // sendgrid
    'shp(?:pa|ca|at|ss)_', // shopify
    '[sr]k_(?:live|test)_', // stripe
    'gh[pousr]_|github_pat_', // github
    'glpat-', // gitlab
    'glc_|glsa_', // grafana
    'ops_ey', // 1password
    'hv[sbr]\\.[-\\w]', // hashicorp-vault
    'vc[piark]_', // vercel
    'dapi[A-Fa-f0-9]{8}', // databricks
    'dckr_pat_', // docker
    'figd_', // figma
    'cfk_|cf[ua]t_', // cloudflare
    'tskey-', // tailscale
    'ph[cds]_', // ours
  ].join('|'),
);

/** The gcp rule parses JSON, where a mark can be spelled with escapes. */
const ESCAPED_JSON = /^\s*\{[\s\S]*\\u00/;

/** A secret that a rule saw, by where it starts in UTF-16 units. */
interface Match {
  rule: string;
  index: number;
}

let rules: Promise<(text: string) => Promise<Match[]>> | undefined;

/** Some rules look only into files of a certain name; a body may hold what any of them looks for. */
const FILES = [
  { filePath: 'package.json', ext: '.json' },
  { filePath: '.npmrc', ext: '' },
];

const RULE_PREFIX = '@secretlint/secretlint-rule-';

/** A comment that switches the rules off, which a sender must not be able to do. */
const SWITCH_OFF_RULE = `${RULE_PREFIX}filter-comments`;

/** As makeCredential makes them: they would let a peer act as the sender. */
const OUR_CREDENTIAL = /(?<![A-Za-z0-9])ph[cds]_[\w-]{43}(?![\w-])/g;

/** What stands where a token would: `${NPM_TOKEN}`, `<token>`, `{{token}}`, `$TOKEN`. */
const PLACEHOLDERS: Record<string, { allows: string[] }> = { [`${RULE_PREFIX}npm`]: { allows: ['/^["\'`]?[<${]/'] } };

/** Loaded at the first suspicion, since they take some forty milliseconds. */
async function loadRules(): Promise<(text: string) => Promise<Match[]>> {
  const [{ lintSource }, preset, { secretLintProfiler }] = await Promise.all([
    import('@secretlint/core'),
    import('@secretlint/secretlint-rule-preset-recommend'),
    import('@secretlint/profiler'),
  ]);
  // it is on by default and keeps an entry for every rule and call
  secretLintProfiler.setEnabled(false);
  const config = {
    rules: preset.rules
      .filter((rule) => rule.meta.id !== SWITCH_OFF_RULE)
      .map((rule) => ({ id: rule.meta.id, rule, options: PLACEHOLDERS[rule.meta.id] ?? {} })),
  };
  return async (text) => {
    const results = await Promise.all(
      FILES.map((file) =>
        lintSource({
          source: { ...file, content: text, contentType: 'text' },
          options: { config: config as never, maskSecrets: true, noPhysicFilePath: true },
        }),
      ),
    );
    const matches = results.flatMap(({ messages }) => messages);
    return [
      ...matches.map(({ ruleId, range }) => ({ rule: ruleId.replace(RULE_PREFIX, ''), index: range[0] })),
      ...[...text.matchAll(OUR_CREDENTIAL)].map(({ index }) => ({ rule: 'posthorn', index })),
    ];
  };
}

function placeOf(text: string, index: number): { line: number; column: number } {
  const before = text.slice(0, index).split('\n');
  return { line: before.length, column: [...before.at(-1)!].length + 1 };
}
