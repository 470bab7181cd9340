// The calls of the send bench over the lean client: raw inserts, batches of sends and lone sends.
import { randomBytes, randomFillSync } from 'node:crypto';
import { pick, type Sender } from './tenants.ts';
import {
  binaryArray,
  type Call,
  type Connection,
  elementOffset,
  int32,
  OID,
  openConnection,
  uuidBytes,
} from './wire.ts';

const BODY_BYTES = 1024;
/** Format byte, nonce and tag of a sealed body. */
const SEAL_BYTES = 29;

export async function openRawInserter(url: string): Promise<() => Promise<number>> {
  const connection = await openConnection({
    url,
    text: 'insert into bench.raw (body) values ($1)',
    types: [OID.bytea],
    prepared: true,
  });
  const call = connection.call([randomBytes(BODY_BYTES + SEAL_BYTES)]);
  return () => connection.run(call);
}

const SEND =
  'select * from posthorn_api.send_messages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)';
const SEND_TYPES = [
  OID.byteaArray,
  OID.uuidArray,
  OID.textArray,
  OID.byteaArray,
  OID.uuidArray,
  OID.uuidArray,
  OID.uuidArray,
  OID.uuidArray,
  OID.boolArray,
  OID.uuidArray,
  OID.int4Array,
  OID.uuidArray,
  OID.int4Array,
  OID.uuidArray,
  OID.uuidArray,
  OID.byteaArray,
];
/** Positions of the parameters that differ in every call. */
const KEYS = 2;
const MESSAGE_IDS = 14;
const KEY_LENGTH = 32;

/**
 * A lane of pair sends within the given senders' groups.
 *
 * @returns a function that sends one batch of fresh messages
 */
export async function openLane(url: string, senders: Sender[], batchSize: number): Promise<() => Promise<number>> {
  const connection = await openConnection({ url, text: SEND, types: SEND_TYPES, prepared: false });
  const batches = Array.from({ length: 64 }, () =>
    buildBatch(
      connection,
      Array.from({ length: batchSize }, () => pick(senders)),
    ),
  );
  return async () => {
    const call = pick(batches);
    refresh(call, batchSize);
    const answered = await connection.run(call);
    if (answered !== batchSize) throw new Error(`${answered} outcomes of a batch of ${batchSize}`);
    return answered;
  };
}

function buildBatch(connection: Connection, senders: Sender[]): Call {
  const each = <T>(make: (sender: Sender, index: number) => T): T[] => senders.map(make);
  const groups = binaryArray(
    OID.uuid,
    each(({ groupId }) => uuidBytes(groupId)),
  );
  const recipients = binaryArray(
    OID.uuid,
    each(({ peers }) => uuidBytes(pick(peers))),
  );
  const nulls = binaryArray(
    OID.uuid,
    each(() => null),
  );
  return connection.call([
    binaryArray(
      OID.bytea,
      each(({ credentialHash }) => credentialHash),
    ),
    binaryArray(
      OID.uuid,
      each(({ agentId }) => uuidBytes(agentId)),
    ),
    binaryArray(
      OID.text,
      each(() => Buffer.alloc(KEY_LENGTH, '0')),
    ),
    binaryArray(
      OID.bytea,
      each(() => randomBytes(32)),
    ),
    recipients,
    groups,
    nulls, // conversations
    nulls, // replies
    binaryArray(
      OID.bool,
      each(() => Buffer.from([0])),
    ),
    groups, // planned
    binaryArray(
      OID.int4,
      each(() => int32(1)),
    ),
    nulls, // posts
    binaryArray(
      OID.int4,
      each((_, index) => int32(index + 1)),
    ),
    recipients, // of the copies
    binaryArray(
      OID.uuid,
      each(() => Buffer.alloc(16)),
    ),
    binaryArray(
      OID.bytea,
      each(() => randomBytes(BODY_BYTES + SEAL_BYTES)),
    ),
  ]);
}

/** Gives every item of a built batch a new key and every copy a new id. */
function refresh({ bytes, offsets }: Call, size: number): void {
  for (let index = 0; index < size; index++) {
    const id = (offsets[MESSAGE_IDS] ?? 0) + elementOffset(index, 16);
    writeId(bytes, id);
    // the id's own digits make the key
    bytes.write(bytes.toString('hex', id, id + 16), (offsets[KEYS] ?? 0) + elementOffset(index, KEY_LENGTH), 'latin1');
  }
}

/** A UUID of version 7: its order in time is what keeps the indexes of ids warm. */
function writeId(bytes: Buffer, at: number): void {
  randomFillSync(bytes, at, 16);
  bytes.writeUIntBE(Date.now(), at, 6);
  bytes[at + 6] = 0x70 | ((bytes[at + 6] ?? 0) & 0x0f);
  bytes[at + 8] = 0x80 | ((bytes[at + 8] ?? 0) & 0x3f);
}
