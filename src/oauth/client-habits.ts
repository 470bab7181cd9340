// What real clients send where the rules say something else. Each is made into what they mean, before the library sees it.

/** What a client may ask for. Only the first is named in metadata: clients ask for every scope that they are told of. */
export const SCOPES = ['messaging', 'functions'];

/** What a client gets that asks for nothing that there is. */
const DEFAULT_SCOPE = 'messaging';

const METADATA = ['client_name', 'client_uri', 'redirect_uris', 'software_id', 'software_version'];
const GRANT_TYPES = ['authorization_code', 'refresh_token'];
const AUTH_METHODS = ['none', 'client_secret_basic', 'client_secret_post'];

/**
 * The registration that a client means. Cursor calls itself a web application and comes back by `cursor:`; others ask
 * for scopes of OpenID, for signatures and for response types that nobody here has.
 *
 * @throws TypeError naming what makes it none
 */
export function normalizeRegistration(given: Record<string, unknown>): Record<string, unknown> {
  const { redirect_uris, grant_types, token_endpoint_auth_method } = given;
  if (!Array.isArray(redirect_uris) || redirect_uris.length < 1 || redirect_uris.length > 20)
    throw new TypeError('redirect_uris must hold 1 to 20 addresses');
  for (const uri of redirect_uris) requirePlainUri(uri);
  const kept = Object.fromEntries(
    METADATA.filter((name) => given[name] !== undefined).map((name) => [name, given[name]]),
  );
  const grants = Array.isArray(grant_types) ? grant_types.filter((type) => GRANT_TYPES.includes(type)) : GRANT_TYPES;
  return {
    ...kept,
    client_name: nameOf(given.client_name),
    application_type: 'native',
    response_types: ['code'],
    grant_types: [...new Set(['authorization_code', ...grants])],
    token_endpoint_auth_method: AUTH_METHODS.includes(token_endpoint_auth_method as string)
      ? token_endpoint_auth_method
      : redirect_uris.every((uri: string) => uri.startsWith('https:'))
        ? 'client_secret_basic'
        : 'none',
  };
}

/** A name is shown to the owner, in one line of a length that a label may have. */
export function nameOf(name: unknown): string {
  const line = typeof name === 'string' ? name.replaceAll(/[\p{C}\p{Zl}\p{Zp}\s]+/gu, ' ').trim() : '';
  return [...line].slice(0, 64).join('') || 'Unnamed app';
}

/** Where credentials, a backslash or a space stand, two parsers may read two hosts. */
function requirePlainUri(uri: unknown): void {
  const isPlain = typeof uri === 'string' && uri.length <= 1_024 && !/[\s\\\p{C}]/u.test(uri) && URL.canParse(uri);
  const url = isPlain ? new URL(uri) : undefined;
  if (url?.username !== '' || url.password !== '' || url.hash !== '')
    throw new TypeError('redirect_uris must be absolute, without credentials and fragments');
}

/** An authorization request or a token request: the resource is ours, exact, missing or with a slash; scopes are those there are. */
export function normalizeParameters(given: URLSearchParams, resource: string): URLSearchParams {
  const parameters = new URLSearchParams(given);
  const resources = parameters.getAll('resource').map((each) => (each === `${resource}/` ? resource : each));
  parameters.delete('resource');
  for (const each of new Set(resources)) parameters.append('resource', each);
  // a page that sends itself would need a script
  parameters.delete('response_mode');
  return parameters;
}

/** The scopes of an authorization request. */
export function normalizeScope(scope: string | null): string {
  return knownScopes(scope).join(' ') || DEFAULT_SCOPE;
}

/** The scopes of a request that there are. */
export function knownScopes(scope: string | null | undefined): string[] {
  return [...new Set((scope ?? '').split(' '))].filter((each) => SCOPES.includes(each));
}

/** Where a client is: what is shown beside its name as large as that, since anybody may take any name. */
export function placeOf(redirectUri: string): { host: string; isHere: boolean } {
  const { protocol, hostname, host } = new URL(redirectUri);
  if (protocol !== 'http:' && protocol !== 'https:') return { host: `${protocol}//`, isHere: true };
  const isHere = ['localhost', '127.0.0.1', '[::1]'].includes(hostname);
  return { host: isHere ? hostname : host, isHere };
}
