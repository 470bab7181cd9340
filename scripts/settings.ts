// Writes docs/settings.md out of src/config.ts (part of npm run fix). With --check it only compares.
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { SETTINGS } from '../src/config.ts';
import { packageRoot } from '../src/package-root.ts';

const path = join(packageRoot, 'docs', 'settings.md');
const page = writePage();

if (!process.argv.includes('--check')) await writeFile(path, page);
else if ((await readFile(path, 'utf8').catch(() => '')) !== page) {
  console.error('docs/settings.md is out of date. Run npm run fix.');
  process.exitCode = 1;
}

function writePage(): string {
  return `# What can be set?

Everything is an environment variable, checked at start: a value that cannot be is refused by name. \`posthorn doctor\`
tells of misspelt ones. A variable that is set to nothing counts as not set.

## The server

\`start\` needs none of them. \`serve\` and \`worker\` need \`POSTHORN_DATABASE_URL\`, and \`serve\` the key ring.

${table('server')}

## The commands of an agent

\`status\`, \`messages …\`, \`proposals …\` and \`mcp serve\`. Options on the command line win over these, and these over the
configuration file.

${table('client')}

Numbers that an operator may change while the server runs (limits, lifetimes) are in the database:
\`select * from ops.limits\`.
`;
}

function table(of: 'server' | 'client'): string {
  const rows = Object.entries(SETTINGS)
    .filter(([, setting]) => setting.of === of)
    .map(([name, { standard, about }]) => `| \`${name}\` | ${about} | ${standard} |`);
  return ['| variable | what | default |', '|---|---|---|', ...rows].join('\n');
}
