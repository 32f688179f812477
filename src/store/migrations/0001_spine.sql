-- The spine: what survives kill -9. Times are Unix milliseconds, UTC; ids in `session` are UUIDs as text.

-- Per channel account, what has been acknowledged to the platform.
create table cursors (
    channel       text primary key,
    value         integer not null,
    updated_at_ms integer not null
) strict;

create table sessions (
    id             text primary key,
    -- the thread's key when the session was minted; the id is derived from it
    first_key      text not null unique,
    link           text,
    status         text not null default 'active' check (status in ('active', 'paused', 'completed', 'failed')),
    -- newest checkpoint; a commit names it as its parent or fails
    head           integer references checkpoints (id),
    -- the turn at work and the start of the daemon that holds it; another boot's lease is void
    lease_turn     integer,
    lease_boot     text,
    last_seq       integer not null default 0,
    turns          integer not null default 0,
    -- the thread was told that its window no longer holds everything
    window_told    integer not null default 0 check (window_told in (0, 1)),
    created_at_ms  integer not null,
    active_at_ms   integer not null
) strict;

-- Thread key to session; a thread that got a new key keeps its session through a second row.
create table threads (
    key           text primary key,
    session       text not null references sessions (id),
    created_at_ms integer not null
) strict;

create table turns (
    id            integer primary key,
    session       text not null references sessions (id),
    cause         text not null check (cause in ('message', 'command', 'job')),
    mode          text not null check (mode in ('console', 'daemon', 'scheduler', 'run_agent')),
    state         text not null check (state in ('running', 'suspended', 'done', 'parked')),
    link          text,
    sender        text not null,
    boot          text not null,
    -- times the process died while it worked on this turn
    crashes       integer not null default 0,
    -- someone who may asked for its end; holds over a restart
    cancel_asked  integer not null default 0 check (cancel_asked in (0, 1)),
    budget        text not null,
    spent         text not null,
    model         text,
    end_reason    text,
    -- for the operator, never for a chat
    detail        text,
    started_at_ms integer not null,
    ended_at_ms   integer,
    check ((state = 'done') = (end_reason is not null) or state = 'parked')
) strict;
create index turns_by_session on turns (session, id);
create index turns_open on turns (state) where state <> 'done';

create table inbox (
    id             integer primary key,
    -- kind:account, as in the thread key
    channel        text not null,
    update_key     text not null,
    chat           text not null,
    message_key    text not null,
    thread_key     text not null,
    -- where within the chat the answer goes, which threads = "chat" keeps out of the key
    topic          text,
    session        text references sessions (id),
    link           text,
    sender         text not null,
    sender_name    text not null default '',
    chat_name      text not null default '',
    -- null for what is ignored: a stranger's words are not kept
    text           text,
    -- words of others that came with it: forwarded or quoted, as JSON blocks
    outside        text,
    -- a delivery that no type of ours fits, as it came
    raw            text,
    -- what a command without a model was answered
    answer         text,
    -- a command that is not for the model
    command        text,
    -- /stop, /status and the operator's commands do not wait for the queue
    urgent         integer not null default 0 check (urgent in (0, 1)),
    -- album id, or null
    album          text,
    -- the text reached the platform's limit: its other half may follow
    near_limit     integer not null default 0 check (near_limit in (0, 1)),
    state          text not null check (state in ('new', 'joined', 'running', 'done', 'ignored', 'dead')),
    joined_to      integer references inbox (id),
    turn           integer references turns (id),
    attempts       integer not null default 0,
    reason         text,
    reply_to       text,
    not_before_ms  integer not null default 0,
    received_at_ms integer not null,
    ended_at_ms    integer,
    unique (channel, update_key),
    unique (channel, chat, message_key)
) strict;
create index inbox_waiting on inbox (session, id) where state in ('new', 'joined', 'running');
create index inbox_urgent on inbox (id) where state = 'new' and urgent = 1;
create index inbox_ignored on inbox (received_at_ms) where state = 'ignored';
create index inbox_by_turn on inbox (turn);

create table messages (
    session       text not null references sessions (id),
    seq           integer not null,
    turn          integer not null references turns (id),
    role          text not null check (role in ('user', 'assistant', 'tool')),
    blocks        text not null,
    created_at_ms integer not null,
    primary key (session, seq)
) strict, without rowid;

create table checkpoints (
    id            integer primary key,
    session       text not null references sessions (id),
    -- each checkpoint has at most one child: a chain cannot fork even if a query were wrong
    parent        integer unique references checkpoints (id),
    turn          integer not null references turns (id),
    round         integer not null,
    kind          text not null check (kind in ('opened', 'proposed', 'completed', 'repaired', 'compacted', 'concluded')),
    first_seq     integer not null,
    last_seq      integer not null,
    state         text not null,
    created_at_ms integer not null
) strict;
create unique index checkpoints_roots on checkpoints (session) where parent is null;
create index checkpoints_by_turn on checkpoints (turn);

create table outbox (
    id            integer primary key,
    channel       text not null,
    chat          text not null,
    thread        text,
    reply_to      text,
    session       text references sessions (id),
    turn          integer references turns (id),
    part          integer not null,
    parts         integer not null,
    html          text,
    plain         text not null,
    -- shown before the text when a reader may have seen it already
    again         integer not null default 0 check (again in (0, 1)),
    state         text not null check (state in ('pending', 'reserving', 'reserved', 'sending', 'sent', 'uncertain', 'dead')),
    boot          text,
    nonce         text,
    platform_id   text,
    attempts      integer not null default 0,
    not_before_ms integer not null default 0,
    error         text,
    created_at_ms integer not null,
    ended_at_ms   integer
) strict;
create index outbox_due on outbox (channel, chat, id) where state in ('pending', 'sending');
create index outbox_doubt on outbox (state) where state in ('uncertain', 'dead');
create index outbox_by_turn on outbox (turn);

create table timeline (
    id      integer primary key,
    at_ms   integer not null,
    session text,
    turn    integer,
    call    text,
    kind    text not null,
    detail  text not null
) strict;
create index timeline_by_session on timeline (session, id);
create index timeline_by_turn on timeline (turn, id);

-- Pairing codes, by digest.
create table pins (
    id            integer primary key,
    kind          text not null check (kind in ('pairing')),
    channel       text not null,
    digest        text not null,
    state         text not null check (state in ('open', 'claimed', 'done', 'void')),
    tries_left    integer not null,
    expires_at_ms integer not null,
    -- what a claimed code is turned into, as JSON
    claim         text,
    created_at_ms integer not null
) strict;

create trigger timeline_is_append_only before update on timeline
begin
    select raise(abort, 'the timeline is append-only');
end;
create trigger messages_are_append_only before update on messages
begin
    select raise(abort, 'the history is append-only');
end;
