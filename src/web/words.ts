import { type Html, html } from './html.ts';

// How pages say times, spans and names.

/** "24 hours", "7 days". */
export function durationInWords(hours: number): string {
  if (hours > 24 && hours % 24 === 0) return `${hours / 24} days`;
  return hours === 1 ? '1 hour' : `${hours} hours`;
}

/** About how long, in the largest unit that says it: "3 hours". */
export function spanInWords(milliseconds: number): string {
  const minutes = Math.round(Math.abs(milliseconds) / 60_000);
  if (minutes < 1) return 'less than a minute';
  if (minutes < 60) return count(minutes, 'minute');
  const hours = Math.round(minutes / 60);
  return hours < 48 ? count(hours, 'hour') : count(Math.round(hours / 24), 'day');
}

/** "1 message", "2 messages". */
export function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`;
}

/** A moment, said by its distance; the exact time is there to point at. */
export function when(moment: Date, now: Date): Html {
  const distance = moment.getTime() - now.getTime();
  const span = spanInWords(distance);
  const words = distance > 0 ? `in ${span}` : span === 'less than a minute' ? 'just now' : `${span} ago`;
  const exact = moment.toISOString();
  return html`<time datetime="${exact}" title="${exact.slice(0, 16).replace('T', ' ')} UTC">${words}</time>`;
}

/** "a", "a and b", "a, b and c". */
export function listInWords(names: string[]): string {
  return names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} and ${names.at(-1)}`;
}

/** Cut to so many code points, with a sign that it was. */
export function shortened(text: string, length: number): string {
  const characters = [...text];
  return characters.length <= length ? text : `${characters.slice(0, length - 1).join('')}…`;
}
