// nchan, a module of nginx in C, as Debian packages it: one worker, the fastest event streams that one can install.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ServerCost } from './stream-server.ts';

const NGINX = '/usr/sbin/nginx';
const MODULE = '/usr/lib/nginx/modules/ngx_nchan_module.so';
/** Of the kernel's accounting. */
const TICK_MS = 10;

export const hasNchan = existsSync(NGINX) && existsSync(MODULE);

export interface Nchan {
  url: string;
  publish(data: string): Promise<void>;
  measure(): ServerCost;
  stop(): Promise<void>;
}

export async function startNchan(): Promise<Nchan> {
  const folder = await mkdtemp(join(tmpdir(), 'posthorn-nchan-'));
  await chmod(folder, 0o777);
  const port = await freePort();
  await writeFile(
    join(folder, 'nginx.conf'),
    `load_module ${MODULE};
daemon off;
worker_processes 1;
worker_rlimit_nofile 20000;
pid ${folder}/nginx.pid;
error_log ${folder}/error.log;
events { worker_connections 19000; }
http {
  access_log off;
  client_body_temp_path ${folder};
  proxy_temp_path ${folder};
  fastcgi_temp_path ${folder};
  uwsgi_temp_path ${folder};
  scgi_temp_path ${folder};
  nchan_shared_memory_size 128M;
  server {
    listen 127.0.0.1:${port} backlog=4096;
    location /publish { nchan_publisher; nchan_channel_id all; nchan_message_buffer_length 100; }
    location /events { nchan_subscriber eventsource; nchan_channel_id all; nchan_subscriber_first_message newest; }
  }
}
`,
  );
  const master = spawn(NGINX, ['-p', folder, '-c', join(folder, 'nginx.conf')], { stdio: 'ignore' });
  const exited = once(master, 'exit');
  const url = `http://127.0.0.1:${port}`;
  while (!(await fetch(url).catch(() => null))) if (master.exitCode !== null) throw new Error('nginx did not start');
  const worker = readFileSync(`/proc/${master.pid}/task/${master.pid}/children`, 'utf8').trim().split(' ')[0]!;
  return {
    url,
    async publish(data) {
      await fetch(`${url}/publish`, {
        method: 'POST',
        headers: { 'X-EventSource-Event': 'messaging.pending' },
        body: data,
      });
    },
    measure() {
      const stat = readFileSync(`/proc/${worker}/stat`, 'utf8').split(') ')[1]!.split(' ');
      const resident = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${worker}/status`, 'utf8'))![1];
      const cpuMs = (Number(stat[11]) + Number(stat[12])) * TICK_MS;
      return { heapBytes: 0, residentBytes: Number(resident) * 1024, cpuMs, cpuMsAfterwards: cpuMs };
    },
    async stop() {
      master.kill('SIGTERM');
      await exited;
      await rm(folder, { recursive: true, force: true });
    },
  };
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  return port;
}
