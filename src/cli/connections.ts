import type { connectionView } from '../operations/views.ts';
import { answer, type Output, posthorn, remark } from './output.ts';
import { facts, harmlessLine, sayTime } from './text.ts';

/** A connection for people. */
export function sayConnection(connection: ReturnType<typeof connectionView>): string {
  const { id, kind, label, scopes, agent_id, expires_at, last_used_at, revoked_at } = connection;
  const rows = facts(
    {
      id,
      scopes: scopes.join(', '),
      agent: agent_id,
      expires: expires_at && sayTime(expires_at),
      used: last_used_at ? sayTime(last_used_at) : 'never',
      revoked: revoked_at && sayTime(revoked_at),
    },
    '  ',
  );
  return `${harmlessLine(label)} (${kind})\n${rows}`;
}

/** Shows a credential that was made just now, the one time that it can be seen; stdout gets it alone. */
export function showCredential(output: Output, connection: Record<string, unknown>, token: string): void {
  answer(output, { ...connection, token }, token);
  if (output.json) return;
  remark('\nShown only this once: keep it where only its user can read it.');
  remark(`To end it: ${posthorn} token revoke ${connection.connection_id}`);
}
