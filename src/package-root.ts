import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';

/**
 * The folder that holds this package's package.json, and with it sql/ and jobs/. Found by walking up,
 * since this file runs both as src/package-root.ts and, published, as dist/src/package-root.js.
 */
export const packageRoot = findPackageRoot(import.meta.dirname);

function findPackageRoot(folder: string): string {
  if (existsSync(join(folder, 'package.json'))) return folder;
  const parent = dirname(folder);
  if (parent === folder) throw new Error(`No package.json above ${import.meta.dirname}`);
  return findPackageRoot(parent);
}
