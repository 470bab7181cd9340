// A load client that costs almost nothing: one statement, its Bind message built once and patched in place, and
// answers that are framed but not decoded. An ordinary driver takes about 50 microseconds of CPU a query; on the
// machine that also runs the server, that would slow single-row inserts most and flatter everything else.
import type { Socket } from 'node:net';
import pg from 'pg';

/** A parameter in PostgreSQL's binary format. */
export type Parameter = Buffer | null;

export interface Call {
  /** The whole request: write it again and again. */
  bytes: Buffer;
  /** Where each parameter begins in `bytes`, for patching in place. */
  offsets: number[];
}

export interface Connection {
  /** Sends a request. Resolves with the number of rows answered; rejects with the server's message. */
  run(call: Call): Promise<number>;
  /** A request for the connection's statement. */
  call(parameters: Parameter[]): Call;
  end(): void;
}

const BIND = 0x42; // B
const EXECUTE = 0x45; // E
const PARSE = 0x50; // P
const SYNC = 0x53; // S
const DATA_ROW = 0x44; // D
const ERROR_RESPONSE = 0x45; // E
const READY_FOR_QUERY = 0x5a; // Z

/**
 * Opens a connection for one statement.
 *
 * @param options.prepared whether the statement is parsed once, or with each request as pods must do it, since a
 *   transaction pooler may stand before the server
 */
export async function openConnection(options: {
  url: string;
  text: string;
  types: number[];
  prepared: boolean;
}): Promise<Connection> {
  const client = new pg.Client({ connectionString: options.url });
  client.on('error', () => {}); // when the server stops, at the end
  await client.connect();
  // The driver has logged in; from here on the socket is ours.
  const socket = (client as unknown as { connection: { stream: Socket } }).connection.stream;
  socket.removeAllListeners('data');

  let pending: { resolve: (rows: number) => void; reject: (error: Error) => void } | undefined;
  let rest: Buffer | undefined;
  let rows = 0;
  let error: Error | undefined;
  socket.on('data', (chunk: Buffer) => {
    const input = rest ? Buffer.concat([rest, chunk]) : chunk;
    let at = 0;
    while (input.length - at >= 5) {
      const end = at + 1 + input.readUInt32BE(at + 1);
      if (end > input.length) break;
      const type = input[at];
      if (type === DATA_ROW) rows += 1;
      else if (type === ERROR_RESPONSE) error = new Error(input.toString('utf8', at + 5, end).replaceAll('\0', ' '));
      else if (type === READY_FOR_QUERY) settle();
      at = end;
    }
    rest = at < input.length ? input.subarray(at) : undefined;
  });
  socket.on('error', (cause) => pending?.reject(cause));

  function settle(): void {
    const waiting = pending;
    const [answered, failure] = [rows, error];
    pending = undefined;
    rows = 0;
    error = undefined;
    if (failure) waiting?.reject(failure);
    else waiting?.resolve(answered);
  }

  function send(bytes: Buffer): Promise<number> {
    return new Promise((resolve, reject) => {
      pending = { resolve, reject };
      socket.write(bytes);
    });
  }

  const parse = message(
    PARSE,
    Buffer.concat([Buffer.from(`\0${options.text}\0`), int16(options.types.length), ...options.types.map(int32)]),
  );
  if (options.prepared) await send(Buffer.concat([parse, SYNC_MESSAGE]));
  const head = options.prepared ? Buffer.alloc(0) : parse;
  return {
    run: (call) => send(call.bytes),
    call: (parameters) => buildCall(head, parameters),
    end: () => {
      socket.removeAllListeners('error');
      socket.on('error', () => {});
      socket.destroy();
    },
  };
}

function buildCall(head: Buffer, parameters: Parameter[]): Call {
  // portal and statement without names; all parameters binary, all results text
  const parts = [Buffer.from('\0\0'), int16(1), int16(1), int16(parameters.length)];
  const offsets: number[] = [];
  let length = head.length + 5 + 8;
  for (const parameter of parameters) {
    offsets.push(length + 4);
    length += 4 + (parameter?.length ?? 0);
    parts.push(int32(parameter ? parameter.length : -1), parameter ?? Buffer.alloc(0));
  }
  parts.push(int16(0));
  const execute = message(EXECUTE, Buffer.concat([Buffer.from('\0'), int32(0)]));
  return { bytes: Buffer.concat([head, message(BIND, Buffer.concat(parts)), execute, SYNC_MESSAGE]), offsets };
}

function message(type: number, body: Buffer): Buffer {
  return Buffer.concat([Buffer.from([type]), int32(body.length + 4), body]);
}

const SYNC_MESSAGE = message(SYNC, Buffer.alloc(0));

function int16(value: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeInt16BE(value);
  return bytes;
}

export function int32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(value);
  return bytes;
}

/** Of PostgreSQL's types; fixed numbers of its catalog. */
export const OID = {
  bool: 16,
  bytea: 17,
  int4: 23,
  text: 25,
  uuid: 2950,
  boolArray: 1000,
  byteaArray: 1001,
  int4Array: 1007,
  textArray: 1009,
  uuidArray: 2951,
};

const ARRAY_HEADER_BYTES = 20;

/** A one-dimensional array in binary format. */
export function binaryArray(elementType: number, elements: Parameter[]): Buffer {
  const parts = [
    int32(1),
    int32(elements.includes(null) ? 1 : 0),
    int32(elementType),
    int32(elements.length),
    int32(1),
  ];
  for (const element of elements) parts.push(int32(element ? element.length : -1), element ?? Buffer.alloc(0));
  return Buffer.concat(parts);
}

/** Where element `index` begins in an array whose elements all have `size` bytes. */
export function elementOffset(index: number, size: number): number {
  return ARRAY_HEADER_BYTES + index * (4 + size) + 4;
}

export function uuidBytes(id: string): Buffer {
  return Buffer.from(id.replaceAll('-', ''), 'hex');
}
