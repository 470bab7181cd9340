set local role posthorn_owner;

-- Names and purposes are what a person decides by and what agents address. One of spaces, or of marks that turn text
-- around, shows as nothing.
create function posthorn.shows_ink(p_text text) returns boolean
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
  -- src/operations/fields.ts lists the same: controls, spaces, joiners, directions, fillers, selectors, tags
  select p_text ~ U&'[^\0001-\0020\007F-\00A0\00AD\034F\061C\115F\1160\1680\17B4\17B5\180B-\180F\2000-\200F\2028-\202F\205F-\206F\2800\3000\3164\FE00-\FE0F\FEFF\FFA0\FFF0-\FFFB\+01BCA0-\+01BCA3\+01D173-\+01D17A\+0E0000-\+0E0FFF]'
$$;
comment on function posthorn.shows_ink(text) is 'Whether a text has a character that can be seen.';
grant execute on function posthorn.shows_ink(text) to posthorn_engine, posthorn_admin;

do $$
declare
  v_text record;
begin
  for v_text in
    select t.table_name, t.column_name, t.instead
      from (values ('owners', 'label', 'unnamed'), ('connections', 'label', 'unnamed'), ('agents', 'label', 'unnamed'), ('agents', 'runtime_version', null),
                   ('groups', 'name', 'unnamed'), ('groups', 'purpose', 'unnamed'), ('groups', 'project_boundary', null),
                   ('proposals', 'name', 'unnamed'), ('proposals', 'purpose', 'unnamed'), ('proposals', 'project_boundary', null)) t(table_name, column_name, instead)
  loop
    -- who owns the tables is under their policies like everybody, and proves no owner here
    execute format('alter table posthorn.%I no force row level security', v_text.table_name);
    execute format('update posthorn.%1$I set %2$I = %3$L where not posthorn.shows_ink(%2$I)', v_text.table_name, v_text.column_name, v_text.instead);
    execute format('alter table posthorn.%I add constraint %I check (posthorn.shows_ink(%I))', v_text.table_name, v_text.column_name || '_shows_ink', v_text.column_name);
    execute format('alter table posthorn.%I force row level security', v_text.table_name);
  end loop;
end $$;
