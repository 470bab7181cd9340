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

/** The parameters of posthorn_api.send_messages. */
const PARAMETERS = {
  p_credentials: OID.byteaArray,
  p_agent_ids: OID.uuidArray,
  p_keys: OID.textArray,
  p_fingerprints: OID.byteaArray,
  p_recipient_agent_ids: OID.uuidArray,
  p_group_ids: OID.uuidArray,
  p_conversation_ids: OID.uuidArray,
  p_replies_to: OID.uuidArray,
  p_purposes: OID.textArray,
  p_names: OID.textArray,
  p_durations_hours: OID.int4Array,
  p_sensitive: OID.boolArray,
  p_planned_group_ids: OID.uuidArray,
  p_planned_generations: OID.int4Array,
  p_hold_ids: OID.uuidArray,
  p_post_ids: OID.uuidArray,
  p_copy_items: OID.int4Array,
  p_copy_recipients: OID.uuidArray,
  p_copy_message_ids: OID.uuidArray,
  p_copy_ciphertexts: OID.byteaArray,
};
const NAMES = Object.keys(PARAMETERS) as (keyof typeof PARAMETERS)[];
const SEND = `select s.* from posthorn_api.send_messages(${NAMES.map((name, index) => `${name} => $${index + 1}`)}) s where s.outcome = 'queued'`;

const KEY_LENGTH = 32;

/**
 * A lane of pair sends within the given senders' groups.
 *
 * @returns a function that sends one batch of fresh messages
 */
export async function openLane(url: string, senders: Sender[], batchSize: number): Promise<() => Promise<number>> {
  const connection = await openConnection({ url, text: SEND, types: Object.values(PARAMETERS), prepared: false });
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
    if (answered !== batchSize) throw new Error(`only ${answered} of ${batchSize} were queued`);
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
  const noIds = binaryArray(
    OID.uuid,
    each(() => null),
  );
  const noTexts = binaryArray(
    OID.text,
    each(() => null),
  );
  const parameters: Record<keyof typeof PARAMETERS, Buffer> = {
    p_credentials: binaryArray(
      OID.bytea,
      each(({ credentialHash }) => credentialHash),
    ),
    p_agent_ids: binaryArray(
      OID.uuid,
      each(({ agentId }) => uuidBytes(agentId)),
    ),
    p_keys: binaryArray(
      OID.text,
      each(() => Buffer.alloc(KEY_LENGTH, '0')),
    ),
    p_fingerprints: binaryArray(
      OID.bytea,
      each(() => randomBytes(32)),
    ),
    p_recipient_agent_ids: recipients,
    p_group_ids: groups,
    p_conversation_ids: noIds,
    p_replies_to: noIds,
    p_purposes: noTexts,
    p_names: noTexts,
    p_durations_hours: binaryArray(
      OID.int4,
      each(() => null),
    ),
    p_sensitive: binaryArray(
      OID.bool,
      each(() => Buffer.from([0])),
    ),
    p_planned_group_ids: groups,
    p_planned_generations: binaryArray(
      OID.int4,
      each(() => int32(1)),
    ),
    p_hold_ids: noIds,
    p_post_ids: noIds,
    p_copy_items: binaryArray(
      OID.int4,
      each((_, index) => int32(index + 1)),
    ),
    p_copy_recipients: recipients,
    p_copy_message_ids: binaryArray(
      OID.uuid,
      each(() => Buffer.alloc(16)),
    ),
    p_copy_ciphertexts: binaryArray(
      OID.bytea,
      each(() => randomBytes(BODY_BYTES + SEAL_BYTES)),
    ),
  };
  return connection.call(NAMES.map((name) => parameters[name]));
}

/** Gives every item of a built batch a new key and every copy a new id. */
function refresh({ bytes, offsets }: Call, size: number): void {
  const keys = offsets[NAMES.indexOf('p_keys')]!;
  const messageIds = offsets[NAMES.indexOf('p_copy_message_ids')]!;
  for (let index = 0; index < size; index++) {
    const id = messageIds + elementOffset(index, 16);
    writeId(bytes, id);
    // the id's own digits make the key
    bytes.write(bytes.toString('hex', id, id + 16), keys + elementOffset(index, KEY_LENGTH), 'latin1');
  }
}

/** A UUID of version 7: its order in time is what keeps the indexes of ids warm. */
function writeId(bytes: Buffer, at: number): void {
  randomFillSync(bytes, at, 16);
  bytes.writeUIntBE(Date.now(), at, 6);
  bytes[at + 6] = 0x70 | ((bytes[at + 6] ?? 0) & 0x0f);
  bytes[at + 8] = 0x80 | ((bytes[at + 8] ?? 0) & 0x3f);
}
