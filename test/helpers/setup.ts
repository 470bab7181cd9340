import net from 'node:net';
import { afterAll, inject } from 'vitest';
import { dropTestDatabases } from './database.ts';
import { expectCleanLogs } from './log-lines.ts';

afterAll(dropTestDatabases);
afterAll(expectCleanLogs);

// Tests talk to this machine only.
const allowedHosts = ['localhost', '::1', new URL(inject('serverUrl')).hostname];
const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function guardedConnect(this: net.Socket, ...args: unknown[]) {
  const host = targetHost(args);
  if (host !== undefined && !host.startsWith('127.') && !allowedHosts.includes(host)) {
    throw new Error(`Tests may not connect to ${host}`);
  }
  return connect.apply(this, args as never);
} as typeof connect;

/** The three ways to call it: options, port and host, or Node's own list of both; undefined is this machine. */
function targetHost(args: unknown[]): string | undefined {
  const [first, second] = Array.isArray(args[0]) ? args[0] : args;
  if (typeof first === 'object' && first !== null) return (first as { host?: string }).host;
  return typeof second === 'string' ? second : undefined;
}
