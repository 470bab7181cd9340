import type pg from 'pg';

/** The lists of what is past that a page may have. */
export const OLDER_LISTS = ['before', 'revoked_before'] as const;
export type OlderList = (typeof OLDER_LISTS)[number];

/** Who looks at a page, and what a page is made with. */
export interface Reader {
  pool: pg.Pool;
  /** SHA-256 of the session's credential: the database shows what is its owner's. */
  credential: Buffer;
  formToken: string;
  /** Where people and agents reach this server. */
  publicUrl: string;
  /** What push services know this server by. */
  pushPublicKey: () => Promise<string>;
  /** What the operator's OpenID provider is called; undefined where there is none. */
  openidName: string | undefined;
  now: Date;
  /** Behind which id a list of what is past goes on, by its name in the page's address. */
  older: (list: OlderList) => string | undefined;
}
