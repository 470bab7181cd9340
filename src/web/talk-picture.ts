import { type Html, html } from './html.ts';
import { listInWords, shortened } from './words.ts';

const WIDTH = 480;
const HEIGHT = 320;
/** More would stand on each other; those who may talk come first. */
const MAX_AGENTS = 16;
const MAX_LABEL = 14;

interface PicturedAgent {
  id: string;
  label: string;
  isLive: boolean;
}

/**
 * Who may talk to whom: agents in a ring, a line between two that share a collaboration, the thicker the more they
 * share. It says nothing that the list of collaborations does not say in words.
 */
export function talkPicture(agents: PicturedAgent[], groups: { name: string; agentIds: string[] }[]): Html {
  const isTalking = (agent: PicturedAgent) => groups.some(({ agentIds }) => agentIds.includes(agent.id));
  const shown = agents.toSorted((one, other) => Number(isTalking(other)) - Number(isTalking(one))).slice(0, MAX_AGENTS);
  const places = new Map(shown.map((agent, index) => [agent.id, placeOf(index, shown.length)]));
  const summary = groups.map(
    ({ name, agentIds }) =>
      `${name}: ${listInWords(agentIds.map((id) => agents.find((agent) => agent.id === id)?.label ?? 'another'))}`,
  );
  return html`<figure class="stack tight">
<svg class="picture" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${
    summary.length === 0 ? 'No agent may talk to another.' : `Who may talk to whom. ${summary.join('. ')}.`
  }">
${[...sharedPairs(groups)].map(([pair, shared]) => {
  const [from, to] = pair.split(' ').map((id) => places.get(id));
  if (!from || !to) return null;
  return html`<line x1="${from.x}" y1="${from.y}" x2="${to.x}" y2="${to.y}" stroke-width="${Math.min(2 * shared, 8)}"/>`;
})}
${shown.map((agent) => pictured(agent, places.get(agent.id)!))}
</svg>
${agents.length > shown.length && html`<figcaption class="quiet">And ${agents.length - shown.length} more agents, listed below.</figcaption>`}
</figure>`;
}

interface PlaceInRing {
  x: number;
  y: number;
  /** From -1, left, to 1, right. */
  side: number;
  /** From -1, top, to 1, bottom. */
  height: number;
}

function placeOf(index: number, total: number): PlaceInRing {
  // two stand beside each other; from three on the first is at the top
  const angle = (index / total) * 2 * Math.PI - (total === 2 ? Math.PI : Math.PI / 2);
  const side = Math.cos(angle);
  const height = Math.sin(angle);
  return { x: Math.round(WIDTH / 2 + side * 104), y: Math.round(HEIGHT / 2 + height * 116), side, height };
}

function pictured({ label, isLive }: PicturedAgent, { x, y, side, height }: PlaceInRing): Html {
  const isBeside = Math.abs(side) > 0.2;
  const anchor = isBeside ? (side > 0 ? 'start' : 'end') : 'middle';
  const textX = isBeside ? x + Math.sign(side) * 18 : x;
  const textY = isBeside ? y + 5 : y + (height > 0 ? 30 : -18);
  return html`<g${isLive && html` class="live"`}><circle cx="${x}" cy="${y}" r="9"/><text x="${textX}" y="${textY}" text-anchor="${anchor}">${shortened(label, MAX_LABEL)}</text></g>`;
}

function sharedPairs(groups: { agentIds: string[] }[]): Map<string, number> {
  const pairs = new Map<string, number>();
  for (const { agentIds } of groups)
    for (const [index, one] of agentIds.entries())
      for (const other of agentIds.slice(index + 1)) {
        const pair = [one, other].toSorted().join(' ');
        pairs.set(pair, (pairs.get(pair) ?? 0) + 1);
      }
  return pairs;
}
