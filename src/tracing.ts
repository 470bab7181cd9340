import {
  type Attributes,
  type Context,
  context,
  INVALID_SPAN_CONTEXT,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api';
import { toPosthornError } from './errors.ts';

export { type Context, context, ROOT_CONTEXT, SpanKind, SpanStatusCode };

/** Keeps nothing; what spans are while nobody traces. */
const NO_SPAN = trace.wrapSpanContext(INVALID_SPAN_CONTEXT);

let isTracing = false;

interface SpanOptions {
  kind?: SpanKind;
  attributes?: Attributes;
  /** What the work is part of; without it whatever is under way here. */
  parent?: Context;
  /** What else it is done for. */
  others?: Context[];
}

/**
 * Does work within a span. Spans are named by routes, operations and SQL functions, and hold nothing that anybody
 * wrote; of a failure they keep the code. Costs a call until somebody starts tracing.
 */
export async function inSpan<T>(
  name: string,
  { kind = SpanKind.INTERNAL, attributes, parent = context.active(), others = [] }: SpanOptions,
  work: (span: Span) => Promise<T>,
): Promise<T> {
  if (!isTracing) return await work(NO_SPAN);
  const links = others.flatMap((other) => trace.getSpanContext(other) ?? []).map((linked) => ({ context: linked }));
  // asked anew each time: a tracer stays with the collector that it had first, or with none
  return await trace.getTracer('posthorn').startActiveSpan(name, { kind, attributes, links }, parent, async (span) => {
    try {
      return await work(span);
    } catch (error) {
      span.setStatus({ code: SpanStatusCode.ERROR, message: toPosthornError(error).code });
      throw error;
    } finally {
      span.end();
    }
  });
}

/**
 * Sends spans to an OpenTelemetry collector if the standard variables name one (OTEL_EXPORTER_OTLP_ENDPOINT or
 * OTEL_EXPORTER_OTLP_TRACES_ENDPOINT; headers, service name and attributes are read from theirs). The SDK is loaded only
 * then. Every request is the start of a trace of its own: what a caller says about its trace is text of a stranger.
 *
 * @returns how to stop: what is left is sent
 */
export async function startTracing(env: NodeJS.ProcessEnv): Promise<() => Promise<void>> {
  if (!env.OTEL_EXPORTER_OTLP_ENDPOINT && !env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) return async () => {};
  const [
    { AsyncLocalStorageContextManager },
    { OTLPTraceExporter },
    resources,
    { BatchSpanProcessor, TracerProvider },
  ] = await Promise.all([
    import('@opentelemetry/context-async-hooks'),
    import('@opentelemetry/exporter-trace-otlp-http'),
    import('@opentelemetry/resources'),
    import('@opentelemetry/sdk-trace'),
  ]);
  const { resourceAttributesEnvDetector, serviceNameEnvDetector } = resources;
  const given = resources.detectResources({ detectors: [resourceAttributesEnvDetector, serviceNameEnvDetector] });
  const provider = new TracerProvider({
    resource: resources.resourceFromAttributes({ 'service.name': 'posthorn' }).merge(given),
    spanProcessors: [new BatchSpanProcessor({ exporter: new OTLPTraceExporter() })],
  });
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  trace.setGlobalTracerProvider(provider);
  isTracing = true;
  return async () => {
    isTracing = false;
    await provider.shutdown();
    trace.disable();
    context.disable();
  };
}
