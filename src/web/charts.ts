import { type Html, html } from './html.ts';

const WIDTH = 250;
const HEIGHT = 64;

/** One number over time, as bars: the latest in words, the rest to look at. */
export function barChart(chart: {
  title: string;
  values: number[];
  /** How a value is said. */
  inWords(value: number): string;
  from: string;
  to: string;
}): Html {
  const { title, values, inWords, from, to } = chart;
  const most = Math.max(...values);
  const step = WIDTH / values.length;
  const heightOf = (value: number) => (value === 0 ? 0 : Math.max(2, Math.round((value / most) * (HEIGHT - 2))));
  return html`<figure class="card chart">
<figcaption class="quiet">${title}</figcaption>
<p class="figure">${inWords(values.at(-1) ?? 0)}</p>
<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${title}: now ${inWords(values.at(-1) ?? 0)}, at most ${inWords(most)}.">
<rect class="ground" x="0" y="${HEIGHT - 1}" width="${WIDTH}" height="1"/>
${values.map((value, index) => {
  const height = heightOf(value);
  return (
    height > 0 &&
    html`<rect x="${(index * step + 1).toFixed(1)}" y="${HEIGHT - height}" width="${(step - 2).toFixed(1)}" height="${height}"/>`
  );
})}
</svg>
<p class="scale quiet"><span>${from}</span><span>at most ${inWords(most)}</span><span>${to}</span></p>
</figure>`;
}
