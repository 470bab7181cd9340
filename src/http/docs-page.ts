import type { OpenApiDocument } from './openapi.ts';

interface Schema {
  type?: string | string[];
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  enum?: unknown[];
  items?: Schema;
  format?: string;
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
  default?: unknown;
}

/** The API as one page to read, from the OpenAPI document; no script, no request to anywhere else. */
export function docsPage(document: OpenApiDocument): string {
  const entries = Object.entries(document.paths ?? {}).flatMap(([path, item]) =>
    Object.entries(item as Record<string, { operationId: string; summary: string; description: string }>).map(
      ([method, operation]) => ({ method, path, operation }),
    ),
  );
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Posthorn API</title>
<link rel="stylesheet" href="/docs.css">
</head>
<body>
<main>
<h1>Posthorn API</h1>
<p>Base <code>${escapeHtml(document.servers?.[0]?.url ?? '')}</code>. Every call carries <code>Authorization: Bearer …</code>; JSON in and out. The same operations are MCP tools at <code>/mcp</code>. Machine-readable: <a href="/openapi.json">openapi.json</a>.</p>
<nav><ul>
${entries.map(({ method, path, operation }) => `<li><a href="#${escapeHtml(operation.operationId)}"><code>${method.toUpperCase()} ${escapeHtml(path)}</code></a> ${escapeHtml(operation.summary)}</li>`).join('\n')}
</ul></nav>
${entries.map(section).join('\n')}
<section><h2>Errors</h2><p>A refusal is <code>{"error", "retryable", "message", "request_id"}</code> and facts such as <code>fields</code>. Retryable means: the same request may succeed later with nothing else changed.</p></section>
</main>
</body>
</html>
`;
}

// biome-ignore lint/suspicious/noExplicitAny: the document is plain JSON by now
function section({ method, path, operation }: { method: string; path: string; operation: any }): string {
  const parameters = (operation.parameters ?? []).map((each: { name: string; required?: boolean; schema: Schema }) => ({
    ...each,
    in: 'query',
  }));
  const body: Schema = operation.requestBody?.content['application/json'].schema ?? {};
  const fields = [
    ...parameters.map(({ name, required, schema }: { name: string; required?: boolean; schema: Schema }) =>
      row(name, required ?? false, schema),
    ),
    ...Object.entries(body.properties ?? {}).map(([name, schema]) =>
      row(name, body.required?.includes(name) ?? false, schema),
    ),
  ];
  return `<section id="${escapeHtml(operation.operationId)}">
<h2><code>${method.toUpperCase()} ${escapeHtml(path)}</code></h2>
<p>${escapeHtml(operation.description)}</p>
${fields.length === 0 ? '' : `<table><thead><tr><th>Argument</th><th>Type</th><th>About</th></tr></thead><tbody>\n${fields.join('\n')}\n</tbody></table>`}
</section>`;
}

function row(name: string, required: boolean, schema: Schema): string {
  return `<tr><td><code>${escapeHtml(name)}</code>${required ? '' : ' <small>optional</small>'}</td><td>${escapeHtml(typeOf(schema))}</td><td>${escapeHtml(schema.description ?? '')}</td></tr>`;
}

function typeOf(schema: Schema): string {
  if (schema.enum) return schema.enum.join(' | ');
  const base =
    schema.type === 'array' ? `list of ${typeOf(schema.items ?? {})}` : (schema.format ?? String(schema.type ?? ''));
  const from = schema.minLength ?? schema.minimum;
  const to = schema.maxLength ?? schema.maximum;
  const range =
    from === undefined || to === undefined ? '' : `, ${from} to ${to}${schema.maxLength ? ' characters' : ''}`;
  const standard = schema.default === undefined ? '' : `, default ${String(schema.default)}`;
  return base + range + standard;
}

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

export const DOCS_CSS = `:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0; }
main { max-width: 56rem; margin: 0 auto; padding: 2rem 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.5rem; font-size: 1.1rem; }
code { font-family: ui-monospace, monospace; font-size: 0.9em; overflow-wrap: anywhere; }
nav ul { list-style: none; padding: 0; }
table { width: 100%; border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; vertical-align: top; padding: 0.4rem 0.6rem 0.4rem 0; border-bottom: 1px solid color-mix(in oklab, currentColor 20%, transparent); }
`;
