import { z } from 'zod';
import { readPrivateFile, writePrivateFile } from '../private-file.ts';
import { CommandError } from './failure.ts';

/** Other programs may keep more in the file; it stays. */
const ConfigFile = z.looseObject({
  url: z.url({ protocol: /^https?$/ }).optional(),
  token: z.string().min(1).optional(),
  agent_id: z.uuid().optional(),
  /** What `login` keeps beside the token, to get the next one. */
  login: z.object({ refresh_token: z.string().min(1), expires_at: z.iso.datetime() }).optional(),
});

export type ConfigFile = z.infer<typeof ConfigFile>;

/**
 * The configuration file of whoever calls.
 *
 * @returns undefined if there is none
 * @throws ExposedFileError if others can read it, CommandError if it is no configuration
 */
export async function readConfigFile(path: string): Promise<ConfigFile | undefined> {
  const text = await readPrivateFile(path);
  if (text === undefined) return undefined;
  try {
    return ConfigFile.parse(JSON.parse(text));
  } catch {
    throw new CommandError(
      'config',
      `${path} must hold a JSON object with "url", "token" and "agent_id", each optional.`,
    );
  }
}

/** Changes some of the file's entries; undefined removes one. */
export async function changeConfigFile(path: string, changes: Partial<ConfigFile>): Promise<void> {
  const file = { ...(await readConfigFile(path)), ...changes };
  await writePrivateFile(path, `${JSON.stringify(file, null, 2)}\n`);
}
