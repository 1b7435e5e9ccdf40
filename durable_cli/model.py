"""The words of durable as types: statuses, policies, and the frozen rows that every layer passes on.

Moments are integers, milliseconds since 1970 in UTC (`*_at`); lengths are `*_ms`. Ids that people see are ten random
letters (`Run.id`); `Run.row_id` is the integer that orders runs and never leaves the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class Status(StrEnum):
    """Where a run is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"

    @property
    def finished(self) -> bool:
        """Is this the end of a run?"""
        return self in FINISHED


FINISHED: Final = frozenset(
    {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.COMPENSATED, Status.COMPENSATION_FAILED}
)
UNFINISHED: Final = frozenset(Status) - FINISHED


class Reuse(StrEnum):
    """May a start take the key of a finished holder?"""

    AFTER_CLOSE = "after_close"
    AFTER_FAILURE = "after_failure"
    NEVER = "never"


class Policy(StrEnum):
    """What a duplicate gets (the kind; `send_event` also has the event's name)."""

    USE_EXISTING = "use_existing"
    ERROR = "error"
    CANCEL_EXISTING = "cancel_existing"
    RUN_AGAIN = "run_again"
    SEND_EVENT = "send_event"


@dataclass(frozen=True, slots=True)
class OnDuplicate:
    """A duplicate policy as given: `use_existing`, ..., `send_event:NAME`."""

    policy: Policy
    event: str | None = None

    def __str__(self) -> str:
        return f"{self.policy}:{self.event}" if self.event is not None else str(self.policy)


class Outcome(StrEnum):
    """What a start did."""

    CREATED = "created"
    EXISTING = "existing"
    REPLACED = "replaced"
    QUEUED = "queued"
    MERGED = "merged"
    EVENT_SENT = "event_sent"
    RESUMED = "resumed"


class ActivityKind(StrEnum):
    """What happened to a key, a schedule, a workflow, or the clock."""

    KEY_DUPLICATE = "key_duplicate"
    KEY_HANDED_OFF = "key_handed_off"
    KEY_RELEASED = "key_released"
    KEY_RETAKEN = "key_retaken"
    KEY_PRUNED = "key_pruned"
    KEY_HELD_LONG = "key_held_long"
    KEY_REPLAYED = "key_replayed"
    WORKFLOW_MOVED = "workflow_moved"
    SCHEDULE_MISSED = "schedule_missed"
    SCHEDULE_FAILED = "schedule_failed"
    SCHEDULE_PAUSED = "schedule_paused"
    CLOCK_JUMPED = "clock_jumped"


class StepStatus(StrEnum):
    """Where a recorded operation is. `retrying`: its last attempt failed and another is due; `waiting`: for a moment,
    an event, a child or its branches."""

    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that executes a run now. `alive` is None where it cannot be told (no lock file to probe)."""

    id: int
    pid: int | None
    alive: bool | None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to execute a run: every write of an owner is checked against it, and refused once it is stale."""

    row_id: int
    run_id: str
    owner_id: int
    epoch: int

    @property
    def fence(self) -> tuple[int, int, int]:
        """What `runs.ours` asks for: (row, owner, epoch)."""
        return self.row_id, self.owner_id, self.epoch


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run ended. `type` and `message` are the user's exception's; `step` and `attempt` say where.

    `traceback` begins in the user's file. `branch` and `seq` are the place of the operation whose failure ended the
    run, so that a retry can try it again.
    """

    type: str
    message: str
    step: str | None = None
    attempt: int | None = None
    traceback: str | None = None
    branch: str | None = None
    seq: int | None = None
    fields: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded operation of a run, at its place (`branch`, `seq`).

    `attempts` counts every attempt, cut-off ones too; `failures` those that raised (what a retry budget counts).
    `result` is JSON text; `error` as in `RunError`. `details`: what a waiting one waits for; `child_row`: the run it
    waits for or has started; `undo_order`: set when the step has a compensation, in the order of completion;
    `after_retry`: it was recorded after a failure that a retry has taken back, so the function may go another way.
    """

    branch: str
    seq: int
    kind: str
    name: str
    status: StepStatus
    attempts: int
    failures: int
    started_at: int
    finished_at: int | None
    due_at: int | None
    result: str | None
    error: RunError | None
    details: dict[str, Any] | None = None
    child_row: int | None = None
    undo_order: int | None = None
    after_retry: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a workflow. `input` and `result` are JSON text."""

    row_id: int
    id: str
    workflow: str
    workflow_id: int
    key: str | None
    holds_key: bool
    runs_after_row: int | None
    runs_after_id: str | None
    status: Status
    input: str
    result: str | None
    error: RunError | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    due_at: int | None
    held_since: int | None
    epoch: int
    crashes: int
    timeout_ms: int | None
    deadline_at: int | None
    parent_row: int | None
    note: str | None
    debounced: bool
    owner: Owner | None
    steps: tuple[Step, ...] | None = field(default=None, compare=False)

    @property
    def finished(self) -> bool:
        """Is the run over?"""
        return self.status.finished


@dataclass(frozen=True, slots=True)
class Location:
    """Where a workflow's code is.

    Identity is (`file`, `qualname`): the resolved path and the function's qualified name. `module` is how it was
    imported (None when loaded from its file) and `app_dir` the directory that has to be on `sys.path` for that.
    """

    file: str
    qualname: str
    module: str | None
    app_dir: str


@dataclass(frozen=True, slots=True)
class Policies:
    """What a workflow's definition says about its runs. Lengths in ms; None: no such limit.

    `on_mismatch`: what a duplicate with another input gets, "record" or "error". `on_max_hold`: what happens to a
    holder older than `max_hold_ms`, "report" or "cancel". `key_rule`: the key expression, for people.
    """

    reuse: Reuse = Reuse.AFTER_CLOSE
    on_duplicate: OnDuplicate = OnDuplicate(Policy.USE_EXISTING)
    timeout_ms: int | None = None
    debounce_ms: int | None = None
    debounce_timeout_ms: int | None = None
    max_hold_ms: int | None = None
    on_max_hold: str = "report"
    on_mismatch: str = "record"
    key_rule: str | None = None


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow as its row in the file tells it: the policies in force and where its code is."""

    id: int
    name: str
    location: Location
    policies: Policies


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A piece of what a run printed or logged: of one stream of one attempt of a step (`seq` None: of the code around
    the steps of a branch).

    `position` and `end` count the bytes of the run's output, which only grows; `skipped`: bytes before this piece that
    were not kept. `stream`: "stdout", "stderr" or "log".
    """

    position: int
    end: int
    skipped: int
    at: int
    branch: str
    seq: int | None
    attempt: int | None
    step: str | None
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Activity:
    """One thing that happened to a key, or (without a key) to something else; a clock has no workflow either. `details`
    is a JSON object; `run_id` may name a pruned run; `id` orders them."""

    at: int
    kind: str
    workflow: str | None
    key: str | None
    run_id: str | None
    details: dict[str, object]
    id: int = 0


@dataclass(frozen=True, slots=True)
class Key:
    """A key that has runs, with its holder (None when nobody holds it). `held_too_long`: by an unfinished run, longer
    than its workflow's max_hold."""

    workflow: str
    key: str
    holder_id: str | None
    status: Status | None
    held_since: int | None
    runs: int
    readds_24h: int
    waiting_id: str | None
    owner_alive: bool | None
    held_too_long: bool = False


class Catchup(StrEnum):
    """What due times that nobody was there for get: one fire for all of them, or none."""

    ONE = "one"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a workflow is started by itself.

    `timezone` is an IANA name (`timezone_given`: somebody chose it; else it was the system's). `input`: JSON text, None
    for the workflow's default. `next_fire_at` is the next due time, `wake_at` when somebody has to look (later by the
    jitter). `file`: of the code that declares it (None: made by hand); `vanished_at`: that code no longer does.
    `fires` counts starts, `skips` those that started nothing new, `missed` due times that nobody was there for,
    `failures` fires in a row that failed.
    """

    row_id: int
    name: str
    workflow: str
    cron: str
    timezone: str
    timezone_given: bool
    key: str | None
    on_duplicate: OnDuplicate | None
    input: str | None
    catchup: Catchup
    jitter_ms: int
    file: str | None
    created_at: int
    computed_at: int
    next_fire_at: int | None
    wake_at: int | None
    paused_at: int | None
    paused_reason: str | None
    vanished_at: int | None
    last_fire_at: int | None
    last_outcome: str | None
    last_run_id: str | None
    last_skip_at: int | None
    last_error: str | None
    fires: int
    skips: int
    missed: int
    failures: int

    @property
    def active(self) -> bool:
        """Does it fire?"""
        return self.paused_at is None and self.vanished_at is None


@dataclass(frozen=True, slots=True)
class ScheduleFire:
    """What became of one due time of a schedule (`due_at` None: fired by hand).

    `outcome`: that of the start, `key_taken`, `missed` or `failed`. `missed`: how many due times it stands for besides.
    """

    due_at: int | None
    at: int
    outcome: str
    run_id: str | None
    missed: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class StartResult:
    """What a start did. `run_id` is the run the caller should look at; it can be read at once by any process.

    `holder_id`/`holder_status`: the run that held the key when this start arrived (None where it was free).
    """

    outcome: Outcome
    run_id: str
    workflow: str
    key: str | None
    status: Status
    holder_id: str | None = None
    holder_status: Status | None = None
    replaced_id: str | None = None


@dataclass(frozen=True, slots=True)
class CancelResult:
    """What a cancel did: `cancelled` is 0 or 1; `run_id` and `status` of the run as it is now (None: no run); `was`: its
    status before."""

    cancelled: int
    run_id: str | None
    status: Status | None
    was: Status | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts. `runs` by status; `readds` by outcome; `most_readded` [{workflow, key, count}]; `over_time`
    [{at, count}], an hour or a day each."""

    runs: dict[str, int]
    held: int
    readds: dict[str, int]
    dropped_inputs: int
    handoffs: int
    most_readded: list[dict[str, object]]
    over_time: list[dict[str, object]]
