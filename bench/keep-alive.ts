// Bare sockets for callers: a full HTTP client costs more CPU than the server that it would measure.
import { connect } from 'node:net';

export interface KeepAlive {
  /** @returns the answer with its head */
  post(path: string, credential: string, body: string, headers?: Record<string, string>): Promise<string>;
  end(): void;
}

export function openKeepAlive({ hostname, port, host }: URL): Promise<KeepAlive> {
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), hostname);
    socket.setNoDelay(true);
    let answered: (answer: string) => void = () => {};
    let failed: (error: Error) => void = reject;
    let answer = '';
    socket.on('data', (chunk) => {
      answer += chunk.toString('latin1');
      if (!isWhole(answer)) return;
      const whole = answer;
      answer = '';
      answered(whole);
    });
    socket.on('error', (error) => failed(error));
    socket.on('close', () => failed(new Error('the server closed a connection')));
    socket.on('connect', () =>
      resolve({
        post: (path, credential, body, headers = {}) =>
          new Promise((resolveAnswer, rejectAnswer) => {
            answered = resolveAnswer;
            failed = rejectAnswer;
            const others = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
            socket.write(
              `POST ${path} HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${credential}\r\n` +
                `Content-Type: application/json\r\n${others.join('')}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
            );
          }),
        end: () => socket.destroy(),
      }),
    );
  });
}

function isWhole(answer: string): boolean {
  const head = answer.indexOf('\r\n\r\n');
  if (head < 0) return false;
  const length = /\r\ncontent-length: (\d+)/i.exec(answer.slice(0, head))?.[1];
  return length === undefined ? answer.endsWith('\r\n0\r\n\r\n') : answer.length >= head + 4 + Number(length);
}

/** The JSON of an answer whose body has a length. */
export function bodyOf<Body>(answer: string): Body {
  return JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4));
}
