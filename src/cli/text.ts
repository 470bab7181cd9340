// What people read. Nothing that somebody else wrote may steer the terminal, or look as if we had said it.

/** Lines are kept within this, so that a terminal never wraps a quoted line and shows its rest unquoted. */
const WIDTH = 80;

// Control characters but line feed and tab, and invisible ones, which turn the direction of writing around or hide
// text; but for the joiners, which emoji and several scripts need
const STEERS = /[^\P{Cc}\n\t]|[^\P{Cf}\u200c\u200d]|[\u2028\u2029]/gu;

/** Text of somebody else, several lines or one, with what could steer the terminal shown as escapes. */
export function harmless(text: string): string {
  return text.replace(STEERS, (character) => {
    const code = character.codePointAt(0)!.toString(16);
    return code.length <= 2 ? `\\x${code.padStart(2, '0')}` : `\\u{${code}}`;
  });
}

/** The same in one line: a label, say. */
export function harmlessLine(text: string): string {
  return harmless(text).replaceAll('\n', '\\n').replaceAll('\t', '\\t');
}

/** A body as a block in which every line, wrapped ones too, is marked as quoted. */
export function quote(body: string): string {
  const mark = '  > ';
  return harmless(body)
    .split('\n')
    .flatMap((line) => wrap(line.replaceAll('\t', '    '), WIDTH - mark.length))
    .map((line) => mark + line)
    .join('\n');
}

/** Cuts a line into pieces of at most `columns`, where a wide character takes two. */
function wrap(line: string, columns: number): string[] {
  const pieces = [''];
  let used = 0;
  for (const character of line) {
    const width = WIDE.test(character) ? 2 : 1;
    if (used + width > columns) {
      pieces.push('');
      used = 0;
    }
    pieces[pieces.length - 1] += character;
    used += width;
  }
  return pieces;
}

// East Asian wide characters and emoji, roughly: too wide a guess only wraps earlier
const WIDE =
  /\p{Emoji_Presentation}|[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{20000}-\u{3fffd}]/u;

/** One thing and what there is to know of it, each on lines of its own, aligned; what is null is left out. */
export function facts(rows: Record<string, string | number | boolean | null | undefined>, indent = ''): string {
  const shown = Object.entries(rows).filter(([, value]) => value !== null && value !== undefined);
  const names = Math.max(0, ...shown.map(([name]) => name.length));
  const margin = `\n${' '.repeat(indent.length + names + 2)}`;
  return shown
    .map(
      ([name, value]) =>
        indent + name.padEnd(names + 2) + fold(sayValue(value!), WIDTH - margin.length + 1).join(margin),
    )
    .join('\n');
}

function sayValue(value: string | number | boolean): string {
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  return harmlessLine(String(value));
}

/** Lines of ours for people, broken where they do not fit. */
export function paragraphs(text: string): string {
  return text
    .split('\n')
    .flatMap((line) => fold(line, WIDTH))
    .join('\n');
}

/** Breaks a text at blanks into lines of at most `columns`, longer words anywhere. */
function fold(text: string, columns: number): string[] {
  const lines = [''];
  for (const word of text.split(' ')) {
    const [first = '', ...rest] = wrap(word, columns);
    const joined = lines.at(-1) === '' ? first : `${lines.at(-1)} ${first}`;
    if (joined.length <= columns) lines[lines.length - 1] = joined;
    else lines.push(first);
    lines.push(...rest);
  }
  return lines;
}

/** A time for people: to the minute, in UTC, as everything here is. */
export function sayTime(time: string): string {
  return `${time.slice(0, 10)} ${time.slice(11, 16)} UTC`;
}

/** Several blocks with a blank line between them, or a sentence that says that there is none. */
export function list(blocks: string[], none: string): string {
  return blocks.length === 0 ? none : blocks.join('\n\n');
}
