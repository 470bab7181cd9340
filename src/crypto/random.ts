import { randomFillSync } from 'node:crypto';

// Random bytes ahead of need: asking the kernel for 16 costs more than what they are used for.
const ahead = Buffer.allocUnsafe(4_096);
let used = ahead.length;

/** Random bytes (4,096 at the most) that nobody had before. Copy them at once: the memory is used again. */
export function takeRandomBytes(count: number): Buffer {
  if (used + count > ahead.length) {
    randomFillSync(ahead);
    used = 0;
  }
  used += count;
  return ahead.subarray(used - count, used);
}
