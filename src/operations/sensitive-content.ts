/** Where a secret was seen; never the secret itself. */
export interface SensitiveFinding {
  rule: string;
  line: number;
  column: number;
}

export async function findSensitiveContent(_text: string): Promise<SensitiveFinding | null> {
  return null;
}
