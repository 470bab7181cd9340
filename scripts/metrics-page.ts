// Writes docs/metrics.md out of src/metrics.ts (part of npm run fix). With --check it only compares.
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { registry } from '../src/metrics.ts';
import { packageRoot } from '../src/package-root.ts';

const path = join(packageRoot, 'docs', 'metrics.md');
const page = writePage();

if (!process.argv.includes('--check')) await writeFile(path, page);
else if ((await readFile(path, 'utf8').catch(() => '')) !== page) {
  console.error('docs/metrics.md is out of date. Run npm run fix.');
  process.exitCode = 1;
}

function writePage(): string {
  return `# What can be watched?

## Metrics

With \`POSTHORN_METRICS_PORT\` set, \`serve\`, \`worker\` and \`start\` answer \`GET /metrics\` there, for Prometheus and without
a password: keep that port inside. Nothing on the page is about an owner, an agent or a message.

${table()}

Beside these are the usual ones of a Node.js process (\`process_…\`, \`nodejs_…\`): memory, CPU, delay of the event loop.
What is stored (requests that wait, inboxes, jobs behind) is in the views of schema \`ops\`: see
[Run it for others](operate.md).

Worth an alarm: \`posthorn_listener_listening\` at 0 for a minute (mail is heard of after seconds, not at once);
\`posthorn_sends_total{outcome="unavailable"}\` that grows; \`posthorn_pool_waiting\` above 0 for long (the pods wait for the
database); \`posthorn_jobs_total{outcome="failed"}\` that grows.

## Traces

With the standard variable \`OTEL_EXPORTER_OTLP_ENDPOINT\` (a collector that takes OTLP over HTTP; \`OTEL_EXPORTER_OTLP_HEADERS\`,
\`OTEL_SERVICE_NAME\` and \`OTEL_RESOURCE_ATTRIBUTES\` work too) each request is a trace: the route, the operation, the batch
it went with, the SQL functions. Sends of several callers share a batch; it belongs to the first one's trace and is linked
with the others'. Spans hold names, codes and \`posthorn.request_id\`, and nothing that anybody wrote. A \`traceparent\` that a
caller sends is not believed. All requests are traced; sample in the collector.

## Logs

JSON lines on stderr. Each request has one, with its \`requestId\` (the answer's \`X-Request-Id\` and an error's \`request_id\`),
the pattern of the route, status, error code and milliseconds; each tool call has another, with the tool's name.
`;
}

function table(): string {
  const rows = registry
    .getMetricsAsArray()
    .filter(({ name }) => name.startsWith('posthorn_'))
    .map((metric) => metric as typeof metric & { labelNames: string[] })
    .map(({ name, type, labelNames, help }) => `| \`${name}\` | ${type} | ${labels(labelNames)} | ${help} |`);
  return ['| metric | kind | labels | what |', '|---|---|---|---|', ...rows].join('\n');
}

function labels(names: string[]): string {
  const own = names.filter((name) => name !== 'le');
  return own.length === 0 ? '–' : own.map((name) => `\`${name}\``).join(', ');
}
