import { type Html, html } from './html.ts';

/** A whole page. Layout is here alone: pages give their content and nothing else. */
export function page(title: string, content: Html): string {
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${title} · Posthorn</title>
<link rel="stylesheet" href="/owner/style.css">
</head>
<body>
<main>
<h1>${title}</h1>
${content}
</main>
</body>
</html>
`.markup;
}

export const STYLE = `:root {
  color-scheme: light dark;
  --surface: light-dark(oklch(98.5% 0.003 250), oklch(20% 0.01 250));
  --raised: light-dark(oklch(100% 0 0), oklch(25% 0.012 250));
  --text: light-dark(oklch(25% 0.02 250), oklch(93% 0.01 250));
  --quiet: light-dark(oklch(45% 0.02 250), oklch(75% 0.015 250));
  --line: light-dark(oklch(88% 0.01 250), oklch(36% 0.015 250));
  --accent: light-dark(oklch(45% 0.13 250), oklch(80% 0.1 250));
  --on-accent: light-dark(oklch(99% 0 0), oklch(20% 0.02 250));
  --danger: light-dark(oklch(47% 0.17 25), oklch(78% 0.12 25));
  font: 16px/1.5 system-ui, sans-serif;
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--surface); color: var(--text); }
main { max-width: 40rem; margin: 0 auto; padding: 2.5rem 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 1rem; text-wrap: balance; }
p, ul, fieldset { margin: 0 0 1rem; }
a { color: var(--accent); }
code { font-family: ui-monospace, monospace; font-size: 0.9em; overflow-wrap: anywhere; }
small, .quiet { color: var(--quiet); font-size: 0.875rem; }
.card { background: var(--raised); border: 1px solid var(--line); border-radius: 0.5rem; padding: 1rem; margin: 0 0 1rem; }
.who { font-size: 1.25rem; font-weight: 600; overflow-wrap: anywhere; }
.code { font: 600 1.5rem ui-monospace, monospace; letter-spacing: 0.05em; }
.warning { color: var(--danger); }
fieldset { border: 1px solid var(--line); border-radius: 0.5rem; padding: 0.75rem 1rem; }
label { display: block; padding: 0.25rem 0; }
input[type="text"] { font: inherit; width: 100%; padding: 0.5rem 0.75rem; border: 1px solid var(--line); border-radius: 0.375rem; background: var(--raised); color: inherit; }
button { font: inherit; min-height: 2.75rem; padding: 0 1.25rem; border-radius: 0.375rem; border: 1px solid var(--line); background: var(--raised); color: inherit; cursor: pointer; }
button.main { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.actions { display: flex; flex-wrap: wrap; gap: 0.75rem; }
`;
