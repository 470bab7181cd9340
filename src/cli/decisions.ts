import type { Command } from 'commander';
import { z } from 'zod';
import {
  approveProposal,
  denyProposal,
  liftDenial,
  listOwnerAgents,
  listOwnerGroups,
  listOwnerProposals,
  type ProposalView,
} from '../db/functions.ts';
import type { Queryable } from '../db/pool.ts';
import { line, paragraph } from '../operations/fields.ts';
import { proposalView } from '../operations/views.ts';
import { checked, checkedId, wholeNumber } from './options.ts';
import { answer } from './output.ts';
import { type AsOwner, addOwnerCommand, asOwner } from './person.ts';
import { list } from './text.ts';
import { type Names, sayProposal } from './views.ts';

/** What agents asked for and the person decides: the family `owner proposals|approve|deny|lift`. */
export function addDecisions(owner: Command): void {
  addOwnerCommand(owner, 'proposals', 'What agents ask you for: the requests that wait, the longest first.')
    .option('--all', 'those decided or expired in the last 7 days too')
    .action(listAll);
  addOwnerCommand(owner, 'approve <id>', 'Say yes, perhaps with changes; what was held is queued.')
    .option('--name <text>', 'call the collaboration something else')
    .option('--purpose <text>', 'for another purpose')
    .option('--hours <number>', 'for another time, 1 to 720', wholeNumber)
    .action(approve);
  addOwnerCommand(
    owner,
    'deny <id>',
    'Say no; what was held is fenced, and they cannot ask again for 24 hours.',
  ).action(deny);
  addOwnerCommand(owner, 'lift <id>', 'Let those whom you denied ask again before the 24 hours are over.').action(lift);
}

async function listAll(options: AsOwner & { all?: boolean }): Promise<void> {
  const { rows, names } = await asOwner(options, async (db, credential) => ({
    rows: await listOwnerProposals(db, { credential, currentOnly: options.all !== true }),
    names: await namesOf(db, credential),
  }));
  const proposals = rows.map(proposalView);
  const blocks = proposals.map((proposal) => sayProposal(proposal, names));
  answer(options, { proposals }, list(blocks, 'Nothing waits for you.'));
}

const Edits = z.strictObject({
  name: line(80).optional(),
  purpose: paragraph(500).optional(),
  hours: z.int().min(1).max(720).optional(),
});

interface ApproveOptions extends AsOwner {
  name?: string;
  purpose?: string;
  hours?: number;
}

async function approve(id: string, options: ApproveOptions): Promise<void> {
  const { name, purpose, hours: durationHours } = checked(Edits, pick(options));
  await decide(id, options, (db, credential, proposalId) =>
    approveProposal(db, { credential, proposalId, name, purpose, durationHours }),
  );
}

const pick = ({ name, purpose, hours }: ApproveOptions) => ({ name, purpose, hours });

async function deny(id: string, options: AsOwner): Promise<void> {
  await decide(id, options, (db, credential, proposalId) => denyProposal(db, { credential, proposalId }));
}

async function lift(id: string, options: AsOwner): Promise<void> {
  await decide(id, options, (db, credential, proposalId) => liftDenial(db, { credential, proposalId }));
}

async function decide(
  id: string,
  options: AsOwner,
  act: (db: Queryable, credential: Buffer, proposalId: string) => Promise<ProposalView>,
): Promise<void> {
  const proposalId = checkedId(id);
  const { row, names } = await asOwner(options, async (db, credential) => ({
    row: await act(db, credential, proposalId),
    names: await namesOf(db, credential),
  }));
  const proposal = proposalView(row);
  answer(options, proposal, sayProposal(proposal, names));
}

/** How the owner knows their agents and collaborations. */
async function namesOf(db: Queryable, credential: Buffer): Promise<Names> {
  const agents = await listOwnerAgents(db, { credential });
  const groups = await listOwnerGroups(db, { credential });
  return new Map([
    ...agents.map(({ id, label }) => [id, label] as const),
    ...groups.map(({ id, name }) => [id, name] as const),
  ]);
}
