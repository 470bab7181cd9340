import type { Command } from 'commander';
import { z } from 'zod';
import type { Config } from '../config.ts';
import { makeCredential } from '../crypto/credentials.ts';
import {
  changeOwnerSettings,
  createGroup,
  listOwnerAgents,
  listOwnerGroups,
  listOwners,
  ownerSettings,
  pairDevice,
  renewGroup,
  restoreAgent,
  revokeAgent,
  revokeGroup,
  ringKeys,
} from '../db/functions.ts';
import { makeOwner } from '../new-owner.ts';
import { openOrMakeKeyRing } from '../open-key-ring.ts';
import { line, paragraph } from '../operations/fields.ts';
import { groupView, ownerAgentView } from '../operations/views.ts';
import { readServerFile } from '../server-file.ts';
import { makeSignInUrl } from '../sign-in-link.ts';
import { addAccount } from './account.ts';
import { showCredential } from './connections.ts';
import { addDecisions } from './decisions.ts';
import { checked, checkedId, onOrOff, repeat, wholeNumber } from './options.ts';
import { addCommand, answer, type Output, posthorn, remark } from './output.ts';
import { type AsOwner, addOwnerCommand, asOwner, asPerson } from './person.ts';
import { facts, harmlessLine, list, sayTime } from './text.ts';
import { sayAgent, sayGroup } from './views.ts';
import { addWebhooks } from './webhooks.ts';

/** What the person at the server decides; no agent's connection can do any of it. */
export function addOwner(program: Command): void {
  const owner = program
    .command('owner')
    .description('Decide as the owner, with the rights of the person at the server.');

  addCommand(owner, 'create', 'Make another owner: a tenant of its own.')
    .requiredOption('--label <text>', "the owner's name")
    .action(createOwner);
  addCommand(owner, 'list', 'Every owner of this server.').action(listAllOwners);
  addOwnerCommand(owner, 'pair', 'Pair a machine: make a device credential, shown once.')
    .requiredOption('--label <text>', "the machine's name")
    .action(pair);
  addOwnerCommand(owner, 'link', 'Make a link that signs a browser in: once, within 15 minutes.').action(makeLink);
  addOwnerCommand(owner, 'settings', 'Show the settings, or change them.')
    .option('--automatic-approval <on|off>', 'let agents open collaborations without asking', onOrOff)
    .option('--sensitive-content-check <on|off>', 'refuse bodies that look like they hold a secret', onOrOff)
    .action(settings);
  addDecisions(owner);
  addAccount(owner);
  addWebhooks(owner);

  const agents = owner.command('agents').description('The agents that the owner has.');
  addOwnerCommand(agents, 'list', 'Every agent, revoked ones too.').action(listAgents);
  addOwnerCommand(
    agents,
    'revoke <id>',
    'Take an agent out of service: it leaves its groups, its mail is fenced.',
  ).action((id: string, options: AsOwner) => changeAgent(id, options, revokeAgent));
  addOwnerCommand(agents, 'restore <id>', 'Lift a revocation; the agent joins no group by itself.').action(
    (id: string, options: AsOwner) => changeAgent(id, options, restoreAgent),
  );

  const groups = owner.command('groups').description('Collaborations: which agents may talk, about what, how long.');
  addOwnerCommand(groups, 'create', 'Let agents talk to each other.')
    .requiredOption('--name <text>', 'what the collaboration is called')
    .requiredOption('--purpose <text>', 'what it is for; its agents read it')
    .requiredOption('--agent <id>', 'a member; repeat it for each of 2 to 16', repeat)
    .option('--hours <number>', 'how long, 1 to 720 (default: 168)', wholeNumber)
    .option('--boundary <text>', 'the project that it is about')
    .action(makeGroup);
  addOwnerCommand(groups, 'list', 'Every collaboration, ended ones too.').action(listGroups);
  addOwnerCommand(groups, 'renew <id>', 'Extend a collaboration; its conversations start anew.')
    .option('--hours <number>', 'for how long, 1 to 720 (default: as long as at first)', wholeNumber)
    .action(renew);
  addOwnerCommand(groups, 'revoke <id>', 'End a collaboration for good; mail in it is fenced.').action(revoke);
}

async function createOwner(options: Output & { label: string }): Promise<void> {
  const { label } = checked(z.strictObject({ label: line(64) }), { label: options.label });
  const { id, madeAt } = await asPerson(async (db, config) => {
    const { ring, madeAt } = await openOrMakeKeyRing(config, await ringKeys(db));
    return { id: await makeOwner(db, ring, label), madeAt };
  });
  if (madeAt) remark(`Made a key ring in ${madeAt}. Keep a copy, and give it to every process that serves.`);
  answer(options, { id, label }, facts({ id, label }));
}

async function listAllOwners(output: Output): Promise<void> {
  const rows = await asPerson((db) => listOwners(db));
  const owners = rows.map(({ id, label, createdAt }) => ({ id, label, created_at: createdAt.toISOString() }));
  const blocks = owners.map(
    ({ id, label, created_at }) => `${harmlessLine(label)}\n${facts({ id, since: sayTime(created_at) }, '  ')}`,
  );
  answer(output, { owners }, list(blocks, `There is no owner yet. Run: ${posthorn} owner create --label NAME`));
}

async function makeLink(options: AsOwner): Promise<void> {
  const url = await asOwner(options, async (db, credential, config) =>
    makeSignInUrl(db, await publicUrlOf(config), credential),
  );
  answer(options, { url }, url);
  if (!options.json) remark('\nOpen it in the browser to sign in. It works once, within 15 minutes.');
}

/** Where people reach the server. */
async function publicUrlOf({ publicUrl, dataDirectory, host, port }: Config): Promise<string> {
  const running = await readServerFile(dataDirectory);
  return publicUrl ?? running?.mcp_url.replace(/\/mcp$/, '') ?? `http://${host}:${port}`;
}

async function pair(options: AsOwner & { label: string }): Promise<void> {
  const { label } = checked(z.strictObject({ label: line(64) }), { label: options.label });
  const { token, hash } = makeCredential('device');
  const device = await asOwner(options, (db, credential) =>
    pairDevice(db, { credential, label, scopes: ['messaging'], credentialHash: hash }),
  );
  const expiresAt = device.expiresAt?.toISOString() ?? null;
  showCredential(options, { connection_id: device.id, expires_at: expiresAt }, token);
}

interface SettingsOptions extends AsOwner {
  automaticApproval?: boolean;
  sensitiveContentCheck?: boolean;
}

async function settings(options: SettingsOptions): Promise<void> {
  const { automaticApproval, sensitiveContentCheck } = options;
  const isChange = automaticApproval !== undefined || sensitiveContentCheck !== undefined;
  const [row] = await asOwner(options, (db, credential) =>
    isChange
      ? changeOwnerSettings(db, { credential, automaticApproval, sensitiveContentCheck })
      : ownerSettings(db, { credential }),
  );
  const view = {
    id: row!.id,
    label: row!.label,
    automatic_approval: row!.automaticApproval,
    sensitive_content_check: row!.sensitiveContentCheck,
  };
  const onOff = (value: boolean) => (value ? 'on' : 'off');
  const text = facts({
    owner: view.label,
    'automatic approval': onOff(view.automatic_approval),
    'sensitive content check': onOff(view.sensitive_content_check),
  });
  answer(options, view, text);
}

async function listAgents(options: AsOwner): Promise<void> {
  const rows = await asOwner(options, (db, credential) => listOwnerAgents(db, { credential }));
  const agents = rows.map(ownerAgentView);
  answer(options, { agents }, list(agents.map(sayAgent), 'No agent has registered yet.'));
}

async function changeAgent(id: string, options: AsOwner, change: typeof revokeAgent): Promise<void> {
  const agentId = checkedId(id);
  const agent = ownerAgentView(await asOwner(options, (db, credential) => change(db, { credential, agentId })));
  answer(options, agent, sayAgent(agent));
}

const NewGroup = z.strictObject({
  name: line(80),
  purpose: paragraph(500),
  boundary: line(500).optional(),
  hours: z.int().min(1).max(720).optional(),
  agent: z.array(z.uuid()).min(2).max(16),
});

interface GroupOptions extends AsOwner {
  name: string;
  purpose: string;
  boundary?: string;
  hours?: number;
  agent: string[];
}

async function makeGroup(options: GroupOptions): Promise<void> {
  const { name, purpose, boundary, hours, agent } = options;
  const wanted = checked(NewGroup, { name, purpose, boundary, hours, agent });
  const row = await asOwner(options, (db, credential) =>
    createGroup(db, {
      credential,
      name: wanted.name,
      purpose: wanted.purpose,
      projectBoundary: wanted.boundary,
      durationHours: wanted.hours,
      agentIds: wanted.agent,
    }),
  );
  showGroup(options, groupView(row));
}

async function listGroups(options: AsOwner): Promise<void> {
  const rows = await asOwner(options, (db, credential) => listOwnerGroups(db, { credential }));
  const groups = rows.map(groupView);
  answer(options, { groups }, list(groups.map(sayGroup), 'There is no collaboration yet.'));
}

async function renew(id: string, options: AsOwner & { hours?: number }): Promise<void> {
  const groupId = checkedId(id);
  const { hours } = checked(NewGroup.pick({ hours: true }), { hours: options.hours });
  const act = (db: Parameters<typeof renewGroup>[0], credential: Buffer) =>
    renewGroup(db, { credential, groupId, durationHours: hours });
  showGroup(options, groupView(await asOwner(options, act)));
}

async function revoke(id: string, options: AsOwner): Promise<void> {
  const groupId = checkedId(id);
  showGroup(options, groupView(await asOwner(options, (db, credential) => revokeGroup(db, { credential, groupId }))));
}

function showGroup(options: AsOwner, group: ReturnType<typeof groupView>): void {
  answer(options, group, sayGroup(group));
}
