import type { Command } from 'commander';
import { readConfig } from '../config.ts';
import { listRingKeys } from '../db/functions.ts';
import { rotateKeys } from '../key-rotation.ts';
import { keyRingPath, readKeyRing } from '../open-key-ring.ts';
import { addCommand, answer, type Output, remark } from './output.ts';
import { asPerson } from './person.ts';
import { facts, list, sayTime } from './text.ts';

/** The keys that wrap the owners' keys; they never leave the key ring, and none is shown. */
export function addKeys(program: Command): void {
  const keys = program.command('keys').description("The server's key ring, which opens what the database holds.");
  addCommand(keys, 'list', 'Every key, and how many owners depend on it.').action(listKeys);
  addCommand(
    keys,
    'rotate',
    "Put a new key into the ring and wrap every owner's key by it, while all runs. Broken off, it goes on next time.",
  ).action(rotate);
}

async function listKeys(output: Output): Promise<void> {
  const { keys, where } = await asPerson(async (db, config) => {
    const used = await listRingKeys(db);
    const ring = await readKeyRing(config).catch((error: Error) => remark(error.message));
    const ids = new Set([...used.map(({ ringKeyId }) => ringKeyId), ...(ring?.keys.keys() ?? [])]);
    const keys = [...ids].map((id) => {
      const known = used.find(({ ringKeyId }) => ringKeyId === id);
      return {
        id,
        current: id === ring?.currentId,
        in_ring: ring?.keys.has(id) ?? false,
        needed: known !== undefined,
        owners: known?.owners ?? 0,
        first_used_at: known?.createdAt.toISOString() ?? null,
      };
    });
    return { keys, where: keyRingPath(config) ?? 'POSTHORN_KEYRING' };
  });
  const blocks = keys.map(({ id, current, in_ring, needed, owners, first_used_at }) =>
    [
      id,
      facts(
        {
          current,
          'in the ring': in_ring,
          'needed here': needed,
          owners,
          'first used': first_used_at && sayTime(first_used_at),
        },
        '  ',
      ),
    ].join('\n'),
  );
  answer(output, { keys }, `${list(blocks, 'There is no key yet.')}\n\nThe ring is in ${where}.`);
}

async function rotate(output: Output): Promise<void> {
  const config = readConfig(process.env);
  const { ringKeyId, isNew, wrapped } = await rotateKeys(
    config,
    (work) => asPerson((db) => work(db)),
    ({ wrapped, owners }) => remark(`${wrapped} of ${owners} owners`),
  );
  const where = keyRingPath(config) ?? 'POSTHORN_KEYRING';
  const text =
    `Every owner depends on ${ringKeyId} now, which is ${isNew ? 'new' : 'the current key of the ring'}; ` +
    `${wrapped} were moved.\nThe other keys are needed here no more. Backups made until now need them: keep a copy ` +
    `with those,\nand then you may take them out of ${where}.`;
  answer(output, { key: ringKeyId, new: isNew, wrapped }, text);
}
