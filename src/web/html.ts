/** Markup that is safe to send: whatever was not written as markup in the source is escaped in it. */
export interface Html {
  markup: string;
}

type Value = Html | string | number | null | undefined | false | Value[];

/** The one way to make markup: text that is put in is escaped, markup and lists of it are not, and nothing is left out. */
export function html(parts: TemplateStringsArray, ...values: Value[]): Html {
  return { markup: parts.map((part, index) => (index === 0 ? '' : render(values[index - 1])) + part).join('') };
}

function render(value: Value): string {
  if (value === null || value === undefined || value === false) return '';
  if (Array.isArray(value)) return value.map(render).join('');
  return typeof value === 'object' ? value.markup : escapeText(String(value));
}

function escapeText(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
