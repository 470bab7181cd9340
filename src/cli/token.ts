import type { Command } from 'commander';
import { z } from 'zod';
import { hashCredential, makeCredential } from '../crypto/credentials.ts';
import { createServiceConnection, listConnections, revokeConnection, rotateConnection } from '../db/functions.ts';
import { line } from '../operations/fields.ts';
import { connectionView } from '../operations/views.ts';
import { sayConnection, showCredential } from './connections.ts';
import { CommandError } from './failure.ts';
import { checked, checkedId, repeat, timeFromNow } from './options.ts';
import { answer } from './output.ts';
import { type AsOwner, addOwnerCommand, asOwner } from './person.ts';
import { list } from './text.ts';

export function addToken(program: Command): void {
  const token = program.command('token').description("Agents' tokens (connections of kind service).");
  addOwnerCommand(token, 'create', 'Make a token; it is shown once.')
    .requiredOption('--label <text>', 'what it is for')
    .requiredOption('--scope <scope>', `what it may do: ${SCOPES.join(', ')}; repeatable`, repeat)
    .option('--expires-in <time>', 'such as 12h or 30d; without it never', timeFromNow)
    .action(create);
  addOwnerCommand(token, 'list', 'Every connection of the owner, devices and revoked ones too.').action(listAll);
  addOwnerCommand(token, 'rotate <id>', 'Give a connection a new token; the old one is dead at once.').action(rotate);
  addOwnerCommand(token, 'revoke <id>', 'End a connection for good.').action(revoke);
}

const SCOPES = ['messaging', 'functions', 'execute'] as const;

const Create = z.strictObject({ label: line(64), scope: z.array(z.enum(SCOPES)) });

interface CreateOptions extends AsOwner {
  label: string;
  scope: string[];
  expiresIn?: Date;
}

async function create(options: CreateOptions): Promise<void> {
  const { label, scope } = checked(Create, { label: options.label, scope: [...new Set(options.scope)] });
  const { token, hash } = makeCredential('service');
  const connection = await asOwner(options, (db, credential) =>
    createServiceConnection(db, {
      credential,
      label,
      scopes: scope,
      credentialHash: hash,
      expiresAt: options.expiresIn ?? null,
    }),
  );
  showCredential(options, { connection_id: connection.id }, token);
}

async function listAll(options: AsOwner): Promise<void> {
  const rows = await asOwner(options, (db, credential) => listConnections(db, { credential }));
  const connections = rows.map(connectionView);
  answer(options, { connections }, list(connections.map(sayConnection), 'There is no connection yet.'));
}

async function rotate(id: string, options: AsOwner): Promise<void> {
  const connectionId = checkedId(id);
  const token = await asOwner(options, async (db, credential) => {
    const connection = (await listConnections(db, { credential })).find((each) => each.id === connectionId);
    if (!connection) throw new CommandError('not_found', `There is no connection ${id}.`);
    const made = makeCredential(connection.kind as Parameters<typeof makeCredential>[0]);
    await rotateConnection(db, { credential, connectionId, credentialHash: hashCredential(made.token) });
    return made.token;
  });
  showCredential(options, { connection_id: connectionId }, token);
}

async function revoke(id: string, options: AsOwner): Promise<void> {
  const connectionId = checkedId(id);
  const row = await asOwner(options, (db, credential) => revokeConnection(db, { credential, connectionId }));
  const connection = connectionView(row);
  answer(options, connection, sayConnection(connection));
}
