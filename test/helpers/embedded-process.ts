// A process that owns an embedded server, for tests that kill it: embedded-process.ts DATA_DIRECTORY MAJOR.
import { startEmbeddedPostgres } from '../../src/db/embedded.ts';

const [dataDirectory = '', major] = process.argv.slice(2);
const server = await startEmbeddedPostgres({
  dataDirectory,
  major: major === '15' ? 15 : 18,
  settings: { fsync: 'off' },
});
process.on('SIGINT', () => console.log('interrupted'));
process.on('SIGTERM', () => void server.stop());
process.on('SIGUSR2', () => process.exit(1));
console.log(server.url);
