import { randomFillSync } from 'node:crypto';

// Random bytes for 256 ids at a time: asking the kernel for 16 costs more than the id.
const pool = Buffer.allocUnsafe(16 * 256);
let used = pool.length;

/** A time-ordered UUID, version 7. */
export function makeId(): string {
  if (used === pool.length) {
    randomFillSync(pool);
    used = 0;
  }
  const bytes = pool.subarray(used, used + 16);
  used += 16;
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = 0x70 | (bytes[6]! & 0x0f);
  bytes[8] = 0x80 | (bytes[8]! & 0x3f);
  const hex = bytes.toString('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
