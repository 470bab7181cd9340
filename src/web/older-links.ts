import { type Html, html } from './html.ts';
import type { OlderList, Reader } from './reader.ts';

/** Rows of a list of what is past that one page shows. */
const PAGE_SIZE = 50;

/**
 * One page of a list of what is past, with links to the others, which work without a script.
 *
 * @param list its name in the address
 * @param path the page that it is on, with the part to look at
 * @param read answers up to so many rows behind an id
 */
export async function olderPage<Row>(
  { older }: Reader,
  list: OlderList,
  path: `/owner${string}#${string}`,
  read: (place: { after: string | undefined; limit: number }) => Promise<Row[]>,
  idOf: (row: Row) => string,
): Promise<{ rows: Row[]; isContinued: boolean; links: Html }> {
  const after = older(list);
  const found = await read({ after, limit: PAGE_SIZE + 1 });
  const rows = found.slice(0, PAGE_SIZE);
  const next = found.length > PAGE_SIZE && idOf(rows.at(-1)!);
  const [place, part] = path.split('#');
  const links = html`<p class="row apart">${after === undefined ? html`<span></span>` : html`<a href="${path}">The latest</a>`}${
    next !== false && html`<a href="${place}?${list}=${next}#${part}">Older</a>`
  }</p>`;
  return { rows, isContinued: after !== undefined, links };
}
