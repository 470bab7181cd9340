// npm run check: everything but the tests, all of it even if one part fails.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { packageRoot } from '../src/package-root.ts';

const migrations = (await readdir(join(packageRoot, 'sql', 'migrations'))).filter((name) => name.endsWith('.sql'));

const checks: Record<string, string[]> = {
  'types (tsc)': ['tsc', '--noEmit'],
  'format and lint (biome)': ['biome', 'check', '--error-on-warnings'],
  'generated files (npm run db:types)': ['node', 'scripts/types.ts', '--check'],
  'settings page (npm run fix)': ['node', 'scripts/settings.ts', '--check'],
  'metrics page (npm run fix)': ['node', 'scripts/metrics-page.ts', '--check'],
  'migrations (squawk)': ['squawk', ...migrations.map((name) => join('sql', 'migrations', name))],
};

for (const [name, [program = '', ...args]] of Object.entries(checks)) {
  const child = spawn(program, args, { cwd: packageRoot, stdio: 'inherit' });
  const [code] = await once(child, 'exit');
  console.log(`${code === 0 ? 'ok' : 'FAILED'}: ${name}`);
  if (code !== 0) process.exitCode = 1;
}
