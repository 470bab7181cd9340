import { type Html, html } from './html.ts';

// Drawn on 24 by 24 in lines of the text's colour. Each stands beside a word, so that none says anything alone.

function icon(size: number, lines: Html): Html {
  return html`<svg width="${size}" height="${size}" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.75" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">${lines}</svg>`;
}

/** A horn: one coil, a mouthpiece and a bell. */
export const horn = (size: number): Html =>
  icon(size, html`<circle cx="10" cy="11" r="5.5"/><path d="M2 5h8M10 16.5h4.5c2.5 0 4-1 7-4v10c-3-3-4.5-4-7-4"/>`);

export const ICONS = {
  inbox: icon(20, html`<path d="M3 13l3-8h12l3 8v6H3zM3 13h5l1.5 3h5l1.5-3h5"/>`),
  agents: icon(
    20,
    html`<circle cx="6" cy="6" r="2.5"/><circle cx="18" cy="9" r="2.5"/><circle cx="9" cy="18" r="2.5"/><path d="M8.4 6.7l7.2 1.7M6.6 8.5l1.8 7M16 10.7l-5.2 5.7"/>`,
  ),
  connections: icon(20, html`<path d="M9 7V3M15 7V3M6 7h12v4a6 6 0 0 1-12 0zM12 17v4"/>`),
  connect: icon(20, html`<circle cx="12" cy="12" r="9"/><path d="M12 8v8M8 12h8"/>`),
  activity: icon(20, html`<path d="M3 12h4l3-8 4 16 3-8h4"/>`),
  settings: icon(
    20,
    html`<path d="M4 7h9M19 7h1M4 17h1M11 17h9"/><circle cx="16" cy="7" r="2.5"/><circle cx="8" cy="17" r="2.5"/>`,
  ),
};
