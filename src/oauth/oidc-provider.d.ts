// The part of oidc-provider that is used here; the package brings no types of its own.
declare module 'oidc-provider' {
  import type { IncomingMessage, ServerResponse } from 'node:http';
  import type { Context } from 'koa';

  /** What a model keeps, as its adapter sees it. */
  export interface Payload {
    [field: string]: unknown;
    jti?: string;
    uid?: string;
    userCode?: string;
    grantId?: string;
    scope?: string;
    consumed?: unknown;
  }

  export interface Client {
    clientId: string;
    clientName?: string;
    metadata(): Record<string, unknown>;
  }

  export interface OidcContext {
    route: string;
    params?: Record<string, string | undefined>;
    client?: Client;
    session?: { state?: { secret: string } };
    entities: { RotatedRefreshToken?: { jti: string } };
    urlFor(name: string): string;
  }

  export interface InteractionDetails {
    uid: string;
    params: Record<string, string | undefined>;
    deviceCode?: string;
  }

  interface Grant {
    jti: string;
    addOIDCScope(scope: string): void;
    rejectOIDCScope(scope: string): void;
    addResourceScope(resource: string, scope: string): void;
    rejectResourceScope(resource: string, scope: string): void;
    save(): Promise<string>;
  }

  export class Provider {
    constructor(issuer: string, configuration: Record<string, unknown>);
    static readonly ctx: (Context & { oidc: OidcContext }) | undefined;
    proxy: boolean;
    silent: boolean;
    request: object;
    Client: { find(id: string): Promise<Client | undefined> };
    DeviceCode: { find(id: string): Promise<{ userCode: string; params: Record<string, string> } | undefined> };
    Grant: new (properties: {
      accountId: string;
      clientId: string;
    }) => Grant;
    AccessToken: { prototype: { generateTokenId(): string } };
    RefreshToken: { prototype: { generateTokenId(): string } };
    use(middleware: (ctx: Context & { oidc?: OidcContext }, next: () => Promise<void>) => Promise<void>): this;
    on(event: 'server_error', listener: (ctx: Context, error: Error) => void): this;
    callback(): (request: IncomingMessage, response: ServerResponse) => Promise<void>;
    interactionDetails(request: IncomingMessage, response: ServerResponse): Promise<InteractionDetails>;
    interactionResult(request: IncomingMessage, response: ServerResponse, result: object): Promise<string>;
  }
  export default Provider;

  export const errors: Record<
    'InvalidGrant' | 'InvalidTarget' | 'SessionNotFound',
    new (
      description?: string,
    ) => Error
  >;
}
