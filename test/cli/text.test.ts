import { describe, expect, test } from 'vitest';
import { facts, harmless, harmlessLine, quote } from '../../src/cli/text.ts';

describe('what somebody else wrote', () => {
  test('cannot steer the terminal', () => {
    expect(harmless('a\u001b[31mred\u001b]0;title\u0007\rover\u0008\u009b1A')).toBe(
      'a\\x1b[31mred\\x1b]0;title\\x07\\x0dover\\x08\\x9b1A',
    );
  });

  test('cannot turn the direction of writing around or hide in invisible characters', () => {
    expect(harmless('user\u202etxt.exe \u2066x\u2069 \u{e0041}\u{e0042} \u200bz')).toBe(
      'user\\u{202e}txt.exe \\u{2066}x\\u{2069} \\u{e0041}\\u{e0042} \\u{200b}z',
    );
  });

  test('keeps its lines, tabs, letters and emoji', () => {
    const text = 'Zażółć\n\tgęślą 漢字 👩‍👩‍👧 🏳️‍🌈 नमस्ते';
    expect(harmless(text)).toBe(text);
  });

  test('stays on one line where there is one', () => {
    expect(harmlessLine('a\nid  forged\tb')).toBe('a\\nid  forged\\tb');
  });
});

describe('a quoted body', () => {
  test('has every line marked, those too that a terminal would have wrapped', () => {
    const body = `short\n\n${'x'.repeat(200)}\nend\n`;
    const lines = quote(body).split('\n');
    expect(lines.every((line) => line.startsWith('  > ') && line.length <= 80)).toBe(true);
    expect(lines.map((line) => line.slice(4)).join('')).toBe(body.replaceAll('\n', ''));
  });

  test('counts wide characters as two columns', () => {
    const lines = quote('漢'.repeat(76)).split('\n');
    expect(lines.map((line) => line.length)).toEqual([4 + 38, 4 + 38]);
  });

  test('cannot break out with other ends of lines', () => {
    expect(quote('a\u2028b\u0085c\u000bd\re').split('\n')).toEqual(['  > a\\u{2028}b\\x85c\\x0bd\\x0de']);
  });
});

test('facts are aligned, folded at blanks within 80 columns, and left out where there are none', () => {
  const text = facts({ id: '1', purpose: `${'word '.repeat(30)}end`, boundary: null, enabled: true }, '  ');
  expect(text.split('\n')).toEqual([
    '  id       1',
    `  purpose  ${'word '.repeat(14).trim()}`,
    `           ${'word '.repeat(14).trim()}`,
    '           word word end',
    '  enabled  yes',
  ]);
});
