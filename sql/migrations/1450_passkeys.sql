set local role posthorn_owner;

insert into posthorn.limits (name, value, minimum, maximum, description) values
  ('passkeys_per_owner', 20, 1, 1000, 'passkeys of one owner'),
  ('openid_accounts_per_owner', 5, 1, 100, 'accounts at the OpenID provider that sign one owner in'),
  ('sign_ins_begun_per_hour', 600, 1, 1000000, 'sign-ins by passkey or OpenID provider that are begun from one address in an hour');

alter table posthorn.attempts drop constraint act_is_known;
alter table posthorn.attempts add constraint act_is_known
  check (act = any ('{sign_in,begin_sign_in,register_client,authorize,ask_device_code}')) not valid;

-- What a browser must come back with: a passkey signs it, a provider hands it back. One for each purpose and session, or
-- cookie of a browser that nobody is signed in with. Unlogged: after a crash of the server one begins again.
create unlogged table posthorn.challenges (
  bound_to bytea not null constraint bound_to_is_sha256 check (octet_length(bound_to) = 32),
  purpose text not null constraint purpose_is_known check (purpose = any ('{add_passkey,use_passkey,connect_openid,use_openid}')),
  challenge_hash bytea not null constraint challenge_hash_is_sha256 check (octet_length(challenge_hash) = 32),
  handle_hash bytea constraint handle_hash_is_sha256 check (octet_length(handle_hash) = 32),
  expires_at timestamptz not null,
  primary key (bound_to, purpose),
  constraint only_a_new_passkey_has_a_handle check ((purpose = 'add_passkey') = (handle_hash is not null))
);
create index challenges_by_end on posthorn.challenges (expires_at);

-- A passkey is found by the hash of its user handle: 256 random bits that its authenticator alone keeps, and shows when
-- its person has agreed. Neither a dump nor a list of credential ids is enough to name its owner.
create table posthorn.passkeys (
  owner_id int not null references posthorn.owners on delete cascade,
  passkey_id uuid not null default posthorn.make_id(),
  handle_hash bytea not null constraint handle_hash_is_sha256 check (octet_length(handle_hash) = 32),
  credential_id bytea not null constraint credential_id_has_16_to_1023_bytes check (octet_length(credential_id) between 16 and 1023),
  public_key bytea not null constraint public_key_is_bounded check (octet_length(public_key) between 32 and 2048),
  sign_count bigint not null constraint sign_count_has_32_bits check (sign_count between 0 and 4294967295),
  label text not null constraint label_has_1_to_64_characters check (char_length(label) between 1 and 64) constraint label_is_one_line check (label !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  created_at timestamptz not null,
  last_used_at timestamptz,
  primary key (owner_id, passkey_id),
  constraint handles_are_unique_everywhere unique (handle_hash),
  constraint passkeys_are_unique_everywhere unique (credential_id)
);

-- An account at the OpenID provider, by an HMAC of issuer and subject whose key is one of the server's secrets: subjects
-- are names and numbers that anybody may guess.
create table posthorn.openid_accounts (
  owner_id int not null references posthorn.owners on delete cascade,
  account_id uuid not null default posthorn.make_id(),
  subject_hash bytea not null constraint subject_hash_is_sha256 check (octet_length(subject_hash) = 32),
  issuer text not null constraint issuer_has_1_to_512_characters check (char_length(issuer) between 1 and 512),
  label text not null constraint label_has_1_to_64_characters check (char_length(label) between 1 and 64) constraint label_is_one_line check (label !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  created_at timestamptz not null,
  last_used_at timestamptz,
  primary key (owner_id, account_id),
  constraint subjects_are_unique_everywhere unique (subject_hash)
);
