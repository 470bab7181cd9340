import type pg from 'pg';

/** Who looks at a page, and what a page is made with. */
export interface Reader {
  pool: pg.Pool;
  /** SHA-256 of the session's credential: the database shows what is its owner's. */
  credential: Buffer;
  formToken: string;
  /** Where people and agents reach this server. */
  publicUrl: string;
  /** What the operator's OpenID provider is called; undefined where there is none. */
  openidName: string | undefined;
  now: Date;
}
