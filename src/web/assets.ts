import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../package-root.ts';

/** A file that pages load. Its address changes with what is in it, so that browsers may keep it for ever. */
export interface Asset {
  path: string;
  type: 'css' | 'js' | 'svg';
  content: Buffer;
}

function readAsset(name: string, type: Asset['type']): Asset {
  const content = readFileSync(join(packageRoot, 'src', 'web', `${name}.${type}`));
  const hash = createHash('sha256').update(content).digest('base64url').slice(0, 12);
  return { path: `/owner/assets/${name}.${hash}.${type}`, type, content };
}

export const STYLE = readAsset('style', 'css');
export const LIVE_SCRIPT = readAsset('live', 'js');
export const PASSKEYS_SCRIPT = readAsset('passkeys', 'js');
export const HORN = readAsset('horn', 'svg');
