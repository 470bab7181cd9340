import { Argument, type Command, Option } from 'commander';
import { z } from 'zod';
import { makeId } from '../crypto/ids.ts';
import { OPERATIONS } from '../operations/index.ts';
import type { Operation } from '../operations/operation.ts';
import { parseInput } from '../operations/parse-input.ts';
import {
  type AgentOptions,
  type AgentSettings,
  addAgentOptions,
  readAgentSettings,
  rememberAgent,
} from './agent-settings.ts';
import { type BodyOptions, readBody } from './body.ts';
import { call } from './call.ts';
import { CommandError } from './failure.ts';
import { repeat, wholeNumber } from './options.ts';
import { addCommand, answer, type Output, remark } from './output.ts';
import { facts, harmless } from './text.ts';
import {
  sayAcknowledged,
  sayAgent,
  sayGroups,
  sayInbox,
  sayPeers,
  sayProposal,
  sayProposals,
  sayReceipt,
  sayStatus,
} from './views.ts';
import { sayDeliveries, sayDelivery, sayWebhook } from './webhooks.ts';

type Values = Record<string, unknown>;

type Options = Output & AgentOptions & BodyOptions & { wait?: boolean };

/** How an operation's answer reads for people; one that is not here is shown as JSON. */
const SAY: Record<string, (output: never) => string> = {
  status: sayStatus,
  register_agent: sayAgent,
  list_agents: sayPeers,
  list_groups: sayGroups,
  send_message: sayReceipt,
  receive_messages: sayInbox,
  acknowledge_messages: sayAcknowledged,
  message_status: sayReceipt,
  revoke_agent: facts,
  propose_collaboration: (proposal) => sayProposal(proposal),
  proposal_status: (proposal) => sayProposal(proposal),
  list_proposals: sayProposals,
  register_webhook: sayWebhook,
  webhook_registration: sayWebhook,
  remove_webhook: facts,
  test_webhook: sayDelivery,
  list_webhook_deliveries: sayDeliveries,
  redeliver_webhook: sayDelivery,
};

/** What the families of commands are for. */
const FAMILIES: Record<string, string> = {
  messages: 'As an agent: mail.',
  proposals: 'As an agent: ask your owner for a collaboration.',
  webhook: 'As an agent: be woken at a URL of yours.',
};

/**
 * The commands of agents, made from the operations: `status`, or the family `messages …`.
 *
 * @returns what adds them to the program
 */
export function addAgentCommands(family: string): (program: Command) => void {
  return (program) => {
    const operations = OPERATIONS.filter(({ command }) => command?.split(' ')[0] === family);
    const about = FAMILIES[family];
    const parent = about === undefined ? program : program.command(family).description(about);
    for (const operation of operations) addOperation(parent, operation);
  };
}

function addOperation(parent: Command, operation: Operation): void {
  const command = addCommand(parent, operation.command!.split(' ').at(-1)!, operation.description);
  const fields = readFields(operation);
  for (const field of fields) {
    if (field.isArgument) command.addArgument(new Argument(`<${field.name}>`, field.about));
    else if (field.name === 'body') addBodyOptions(command);
    else command.addOption(optionFor(field));
  }
  if (operation.name === 'receive_messages') command.option('--wait', 'wait until there is mail, however long');
  addAgentOptions(command).action(async (...args: unknown[]) => {
    const options = args.at(fields.filter(({ isArgument }) => isArgument).length) as Options & Values;
    await run(operation, readInput(fields, args, options), options);
  });
}

interface Field {
  name: string;
  /** Whether every route has it in its path: then it is an argument, else an option. A URL too, since --url is the server. */
  isArgument: boolean;
  isRequired: boolean;
  isList: boolean;
  isNumber: boolean;
  isFlag: boolean;
  isId: boolean;
  choices: string[] | undefined;
  standard: unknown;
  about: string;
}

interface JsonSchema {
  type?: string;
  format?: string;
  enum?: string[];
  default?: unknown;
  description?: string;
  items?: JsonSchema;
}

function readFields(operation: Operation): Field[] {
  const { properties = {}, required = [] } = z.toJSONSchema(operation.input, { io: 'input' });
  return Object.entries(properties as Record<string, JsonSchema>).map(([name, schema]) => ({
    name,
    isArgument: name === 'url' || operation.routes.every(({ path }) => path.split('/').includes(`:${name}`)),
    isRequired: required.includes(name) && name !== 'idempotency_key',
    isList: schema.type === 'array',
    isNumber: schema.type === 'integer',
    isFlag: schema.type === 'boolean',
    isId: (schema.items ?? schema).format === 'uuid',
    choices: (schema.items ?? schema).enum,
    standard: schema.default,
    about: schema.description ?? '',
  }));
}

/** `message_ids` becomes `--message-id`, to be repeated. */
function optionFor({ name, isRequired, isList, isNumber, isFlag, isId, choices, standard, about }: Field): Option {
  const flag = (isList ? name.replace(/s$/, '') : name).replaceAll('_', '-');
  const value = isNumber ? 'number' : isId ? 'id' : 'text';
  const said = isList ? (standard as unknown[] | undefined)?.join(', ') : isFlag ? undefined : standard;
  const oneOf = isList && choices ? `of ${choices.join(', ')}` : '';
  const remarks = [
    about,
    oneOf,
    isList ? 'repeatable' : '',
    said === undefined || said === '' ? '' : `default: ${said}`,
  ];
  const option = new Option(isFlag ? `--${flag}` : `--${flag} <${value}>`, remarks.filter(Boolean).join('; '));
  if (isNumber) option.argParser(wholeNumber);
  if (isList) option.argParser(repeat);
  else if (choices) option.choices(choices);
  return option.makeOptionMandatory(isRequired);
}

function addBodyOptions(command: Command): void {
  command
    .option('--message <text>', 'the body')
    .option('--message-file <path>', 'a file with the body, byte for byte; - is standard input');
}

function readInput(fields: Field[], args: unknown[], options: Values): Values {
  const position = fields.filter(({ isArgument }) => isArgument);
  const given = fields.map((field) => [
    field.name,
    field.isArgument ? args[position.indexOf(field)] : options[optionFor(field).attributeName()],
  ]);
  return Object.fromEntries(given.filter(([, value]) => value !== undefined));
}

async function run(operation: Operation, given: Values, options: Options): Promise<void> {
  const settings = await readAgentSettings(options);
  const { shape } = operation.input;
  const input = {
    ...('agent_id' in shape && settings.agentId !== undefined ? { agent_id: settings.agentId } : {}),
    ...given,
    ...('body' in shape ? { body: await readBody(options) } : {}),
    ...('idempotency_key' in shape ? { idempotency_key: given.idempotency_key ?? makeId() } : {}),
  };
  parseInput(operation, input); // refused here as it would be there, with nothing sent
  const output = await perform(settings, operation, input, options.wait === true);
  const say = SAY[operation.name] as ((output: Values) => string) | undefined;
  answer(options, output, say ? say(output) : harmless(JSON.stringify(output, null, 2)));
  if (operation.name === 'register_agent') await settle(settings, output.id as string, options);
}

async function perform(
  settings: AgentSettings,
  operation: Operation,
  input: Values,
  isPatient: boolean,
): Promise<Values> {
  if (input.idempotency_key !== undefined) return await send(settings, operation, input);
  if (!isPatient) return await call(settings, operation, input);
  for (;;) {
    const output = await call(settings, operation, { ...input, wait_seconds: 25 });
    if ((output.messages as unknown[]).length > 0) return output;
  }
}

/** The key goes with the answer, and with a failure most of all: only with it can the same act be tried again. */
async function send(settings: AgentSettings, operation: Operation, input: Values): Promise<Values> {
  const { idempotency_key } = input;
  try {
    return { ...(await call(settings, operation, input)), idempotency_key };
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    throw new CommandError(error.code, error.message, error.exitCode, { ...error.facts, idempotency_key });
  }
}

/** Keeps the new agent's id where the next command finds it. */
async function settle({ configFile }: AgentSettings, agentId: string, { json }: Output): Promise<void> {
  if (configFile !== undefined) await rememberAgent(configFile, agentId);
  if (json) return;
  remark(configFile ? `\nNoted in ${configFile}.` : `\nFrom now on: export POSTHORN_AGENT_ID=${agentId}`);
}
