// A browser as far as a server sees one: it keeps cookies, sends forms, and says where a request comes from.

export interface Page {
  status: number;
  headers: Headers;
  text: string;
  /** Where the answer came from. */
  url: string;
}

export interface Browser {
  cookies: Map<string, { value: string; path: string }>;
  /** Opens an address, and follows redirects of this server. One to elsewhere is the answer: see `location`. */
  open(url: string, headers?: Record<string, string>): Promise<Page>;
  /** Sends the form of a page, with what a person changes in it; pressing a button adds its name. */
  submit(page: Page, changes?: Record<string, string>, headers?: Record<string, string>): Promise<Page>;
  /** Calls the server as a script of its own page does. */
  call(
    method: string,
    path: string,
    body?: object,
    headers?: Record<string, string>,
  ): Promise<Page & { json: unknown }>;
}

/**
 * A browser without a past, on one server.
 *
 * @param at where that server really listens, if a proxy stands before it
 */
export function createBrowser(origin: string, at: string = origin): Browser {
  const cookies: Browser['cookies'] = new Map();

  async function request(url: string, init: RequestInit & { headers: Record<string, string> }): Promise<Page> {
    const { pathname } = new URL(url);
    const sent = [...cookies].filter(
      ([, { path }]) => pathname === path || pathname.startsWith(path.replace(/\/?$/, '/')),
    );
    const cookie = sent.map(([name, { value }]) => `${name}=${value}`).join('; ');
    const response = await fetch(url.replace(origin, at), {
      ...init,
      redirect: 'manual',
      headers: { accept: 'text/html', ...init.headers, ...(cookie && { cookie }) },
    });
    for (const line of response.headers.getSetCookie()) keep(line, pathname);
    return { status: response.status, headers: response.headers, text: await response.text(), url };
  }

  function keep(line: string, requestPath: string): void {
    const [pair = '', ...attributes] = line.split(/;\s*/);
    const [name = '', ...value] = pair.split('=');
    const attribute = (wanted: string) =>
      attributes.find((each) => each.toLowerCase().startsWith(`${wanted}=`))?.slice(wanted.length + 1);
    const path = attribute('path') ?? requestPath.replace(/\/[^/]*$/, '/');
    const expires = attribute('expires');
    const isGone = attribute('max-age') === '0' || (expires !== undefined && Date.parse(expires) <= Date.now());
    if (isGone) cookies.delete(name);
    else cookies.set(name, { value: value.join('='), path });
  }

  async function follow(page: Page): Promise<Page> {
    let answer = page;
    for (let hops = 0; hops < 10; hops++) {
      const location = answer.headers.get('location');
      if (location === null || answer.status < 300 || answer.status > 399) return answer;
      const target = new URL(location, answer.url);
      if (target.origin !== origin) return answer;
      answer = await request(target.href, { headers: { 'sec-fetch-site': 'same-origin' } });
    }
    throw new Error('It redirects for ever.');
  }

  return {
    cookies,
    open: async (url, headers = {}) =>
      await follow(await request(new URL(url, origin).href, { headers: { 'sec-fetch-site': 'none', ...headers } })),
    async submit(page, changes = {}, headers = {}) {
      const form = readForm(page);
      return await follow(
        await request(new URL(form.action, page.url).href, {
          method: 'POST',
          body: new URLSearchParams({ ...form.fields, ...changes }).toString(),
          headers: {
            'content-type': 'application/x-www-form-urlencoded',
            'sec-fetch-site': 'same-origin',
            origin,
            ...headers,
          },
        }),
      );
    },
    async call(method, path, body, headers = {}) {
      const page = await request(new URL(path, origin).href, {
        method,
        body: body === undefined ? undefined : JSON.stringify(body),
        headers: {
          'sec-fetch-site': 'same-origin',
          origin,
          ...(body && { 'content-type': 'application/json' }),
          ...headers,
        },
      });
      return {
        ...page,
        json: page.headers.get('content-type')?.startsWith('application/json') ? JSON.parse(page.text) : undefined,
      };
    },
  };
}

/** The first form of a page: where it goes, and what stands in its fields. */
export function readForm({ text }: Page): { action: string; fields: Record<string, string> } {
  const form = /<form[^>]*action="([^"]*)"[^>]*>([\s\S]*?)<\/form>/.exec(text);
  if (!form) throw new Error(`There is no form in: ${text}`);
  const inputs = [...form[2]!.matchAll(/<input([^>]*)>/g)].map(([, attributes = '']) => {
    const read = (name: string) => new RegExp(`(?:^|\\s)${name}="([^"]*)"`).exec(attributes)?.[1];
    return {
      name: read('name'),
      value: read('value') ?? '',
      type: read('type'),
      isChecked: /\schecked/.test(attributes),
    };
  });
  const sent = inputs.filter(({ name, type, isChecked }) => name !== undefined && (type !== 'radio' || isChecked));
  return {
    action: decodeText(form[1]!),
    fields: Object.fromEntries(sent.map(({ name, value }) => [name!, decodeText(value)])),
  };
}

function decodeText(text: string): string {
  return text
    .replace(/&#(\d+);/g, (_, code) => String.fromCharCode(Number(code)))
    .replaceAll('&quot;', '"')
    .replaceAll('&amp;', '&');
}
