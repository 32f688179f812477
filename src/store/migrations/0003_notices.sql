-- What the operator was told of, so that nothing is told twice; a row goes when its need does.
create table notices (
    need       text primary key,
    told_at_ms integer not null
) strict, without rowid;

-- The reply is such a notice: one that cannot be sent is not told of in turn.
alter table outbox add column notice integer not null default 0 check (notice in (0, 1));
