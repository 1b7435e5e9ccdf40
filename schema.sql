-- The tables of durable.
--
-- One SQLite file in WAL mode holds everything: which workflows are known, their runs, the recorded steps of each
-- run, which process executes what, and what happened to keys. The file may hold an application's own tables too,
-- so every name here begins with durable_, the schema's version is a row of durable_meta, and `user_version` and
-- `application_id` are left to the application.
--
-- The life of a run. A start writes a row: `pending`, due now. Some process, the owner, claims it (`running`, with
-- the owner's id and the epoch raised by one), executes the workflow function and records each finished operation in
-- durable_steps. When the function must wait, the run rests as `waiting` until due_at. It ends as one of five
-- finished statuses, keeps its result or error, and lets its owner go. When an owner dies, its runs are orphans: the
-- next process that looks claims them again, with a higher epoch, and the old owner, should it wake up, finds that no
-- write of its epoch is accepted any more.
--
-- Keys. A run with a key either holds it or, while unfinished, waits behind the holder (runs_after_id). Two partial
-- unique indexes say the promise of the whole product: at most one holder and at most one waiting run for each
-- (workflow, key). Status is no part of that: a finished run goes on holding its key until a start takes it, someone
-- releases it, or it is pruned, and whether a start may take it is the workflow's `reuse`. A run that lost its key
-- keeps the key's text: that is its history.
--
-- Moments (*_at) are integers, milliseconds since 1970 in UTC, and never decide an order: the integer ids do. Inputs,
-- results and errors are JSON text, made and checked by the program. People see public_id, ten random letters; the
-- integer id stays inside.

CREATE TABLE durable_meta (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A workflow as its last start defined it: policies, and where its code is, for those who have only the file.
CREATE TABLE durable_workflows (
  id           INTEGER PRIMARY KEY,
  name         TEXT NOT NULL,
  file         TEXT NOT NULL,             -- resolved path; (file, qualname) is the identity
  qualname     TEXT NOT NULL,
  module       TEXT,                      -- import name; NULL: load the file itself
  app_dir      TEXT NOT NULL,             -- what has to be on sys.path
  reuse        TEXT NOT NULL,
  on_duplicate TEXT NOT NULL,
  timeout_ms   INTEGER,                   -- how long a run may take; NULL: as long as it likes
  debounce_ms  INTEGER,                   -- how long a keyed start waits for a newer one
  debounce_timeout_ms INTEGER,            -- how long at most, from the first of a burst
  max_hold_ms  INTEGER,                   -- how long an unfinished run may hold its key before somebody is told
  on_max_hold  TEXT NOT NULL,
  on_mismatch  TEXT NOT NULL,             -- what a duplicate with another input gets
  key_rule     TEXT,                      -- the key expression, for people to read
  updated_at   INTEGER NOT NULL,
  CONSTRAINT workflow_name_is_unique UNIQUE (name),
  CONSTRAINT reuse_is_known CHECK (reuse IN ('after_close', 'after_failure', 'never')),
  CONSTRAINT timeout_is_positive CHECK (timeout_ms > 0),
  CONSTRAINT debounce_is_positive CHECK (debounce_ms > 0),
  CONSTRAINT debounce_timeout_covers_a_period CHECK (debounce_timeout_ms >= debounce_ms),
  CONSTRAINT on_max_hold_is_known CHECK (on_max_hold IN ('report', 'cancel')),
  CONSTRAINT on_mismatch_is_known CHECK (on_mismatch IN ('record', 'error'))
) STRICT;

-- A process that executes runs. It is alive while it holds byte `id` of the lock file beside the database, so ids
-- are never used twice.
CREATE TABLE durable_owners (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  pid        INTEGER NOT NULL,
  kind       TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  CONSTRAINT owner_kind_is_known CHECK (kind IN ('run', 'worker'))
) STRICT;

CREATE TABLE durable_runs (
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  public_id     TEXT NOT NULL,
  workflow_id   INTEGER NOT NULL REFERENCES durable_workflows (id),
  key           TEXT,
  holds_key     INTEGER NOT NULL DEFAULT 0,
  runs_after_id INTEGER REFERENCES durable_runs (id),
  status        TEXT NOT NULL DEFAULT 'pending',
  input         TEXT NOT NULL,
  result        TEXT,
  error         TEXT,
  created_at    INTEGER NOT NULL,
  started_at    INTEGER,
  finished_at   INTEGER,
  due_at        INTEGER,                  -- when a resting run may go on
  held_since    INTEGER,                  -- when it took the key it holds
  owner_id      INTEGER REFERENCES durable_owners (id),
  epoch         INTEGER NOT NULL DEFAULT 0,
  crashes       INTEGER NOT NULL DEFAULT 0,  -- owners that died since the last recorded operation
  timeout_ms    INTEGER,
  deadline_at   INTEGER,                  -- when it times out: counted from the moment it may begin
  parent_id     INTEGER REFERENCES durable_runs (id) ON DELETE SET NULL,
  debounced     INTEGER NOT NULL DEFAULT 0,  -- until it is claimed, a newer start moves its due time and its input
  note          TEXT,                     -- why nobody goes on with it (its code cannot be loaded)
  CONSTRAINT public_id_is_unique UNIQUE (public_id),
  CONSTRAINT public_id_is_ten_letters CHECK (length(public_id) = 10),
  CONSTRAINT status_is_known CHECK (status IN (
    'pending', 'running', 'waiting', 'compensating',
    'completed', 'failed', 'cancelled', 'compensated', 'compensation_failed')),
  CONSTRAINT key_is_1_to_255_bytes CHECK (key IS NULL OR octet_length(key) BETWEEN 1 AND 255),
  CONSTRAINT holds_key_is_a_flag CHECK (holds_key IN (0, 1)),
  CONSTRAINT only_a_keyed_run_holds CHECK (holds_key = 0 OR key IS NOT NULL),
  CONSTRAINT held_since_goes_with_holding CHECK ((held_since IS NOT NULL) = (holds_key = 1)),
  CONSTRAINT waiting_behind_is_pending CHECK (
    runs_after_id IS NULL OR (key IS NOT NULL AND holds_key = 0 AND status = 'pending' AND owner_id IS NULL)),
  CONSTRAINT unfinished_keyed_holds_or_waits CHECK (
    key IS NULL OR holds_key = 1 OR runs_after_id IS NOT NULL
    OR status IN ('completed', 'failed', 'cancelled', 'compensated', 'compensation_failed')),
  CONSTRAINT finished_has_its_moment CHECK (
    (finished_at IS NOT NULL)
    = (status IN ('completed', 'failed', 'cancelled', 'compensated', 'compensation_failed'))),
  CONSTRAINT finished_is_let_go CHECK (finished_at IS NULL OR (owner_id IS NULL AND due_at IS NULL)),
  CONSTRAINT running_has_an_owner CHECK (status <> 'running' OR owner_id IS NOT NULL),
  CONSTRAINT pending_has_a_due_time CHECK (status <> 'pending' OR due_at IS NOT NULL OR runs_after_id IS NOT NULL),
  CONSTRAINT only_completed_has_a_result CHECK (result IS NULL OR status = 'completed'),
  CONSTRAINT ended_badly_has_an_error CHECK (
    (error IS NOT NULL) = (status IN ('compensating', 'failed', 'cancelled', 'compensated', 'compensation_failed'))),
  CONSTRAINT debounced_is_a_flag CHECK (debounced IN (0, 1)),
  CONSTRAINT deadline_needs_a_timeout CHECK (deadline_at IS NULL OR (timeout_ms > 0 AND finished_at IS NULL)),
  CONSTRAINT never_claimed_is_epoch_zero CHECK (epoch >= 0 AND crashes >= 0 AND (epoch > 0 OR started_at IS NULL))
) STRICT;

-- The promise: one holder, one waiting run.
CREATE UNIQUE INDEX durable_one_holder ON durable_runs (workflow_id, key) WHERE holds_key = 1;
CREATE UNIQUE INDEX durable_one_waiting ON durable_runs (workflow_id, key) WHERE runs_after_id IS NOT NULL;
CREATE INDEX durable_runs_behind ON durable_runs (runs_after_id) WHERE runs_after_id IS NOT NULL;
CREATE INDEX durable_runs_by_key ON durable_runs (key, workflow_id, id) WHERE key IS NOT NULL;
CREATE INDEX durable_runs_by_workflow ON durable_runs (workflow_id, id);
CREATE INDEX durable_runs_unfinished ON durable_runs (status, due_at) WHERE finished_at IS NULL;
CREATE INDEX durable_runs_owned ON durable_runs (owner_id) WHERE owner_id IS NOT NULL;
CREATE INDEX durable_runs_overdue ON durable_runs (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX durable_runs_children ON durable_runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX durable_runs_finished ON durable_runs (finished_at) WHERE finished_at IS NOT NULL;

-- One recorded operation of a run. Its place is (branch, seq): the seq-th operation on that branch of the function.
-- A step that runs is not announced: it has no row until its first attempt ended. An operation that waits (a sleep,
-- an event, a child, branches) has one from the moment it waits.
CREATE TABLE durable_steps (
  run_id      INTEGER NOT NULL REFERENCES durable_runs (id) ON DELETE CASCADE,
  branch      TEXT NOT NULL,
  seq         INTEGER NOT NULL,
  kind        TEXT NOT NULL,
  name        TEXT NOT NULL,
  status      TEXT NOT NULL,
  attempts    INTEGER NOT NULL,           -- all, those cut off by a crash too
  failures    INTEGER NOT NULL,           -- those that raised: what a retry budget counts
  started_at  INTEGER NOT NULL,
  finished_at INTEGER,
  due_at      INTEGER,                    -- of a retrying one: its next attempt; of a waiting one: its time-out
  result      TEXT,
  error       TEXT,
  details     TEXT,                       -- of an operation that waits: what for, as a JSON object
  child_id    INTEGER REFERENCES durable_runs (id) ON DELETE SET NULL,  -- the run it waits for or has started
  undo_order  INTEGER,                    -- of a step with a compensation: the how-manieth of its run that completed
  after_retry INTEGER NOT NULL DEFAULT 0, -- recorded after a failure that a retry has taken back
  PRIMARY KEY (run_id, branch, seq),
  CONSTRAINT step_status_is_known CHECK (status IN ('completed', 'failed', 'retrying', 'waiting')),
  CONSTRAINT step_result_when_completed CHECK ((result IS NOT NULL) = (status = 'completed')),
  CONSTRAINT step_error_when_it_failed CHECK ((error IS NOT NULL) = (status IN ('failed', 'retrying'))),
  CONSTRAINT step_due_when_retrying CHECK (status IN ('waiting') OR (due_at IS NOT NULL) = (status = 'retrying')),
  CONSTRAINT step_finished_when_ended CHECK ((finished_at IS NOT NULL) = (status IN ('completed', 'failed'))),
  CONSTRAINT only_completed_is_undone CHECK (undo_order IS NULL OR status = 'completed'),
  CONSTRAINT step_counts_attempts CHECK (failures BETWEEN 0 AND attempts)
) STRICT, WITHOUT ROWID;

CREATE INDEX durable_steps_waiting ON durable_steps (run_id) WHERE status = 'waiting';
CREATE INDEX durable_steps_by_child ON durable_steps (child_id) WHERE child_id IS NOT NULL;
CREATE INDEX durable_steps_undone ON durable_steps (run_id) WHERE undo_order IS NOT NULL;

-- Events and a human's answers, sent to a run and kept until it gets there. A run receives one of each name, for
-- ever: `received` marks it, and the others stay for people to see.
CREATE TABLE durable_events (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id     INTEGER NOT NULL REFERENCES durable_runs (id) ON DELETE CASCADE,
  kind       TEXT NOT NULL,
  name       TEXT NOT NULL,
  payload    TEXT NOT NULL,
  received   INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  CONSTRAINT event_kind_is_known CHECK (kind IN ('event', 'input')),
  CONSTRAINT received_is_a_flag CHECK (received IN (0, 1))
) STRICT;

CREATE INDEX durable_events_by_name ON durable_events (run_id, kind, name, id);
CREATE UNIQUE INDEX durable_one_received ON durable_events (run_id, kind, name) WHERE received = 1;

-- What runs print and log, in pieces: the first and the last of each run, the middle of a long output is left out.
-- `position` is how many bytes of the run's output came before the piece; where pieces do not meet, some is missing.
CREATE TABLE durable_logs (
  id       INTEGER PRIMARY KEY,
  run_id   INTEGER NOT NULL REFERENCES durable_runs (id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  size     INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  branch   TEXT NOT NULL,
  seq      INTEGER,                       -- NULL: printed by the code around the steps
  attempt  INTEGER,
  step     TEXT,                          -- its name: a step that runs has no row yet
  stream   TEXT NOT NULL,
  text     TEXT NOT NULL,
  CONSTRAINT log_is_in_order UNIQUE (run_id, position),
  CONSTRAINT log_stream_is_known CHECK (stream IN ('stdout', 'stderr', 'log')),
  CONSTRAINT log_of_an_attempt CHECK ((seq IS NULL) = (attempt IS NULL) AND (seq IS NULL) = (step IS NULL)),
  CONSTRAINT log_has_a_size CHECK (size > 0 AND position >= 0)
) STRICT;

-- What is started by itself, and when: a cron expression read in a time zone. Any number of processes look at it, and
-- none is the leader: next_fire_at moves on in the transaction that starts the run.
CREATE TABLE durable_schedules (
  id             INTEGER PRIMARY KEY,
  name           TEXT NOT NULL,
  workflow_id    INTEGER NOT NULL REFERENCES durable_workflows (id),
  cron           TEXT NOT NULL,
  timezone       TEXT NOT NULL,           -- an IANA name; it stays when the machine travels
  timezone_given INTEGER NOT NULL,        -- somebody chose it; else it was the system's
  key            TEXT,
  on_duplicate   TEXT,                    -- NULL: the workflow's
  input          TEXT,                    -- NULL: the workflow's default
  catchup        TEXT NOT NULL,
  jitter_ms      INTEGER NOT NULL DEFAULT 0,
  file           TEXT,                    -- of the code that declares it; NULL: made by hand
  created_at     INTEGER NOT NULL,
  computed_at    INTEGER NOT NULL,        -- by what clock next_fire_at was computed; a later one was set back since
  next_fire_at   INTEGER,                 -- the next due time; NULL: none within fifty years
  wake_at        INTEGER,                 -- when somebody has to look: the due time and its jitter
  paused_at      INTEGER,
  paused_reason  TEXT,
  vanished_at    INTEGER,                 -- since when the code no longer declares it; it does not fire
  last_fire_at   INTEGER,
  last_outcome   TEXT,
  last_run_id    TEXT,
  last_skip_at   INTEGER,                 -- the last fire that started nothing new, as its key was taken
  last_error     TEXT,                    -- why the last fire failed
  fires          INTEGER NOT NULL DEFAULT 0,
  skips          INTEGER NOT NULL DEFAULT 0,
  missed         INTEGER NOT NULL DEFAULT 0,  -- due times that nobody was there for
  failures       INTEGER NOT NULL DEFAULT 0,  -- fires in a row that failed
  CONSTRAINT schedule_name_is_unique UNIQUE (name),
  CONSTRAINT schedule_key_is_1_to_255_bytes CHECK (key IS NULL OR octet_length(key) BETWEEN 1 AND 255),
  CONSTRAINT catchup_is_known CHECK (catchup IN ('one', 'skip')),
  CONSTRAINT timezone_given_is_a_flag CHECK (timezone_given IN (0, 1)),
  CONSTRAINT jitter_is_at_most_a_day CHECK (jitter_ms BETWEEN 0 AND 86400000),
  CONSTRAINT looked_at_when_it_fires CHECK ((next_fire_at IS NULL) = (wake_at IS NULL)),
  CONSTRAINT paused_has_a_reason CHECK ((paused_at IS NULL) = (paused_reason IS NULL)),
  CONSTRAINT only_code_vanishes CHECK (vanished_at IS NULL OR file IS NOT NULL),
  CONSTRAINT schedule_counts CHECK (fires >= 0 AND missed >= 0 AND failures >= 0 AND skips BETWEEN 0 AND fires)
) STRICT;

CREATE INDEX durable_schedules_by_wake ON durable_schedules (wake_at) WHERE paused_at IS NULL AND vanished_at IS NULL;

-- What became of each due time. A row claims it for good: the clock may be set back to it, it does not fire again.
-- The newest of each schedule are kept. Ids and texts only: a fire outlives its run.
CREATE TABLE durable_fires (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,
  schedule_id INTEGER NOT NULL REFERENCES durable_schedules (id) ON DELETE CASCADE,
  due_at      INTEGER,                    -- NULL: fired by hand
  at          INTEGER NOT NULL,
  outcome     TEXT NOT NULL,
  run_id      TEXT,
  missed      INTEGER NOT NULL DEFAULT 0, -- due times that nobody was there for, told with this one
  reason      TEXT,
  CONSTRAINT fire_outcome_is_known CHECK (outcome IN (
    'created', 'existing', 'replaced', 'queued', 'merged', 'event_sent', 'key_taken', 'missed', 'failed')),
  CONSTRAINT fire_counts_missed CHECK (missed >= 0)
) STRICT;

CREATE UNIQUE INDEX durable_one_fire ON durable_fires (schedule_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX durable_fires_of ON durable_fires (schedule_id, id);

-- What happened to keys and schedules. Outlives the runs it names, hence text and no foreign keys.
CREATE TABLE durable_activity (
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  at            INTEGER NOT NULL,
  kind          TEXT NOT NULL,
  workflow      TEXT NOT NULL,
  key           TEXT,
  run_id        TEXT,
  outcome       TEXT,                     -- of a key_duplicate: what the start did
  input_changed INTEGER,                  -- of a key_duplicate: the dropped or superseded input differs
  details       TEXT NOT NULL,
  CONSTRAINT outcome_goes_with_duplicate CHECK ((outcome IS NOT NULL) = (kind = 'key_duplicate')),
  CONSTRAINT input_changed_is_a_flag CHECK (input_changed IN (0, 1))
) STRICT;

CREATE INDEX durable_activity_by_key ON durable_activity (key, workflow, id) WHERE key IS NOT NULL;
CREATE INDEX durable_activity_by_moment ON durable_activity (at);
