import { defineConfig } from 'vitest/config';

const isLong = process.env.POSTHORN_TEST_FAULTS === 'long';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // half a minute each, most of it waiting: `npm run test:faults` and `npm run test:fuzz` run them
    exclude: [
      ...(isLong ? [] : ['test/faults/{clock-steps,database-away,stopped-pod}.test.ts']),
      ...(process.env.POSTHORN_TEST_FUZZ ? [] : ['test/fuzz/naughty-strings.test.ts']),
    ],
    globalSetup: ['test/helpers/global-setup.ts'],
    setupFiles: ['test/helpers/setup.ts'],
    // Processes, since tests send signals and some of them end abruptly. Each file has a database of its own.
    pool: 'forks',
    maxWorkers: 2,
    testTimeout: 30_000,
    hookTimeout: 60_000,
    expect: { poll: { timeout: 10_000 } }, // a second, the default, is short for a busy machine
  },
});
