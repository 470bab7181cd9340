import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../package-root.ts';

/** A file that pages load. Its address changes with what is in it, so that browsers may keep it for ever. */
export interface Asset {
  path: string;
  type: 'css' | 'js' | 'svg' | 'webmanifest';
  content: Buffer;
}

const readSource = (file: string) => readFileSync(join(packageRoot, 'src', 'web', file));

function asset(name: string, type: Asset['type'], content: Buffer): Asset {
  const hash = createHash('sha256').update(content).digest('base64url').slice(0, 12);
  return { path: `/owner/assets/${name}.${hash}.${type}`, type, content };
}

export const STYLE = asset('style', 'css', readSource('style.css'));
export const LIVE_SCRIPT = asset('live', 'js', readSource('live.js'));
export const PASSKEYS_SCRIPT = asset('passkeys', 'js', readSource('passkeys.js'));
export const PUSH_SCRIPT = asset('push', 'js', readSource('push.js'));
export const HORN = asset('horn', 'svg', readSource('horn.svg'));

/** Makes the pages an app on a home screen, as which alone an iPhone or iPad is notified. */
export const MANIFEST = asset(
  'posthorn',
  'webmanifest',
  Buffer.from(
    JSON.stringify({
      name: 'Posthorn',
      start_url: '/owner',
      scope: '/owner',
      display: 'standalone',
      icons: [{ src: HORN.path, sizes: 'any', type: 'image/svg+xml' }],
    }),
  ),
);

/** Runs in the browser where no page is open. Its address stays, since the browser asks there for a newer one. */
export const PUSH_WORKER = { path: '/owner/push-worker.js', content: readSource('push-worker.js') };
