import fc from 'fast-check';

/** Stands in all text that these tests make up: it may come back in no error and in no line of the log. */
export const MARK = 'zq7x';

export type Arguments = Record<string, unknown>;

/** As deep as the tools of these tests can follow; json-bodies.test.ts sends what is deeper. */
const DEPTH = 200;

function nested(): unknown {
  let value: unknown = MARK;
  for (let depth = 0; depth < DEPTH; depth++) value = depth % 2 === 0 ? [value] : { a: value };
  return value;
}

/** What decoders, databases, patterns, terminals and pages stumble over. */
const STUMBLES = [
  '\0',
  '\ud800',
  '\udc00 and more',
  '\u202e',
  '\u2028',
  '\r\nX-Injected: 1',
  '\u001b[2J',
  '\ufeff',
  '%00',
  '%2e%2e%2f',
  '../../etc/passwd',
  '"; drop table posthorn.owners; --',
  "' or 1=1 --",
  '{{7*7}} <%= 7*7 %>',
  '<script>alert(1)</script>',
  '\\u0000',
  '{"error":"unavailable"}',
  'infinity',
];

/** Text of any kind, each with the mark. */
export const hostileText: fc.Arbitrary<string> = fc
  .oneof(
    { weight: 3, arbitrary: fc.string({ unit: 'binary', maxLength: 40 }) },
    { weight: 3, arbitrary: fc.constantFrom(...STUMBLES) },
    { weight: 1, arbitrary: fc.integer({ min: 60, max: 30_000 }).map((length) => 'x'.repeat(length)) },
  )
  .map((text) => MARK + text);

/** Numbers at the edges of the types that a number is put into on its way. */
const EDGES = [0, -0, -1, 0.5, 1e308, -1e308, 5e-324, 2 ** 31 - 1, 2 ** 31, 2 ** 32, 2 ** 53, -(2 ** 63), 1e21];

/** A JSON value of any kind in place of what should stand there. */
export const hostileValue: fc.Arbitrary<unknown> = fc.oneof(
  { weight: 4, arbitrary: hostileText },
  { weight: 2, arbitrary: fc.constantFrom<unknown>(null, true, false, '', [], {}, [[]], [null]) },
  { weight: 2, arbitrary: fc.constantFrom(...EDGES) },
  { weight: 1, arbitrary: fc.array(hostileText, { minLength: 1, maxLength: 200 }) },
  { weight: 1, arbitrary: fc.dictionary(hostileText, fc.constantFrom<unknown>(null, 1, 'x'), { maxKeys: 3 }) },
  { weight: 1, arbitrary: fc.constant(null).map(nested) },
  { weight: 1, arbitrary: fc.constant(JSON.parse('{"__proto__": {"isAdmin": true}}')) },
);

/** Names of fields that no operation has. What looks like a name may be said back, so it holds no mark. */
const unknownName = fc.oneof(
  fc.constantFrom('__proto__', 'constructor', 'hasOwnProperty', 'toString', 'then', 'subject', 'AGENT_ID', 'owner_id'),
  hostileText.map((text) => ` ${text}`),
);

/** Arguments with one thing wrong, or two or three; `names` are those that the operation has. */
export function spoiled(valid: fc.Arbitrary<Arguments>, names: string[]): fc.Arbitrary<Arguments> {
  const changes: fc.Arbitrary<(input: Arguments) => Arguments>[] = [
    fc.tuple(unknownName, hostileValue).map(
      ([name, value]) =>
        (input) =>
          withField(input, name, value),
    ),
  ];
  if (names.length > 0) {
    const known = fc.constantFrom(...names);
    changes.push(
      fc.tuple(known, hostileValue).map(
        ([name, value]) =>
          (input) =>
            withField(input, name, value),
      ),
      known.map((name) => (input) => Object.fromEntries(Object.entries(input).filter(([each]) => each !== name))),
    );
  }
  return fc
    .tuple(valid, fc.array(fc.oneof(...changes), { minLength: 1, maxLength: 3 }))
    .map(([input, chosen]) => chosen.reduce((spoilt, change) => change(spoilt), input));
}

/** As JSON.parse sets it: `__proto__` becomes a field like any other. */
function withField(input: Arguments, name: string, value: unknown): Arguments {
  return Object.fromEntries([...Object.entries(input), [name, value]]);
}
