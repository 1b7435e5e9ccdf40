"""What is wrong, or soon will be, with a database and what it needs: `durable doctor`.

Looks only, and loads no code of users. Each finding says what would mend it, as one command where one does.
"""

from __future__ import annotations

import ast
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from durable_cli import lookup, timekeeping
from durable_cli.core.schedules import MAX_FAILURES
from durable_cli.core.timing import format_age, format_count, format_duration
from durable_cli.engine import Engine
from durable_cli.errors import FILE_ERRORS, DatabaseCorrupt, DurableError, UnsafeCode
from durable_cli.firing import rule_of
from durable_cli.model import Key, Run, Schedule, Workflow
from durable_cli.places import COMMANDS, check_safe, is_there
from durable_cli.store import checks, failures, filesystem, health, library, runs, schedules, workflows
from durable_cli.store import owners as owner_rows
from durable_cli.store.database import Tx

FEW_BYTES: Final = 256 << 20
"""Free space below which a warning is given; with less than a sixteenth of it, an error."""
LONG_LOG: Final = 64 << 20
"""Bytes of the -wal file that only a reader who never lets go explains."""
LATE_MS: Final = 5 * 60_000
"""How long something may be due before it is said that nobody does it: five turns of a tick in a crontab."""
STUCK_MS: Final = 86_400_000
"""From when on an unfinished holder is called stuck, unless its workflow has a `max_hold`."""
_MOST: Final = 10
WORKER: Final = "durable worker"
"""What mends that nobody executes; the command line adds the line for a crontab."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know. `check`: what was looked at; `severity`: error, warning, or note (meant so, most likely);
    `hint`: the command that mends it, or the first one to try."""

    check: str
    severity: str
    message: str
    hint: str | None = None
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, and what was seen on the way. `failure`: why the database cannot be used, if it cannot."""

    facts: dict[str, object]
    findings: list[Finding]
    failure: DurableError | None = None

    @property
    def healthy(self) -> bool:
        """Is there nothing but notes?"""
        return all(finding.severity == "note" for finding in self.findings)


def examine(engine: Engine) -> Diagnosis:
    """Everything about the file of `engine`. Raises DatabaseNotFound; other errors of the file are findings."""
    path = engine.path
    facts: dict[str, object] = {**library.versions(), **_sizes(path)}
    findings = [*left_behind(path), *_files(path), *_disk(path)]
    try:
        problems = engine.database.read(lambda tx: checks.check(tx, quick=True))
        seen = engine.database.read(lambda tx: _look(tx, engine))
    except FILE_ERRORS as error:
        first = Finding("database", "error", error.message, error.hint, error.facts)
        return Diagnosis(facts, [first, *findings], error)
    facts["workers"] = len(seen.workers)
    findings += [Finding("database", "error", problem, "durable db check") for problem in problems]
    for found in (_clock(seen), _code(seen), _keys(seen), _runs(seen), _schedules(seen)):
        findings += found
    return Diagnosis(facts, findings, DatabaseCorrupt(problems[0]) if problems else None)


# -- the file ------------------------------------------------------------------------------------------------------


def left_behind(path: Path) -> Iterator[Finding]:
    """A log without its database: whatever is put there next would be written over by it."""
    beside = [f"{path}{suffix}" for suffix in ("-wal", "-shm") if os.path.exists(f"{path}{suffix}")]
    if beside and not is_there(path):
        yield Finding(
            "file",
            "error",
            f"there is no database {path}, but {' and '.join(beside)} of one that was moved or deleted",
            f"mv {shlex.join(beside)} /tmp   # with all durable processes stopped",
            ("its last commits are in there; a database that is put here would be overwritten with them",),
        )


def _sizes(path: Path) -> dict[str, object]:
    return {
        "bytes": _size(path),
        "log_bytes": _size(Path(f"{path}-wal")),
        "free_bytes": failures.free_bytes(path),
        "file_system": filesystem.kind_of(path)[0] or None,
    }


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _files(path: Path) -> Iterator[Finding]:
    readable = []
    for suffix in ("", "-wal", "-shm", "-lock"):
        try:
            about = os.stat(f"{path}{suffix}")
        except OSError:
            continue
        if stat.S_IMODE(about.st_mode) & 0o077:
            readable.append(f"{path}{suffix}")
        if about.st_uid != os.geteuid():
            yield Finding(
                "file",
                "warning",
                f"{path}{suffix} belongs to {failures.owner_name(about.st_uid)},"
                f" and this process runs as {failures.owner_name(os.geteuid())}",
                f"sudo -u {shlex.quote(failures.owner_name(about.st_uid))} durable doctor",
            )
    if readable:
        yield Finding(
            "file",
            "warning",
            f"others may read {' and '.join(readable)}, and inputs and results are plain text in there",
            f"chmod 600 {shlex.join(readable)}",
        )
    kind, mounted = filesystem.kind_of(path)
    if kind in filesystem.UNSAFE:
        yield Finding(
            "file",
            "error",
            f"{path} lies on a {kind} file system ({mounted}), where SQLite loses data without an error",
            f"{filesystem.OVERRIDE}=1 durable db backup ~/{shlex.quote(path.name)}"
            "   # if that is a local disk; then go on with the copy",
        )


def _disk(path: Path) -> Iterator[Finding]:
    free = failures.free_bytes(path)
    if free is not None and free < FEW_BYTES:
        yield Finding(
            "disk",
            "error" if free < FEW_BYTES // 16 else "warning",
            f"{free >> 20} MiB are free on the file system of {path}; without space nothing can be recorded",
            f"df -h {shlex.quote(str(path.parent))}",
        )
    log = _size(Path(f"{path}-wal"))
    if log > LONG_LOG:
        yield Finding(
            "log",
            "warning",
            f"{path}-wal has {log >> 20} MiB: a process that reads and does not end keeps it from being emptied",
            f"fuser -v {shlex.quote(f'{path}-wal')}",
            ("an idle worker empties it once a minute, as does the last process that closes the database",),
        )


# -- what is in it -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """The content at one moment. `ahead`: runs at rest that go on by the time, owned by nobody;
    `told`: runs that a finding names already; `broken`: workflows whose code is gone."""

    now: int
    clock: str | None
    workers: list[int]
    orphans: list[Run]
    late: list[Run]
    ahead: int
    noted: list[dict[str, object]]
    too_long: list[Run]
    keys: list[Key]
    schedules: list[Schedule]
    needed: list[tuple[Workflow, int, int]]
    told: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)


def _look(tx: Tx, engine: Engine) -> _Seen:
    now = engine.now()
    needed = []
    for row in health.needed(tx):
        known = workflows.get(tx, row["name"])
        if known is not None:
            needed.append((known, row["runs"], row["schedules"]))
    return _Seen(
        now=now,
        clock=timekeeping.doubt(tx, timekeeping.mark_now(engine, now)),
        workers=[worker for worker in owner_rows.workers(tx) if engine.alive(worker)],
        orphans=[run for run in runs.owned(tx) if run.owner is not None and not engine.alive(run.owner.id)],
        late=[run for run in runs.due(tx, now - LATE_MS, 1000) if run.note is None],
        ahead=health.ahead(tx, now),
        noted=health.noted(tx),
        too_long=runs.held_too_long(tx, now, 1000),
        keys=lookup.keys(tx, now=now, alive=engine.alive, workflow=None, held=True, stuck_ms=STUCK_MS),
        schedules=schedules.every(tx),
        needed=needed,
    )


def _clock(seen: _Seen) -> Iterator[Finding]:
    if seen.clock is not None:
        yield Finding(
            "clock",
            "warning",
            f"the clock may be wrong: {seen.clock}",
            "date   # if it is right: durable prune --trust-clock",
            ("nothing is pruned by itself until that is settled; runs and schedules go by the clock as it is",),
        )


def _keys(seen: _Seen) -> Iterator[Finding]:
    for run in seen.too_long:
        seen.told.add(run.id)
        held = format_age(seen.now - (run.held_since or seen.now))
        yield Finding(
            "keys",
            "warning",
            f"run {run.id} has held the key {run.key!r} of {run.workflow} for {held}, longer than its max_hold",
            f"durable runs show {run.id}   # to free the key: durable cancel {run.id}",
        )
    idle = {run.id for run in (*seen.orphans, *seen.late)}
    for key in seen.keys:
        if key.holder_id is None or key.holder_id in seen.told or not (key.owner_alive or key.holder_id in idle):
            continue  # a run that rests until something comes may hold its key as long as it likes
        seen.told.add(key.holder_id)
        held = format_age(seen.now - (key.held_since or seen.now))
        what = "is still executing it" if key.owner_alive else "nobody goes on with"
        yield Finding(
            "keys",
            "warning" if key.owner_alive else "error",
            f"key {key.key!r} of {key.workflow} has been held for {held} by run {key.holder_id}, "
            + (f"whose process {what}" if key.owner_alive else f"which {what}"),
            f"durable runs show {key.holder_id}" if key.owner_alive else f"durable resume {key.holder_id}",
            (f"run {key.waiting_id} waits behind it",) if key.waiting_id is not None else (),
        )


def _runs(seen: _Seen) -> Iterator[Finding]:
    for row in seen.noted:
        if row["workflow"] not in seen.broken:
            yield Finding(
                "code",
                "error",
                f"{format_count(row['runs'], 'run')} of {row['workflow']} cannot go on: {row['note']}",
                f"durable resume {row['run_id']}   # once that is mended; a worker tries again by itself",
            )
    orphans = [run for run in seen.orphans if run.id not in seen.told]
    for run in orphans[:_MOST]:
        pid = run.owner.pid if run.owner is not None else None
        yield Finding(
            "runs",
            "note" if seen.workers else "warning",
            f"run {run.id} of {run.workflow} was left by process {pid}, which died"
            + ("; a worker takes it up" if seen.workers else ""),
            f"durable resume {run.id}",
        )
    if len(orphans) > _MOST:
        more = f"{len(orphans) - _MOST} more runs were left by processes that died"
        yield Finding("runs", "warning", more, "durable tick")
    late = [run for run in seen.late if run.id not in seen.told]
    if late:
        yield Finding("workers", "warning", f"{format_count(len(late), 'run')}: {_nobody(seen)}", *_remedy(seen, late))
    elif not seen.workers:
        active = sum(one.active for one in seen.schedules)
        told = [format_count(seen.ahead, "run") + " that nobody executes"] if seen.ahead else []
        told += [format_count(active, "active schedule")] if active else []
        if told:
            yield Finding("workers", "note", f"no worker is alive to go on with {' and '.join(told)}", WORKER)


def _nobody(seen: _Seen) -> str:
    since = f"due for more than {format_duration(LATE_MS)}"
    return f"{since} although a worker lives" if seen.workers else f"{since}, and no worker is there to execute them"


def _remedy(seen: _Seen, late: list[Run]) -> tuple[str, tuple[str, ...]]:
    facts = tuple(f"{run.id} {run.workflow}" for run in late[:3])
    if seen.workers:
        return f"durable runs show {late[0].id}", facts
    return WORKER, facts


def _schedules(seen: _Seen) -> Iterator[Finding]:
    for one in seen.schedules:
        yield from _schedule(one)
    waiting = [one for one in seen.schedules if one.active and one.wake_at is not None]
    late = [one.name for one in waiting if (one.wake_at or 0) <= seen.now - LATE_MS]
    if late:
        yield Finding(
            "schedules",
            "warning",
            f"nobody fires the schedules: {format_count(len(late), 'schedule')} due for more than {format_duration(LATE_MS)}",
            WORKER,
            tuple(late[:3]),
        )


def _schedule(one: Schedule) -> Iterator[Finding]:
    show = f"durable schedules show {one.name}"
    if one.vanished_at is not None:
        message = f"schedule {one.name} does not fire: its code no longer declares it ({one.file})"
        yield Finding("schedules", "note", message, f"durable schedules remove {one.name}")
        return
    if one.paused_at is not None:
        failed = one.failures >= MAX_FAILURES
        severity, message = ("error" if failed else "note"), f"schedule {one.name} is paused: {one.paused_reason}"
        yield Finding("schedules", severity, message, f"durable schedules resume {one.name}")
        return
    try:
        rule_of(one)
    except DurableError as error:
        yield Finding("schedules", "error", f"schedule {one.name} cannot be read: {error.message}", show)
        return
    if one.failures:
        message = f"schedule {one.name} failed {format_count(one.failures, 'time')} in a row: {one.last_error}"
        yield Finding("schedules", "warning", message, show)
    if one.next_fire_at is None:
        yield Finding("schedules", "warning", f"schedule {one.name} will never fire: {one.cron}", show)


def _code(seen: _Seen) -> Iterator[Finding]:
    """Only of workflows with unfinished runs or schedules: the code of what is over may be gone."""
    for known, unfinished, scheduled in seen.needed:
        problem = _why_not_loadable(known)
        if problem is not None:
            seen.broken.add(known.name)
            counts = ((unfinished, "unfinished run"), (scheduled, "schedule"))
            needed = " and ".join(format_count(number, what) for number, what in counts if number)
            yield Finding("code", "error", f"workflow {known.name}: {problem[0]}", problem[1], (f"needed by {needed}",))


def _why_not_loadable(known: Workflow) -> tuple[str, str | None] | None:
    """What can be seen of the file without executing it, and what mends it."""
    place = known.location
    if place.file == COMMANDS:
        return None
    if place.file.startswith("<"):
        return "it was defined at a prompt, and no other process has its code", "put it into a file, and start it there"
    moved = f"durable start --moved NEW.py:{place.qualname}   # if it is somewhere else now"
    try:
        check_safe(place.file, place.app_dir)
        ast.parse(Path(place.file).read_bytes(), place.file)
    except FileNotFoundError:
        return f"its file {place.file} is not there", moved
    except OSError as error:
        return f"its file {place.file} cannot be read: {error.strerror}", f"ls -l {shlex.quote(place.file)}"
    except UnsafeCode as error:
        return error.message, error.hint
    except (SyntaxError, ValueError) as error:
        return f"{place.file} is not Python: {error}", f"durable check {shlex.quote(place.file)}"
    return None


def worst(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then warnings, then notes; within these as they were found."""
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: order[finding.severity])
