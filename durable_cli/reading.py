"""The questions that `Durable` answers. Each is one read snapshot; nothing here writes or loads users' code."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from durable_cli import foreground, lookup
from durable_cli.core.timing import Duration, parse_duration
from durable_cli.definition import Definition, WorkflowFunction
from durable_cli.engine import Engine
from durable_cli.errors import DatabaseCorrupt, DatabaseNotFound, InvalidConfig, UsageError
from durable_cli.listeners import EVENTS
from durable_cli.lookup import KeyDetails
from durable_cli.model import (
    Activity,
    Key,
    LogEntry,
    Run,
    Stats,
    Status,
    Step,
    Workflow,
)
from durable_cli.owners import Liveness
from durable_cli.store import checks, events, failures, history, logs, reports, runs, workflows
from durable_cli.store.database import Backup, Tx
from durable_cli.store.events import Event
from durable_cli.values import MAX_VALUE_BYTES

if TYPE_CHECKING:
    from durable_cli.catalogue import WorkflowDetails
    from durable_cli.keylog import KeyEvent, Lost, Replayable
    from durable_cli.overview import Overview

T = TypeVar("T")
AnyWorkflow = WorkflowFunction[..., Any] | Definition | str


def default_path() -> Path:
    """`DURABLE_DB`, else `durable/durable.db` in `$XDG_DATA_HOME` or `~/.local/share`."""
    named = os.environ.get("DURABLE_DB")
    if named:
        return Path(os.path.expanduser(named))
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(os.path.expanduser(data)) / "durable" / "durable.db"


_MOST_VALUE_BYTES = 16 << 20


def _value_limit(given: int | None) -> int:
    """The largest input, result or event in bytes of JSON: as given, else DURABLE_MAX_VALUE_BYTES, else 1 MiB."""
    text = os.environ.get("DURABLE_MAX_VALUE_BYTES") if given is None else str(given)
    if not text:
        return MAX_VALUE_BYTES
    if not text.isascii() or not text.isdigit() or not 1024 <= int(text) <= _MOST_VALUE_BYTES:
        name = "DURABLE_MAX_VALUE_BYTES" if given is None else "max_value_bytes"
        raise InvalidConfig(f"{name}={text}: it is a number of bytes from 1024 to {_MOST_VALUE_BYTES}")
    return int(text)


def statuses_of(status: Status | str | Iterable[Status | str]) -> list[Status]:
    """One status or several as a list. ValueError for what is none."""
    return [Status(status)] if isinstance(status, str) else [Status(one) for one in status]


def _ms(duration: Duration | None) -> int | None:
    return None if duration is None else parse_duration(duration)


class Reader:
    """A durable file, to look at."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        clock: Callable[[], int] | None = None,
        vfs: str | None = None,
        liveness: Liveness | None = None,
        ids: Callable[[], str] | None = None,
        sleep: Callable[[float], None] | None = None,
        dice: Callable[[], float] | None = None,
        max_value_bytes: int | None = None,
        create: bool = True,
    ) -> None:
        self._engine = Engine(
            Path(path) if path is not None else default_path(),
            create=create,
            clock=clock,
            vfs=vfs,
            liveness=liveness,
            ids=ids,
            sleep=sleep,
            dice=dice,
            max_value_bytes=_value_limit(max_value_bytes),
        )

    @property
    def path(self) -> Path:
        """The file, absolute."""
        return self._engine.path

    def close(self) -> None:
        """Give back what this process owns and close the file. The next call opens it again.

        While this object executes runs (in another thread, or the one that calls) or works, it keeps what it owns: a
        run given back would be executed a second time beside the first.
        """
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def run(self, run: str) -> Run:
        """A run with its steps: by id, by a unique prefix of three letters or more, or "last".

        Raises RunNotFound, AmbiguousRun.
        """
        return self._seen_run(self._read(lambda tx: lookup.run(tx, run)))

    def find(self, *, key: str, workflow: str | None = None) -> Run:
        """The holder of a key, else its newest run. Raises KeyNotFound, AmbiguousRun (runs of several workflows)."""
        return self._seen_run(self._read(lambda tx: lookup.by_key(tx, key, workflow)))

    def runs(
        self,
        *,
        workflow: str | None = None,
        status: Status | str | Iterable[Status | str] = (),
        key: str | None = None,
        unfinished: bool = False,
        since: Duration | None = None,
        search: str | None = None,
        limit: int | None = None,
    ) -> list[Run]:
        """Runs, newest first. `status`: one or several. `since`: started at most so long ago. `search`: words, `key:`, `workflow:`,
        `status:`."""
        begin = self._begin(since)
        found = self._read(
            lambda tx: reports.runs(
                tx,
                workflow=workflow,
                statuses=statuses_of(status),
                key=key,
                unfinished=unfinished,
                since=begin,
                search=search,
                limit=limit,
            )
        )
        return [self._seen_run(run) for run in found]

    def waits(self, found: Iterable[Run]) -> dict[str, list[Step]]:
        """What waiting runs wait for: by the id of the run, its operations that wait."""
        waiting = {run.row_id: run.id for run in found if run.status is Status.WAITING}
        steps = self._read(lambda tx: history.waiting_of(tx, list(waiting)))
        return {waiting[row]: of_run for row, of_run in steps.items()}

    def events(self, run_id: str) -> list[Event]:
        """The events and answers that were sent to a run, oldest first; those too that it has not got. Raises RunNotFound."""
        return self._read(lambda tx: events.of_run(tx, lookup.run(tx, run_id).row_id))

    def keys(self, *, workflow: str | None = None, held: bool = False, stuck: Duration | None = None) -> list[Key]:
        """Every key that has runs. `held`: only those with a holder; `stuck`: only unfinished holders older
        than that, or than their workflow's max_hold."""
        now, alive = self._engine.now(), self._engine.alive
        return self._read(
            lambda tx: lookup.keys(tx, now=now, alive=alive, workflow=workflow, held=held, stuck_ms=_ms(stuck))
        )

    def key(self, workflow: str | None, key: str) -> KeyDetails:
        """A key of a workflow (None: of the only one that has runs with it): holder, waiting run, all runs, what happened.

        Raises KeyNotFound, AmbiguousRun.
        """
        now, alive = self._engine.now(), self._engine.alive
        found = self._read(lambda tx: lookup.key_details(tx, key, workflow, now=now, alive=alive))
        return replace(found, all_runs=[self._seen_run(run) for run in found.all_runs])

    def key_log(self, key: str, *, workflow: str | None = None) -> list[KeyEvent]:
        """All that happened to a key, oldest first, with each dropped or superseded input as a diff.

        Raises KeyNotFound, AmbiguousRun.
        """
        from durable_cli import keylog  # late: a `durable run` from cron does not need it

        return self._read(lambda tx: keylog.log(tx, key, workflow))

    def lost_inputs(self, key: str, *, workflow: str | None = None) -> list[Lost]:
        """Every dropped or superseded input of a key that is still known, oldest first. Raises as `key_log`."""
        return [event.lost for event in self.key_log(key, workflow=workflow) if event.lost is not None]

    def replayable(self, key: str, activity_id: int | None = None, *, workflow: str | None = None) -> Replayable:
        """What `replay_input` would start again: the newest input of the key that did not run, or that of a row of
        activity. Raises KeyNotFound, AmbiguousRun, InputNotFound.
        """
        from durable_cli import keylog

        return self._read(lambda tx: keylog.replayable(tx, key, workflow, activity_id))

    def activity(
        self,
        *,
        kinds: Iterable[str] = (),
        workflow: str | None = None,
        key: str | None = None,
        since: Duration | None = None,
        limit: int | None = None,
    ) -> list[Activity]:
        """What happened to keys, newest first."""
        begin = self._begin(since)
        return self._read(
            lambda tx: reports.activity(tx, kinds=list(kinds), workflow=workflow, key=key, since=begin, limit=limit)
        )

    def activity_page(
        self,
        *,
        after: int | None,
        kinds: Iterable[str] = (),
        workflow: str | None = None,
        key: str | None = None,
        since: Duration | None = None,
        limit: int | None = None,
    ) -> tuple[list[Activity], int]:
        """What happened, oldest first, and the number to give as `after` next time: so activity is followed.

        With `after=None` the newest `limit` rows; else all that came after that number.
        """
        begin = self._begin(since)
        most = limit if after is None else None

        def look(tx: Tx) -> tuple[list[Activity], int]:
            rows = reports.activity(
                tx, after=after or 0, kinds=list(kinds), workflow=workflow, key=key, since=begin, limit=most
            )
            return rows[::-1], reports.newest_activity(tx)

        return self._read(look)

    def stats(self, *, workflow: str | None = None, since: Duration | None = None) -> Stats:
        """Counts: runs by status, keys held, duplicates by outcome, dropped inputs, hand-offs."""
        begin = self._begin(since)
        now = self._engine.now()
        return self._read(lambda tx: Stats(**reports.stats(tx, now=now, workflow=workflow, since=begin)))

    def overview(self, *, limit: int | None = None, activity: int = 10) -> Overview:
        """What is going on now: runs by status, unfinished runs (at most `limit`), live processes, the last activity."""
        from durable_cli.overview import look  # late: a `durable run` from cron does not need it

        return look(self._engine, limit=limit, activity=activity)

    def logs(self, run: str, *, after: int = 0) -> list[LogEntry]:
        """What a run printed and logged, in pieces; of a long output, its beginning and its end.

        `after`: only what came later; give `end` of the last piece seen, to follow a run. Raises RunNotFound.
        """

        def look(tx: Tx) -> list[LogEntry]:
            return logs.of_run(tx, lookup.run(tx, run).row_id, after=after)

        return self._read(look)

    def wait(self, run: str, *, timeout: Duration | None = None, stop: threading.Event | None = None) -> Run:
        """Block until a run is finished. Raises RunNotFound; NotOver when `timeout` is over or `stop` is set."""
        timeout_ms = _ms(timeout)
        return self.run(foreground.follow(self._engine, self.run(run).id, timeout_ms=timeout_ms, stop=stop).id)

    def workflow(self, name: str) -> Workflow | None:
        """What the file knows of a workflow; it is not made for that."""
        return self._read_if_there(lambda tx: workflows.get(tx, name), None)

    def workflow_names(self) -> list[str]:
        """The workflows that the file knows; it is not made for that."""
        return self._read_if_there(workflows.names, [])

    def workflows(self) -> list[WorkflowDetails]:
        """The workflows that the file knows, by name, with their policies, runs by status and schedules."""
        from durable_cli import catalogue  # late: a `durable run` from cron does not need it

        return self._read(catalogue.every)

    def workflow_details(self, name: str) -> WorkflowDetails:
        """One of them. Raises WorkflowNotFound."""
        from durable_cli import catalogue

        return self._read(lambda tx: catalogue.one(tx, name))

    def last_completed(self, workflow: str, key: str | None, *, within: Duration | None = None) -> Run | None:
        """The run of a workflow with this key (or without one) that completed last; None where none did, or none
        `within` so long a time."""
        since = 0 if within is None else self._engine.now() - parse_duration(within) + 1
        found = self._read_if_there(lambda tx: runs.last_completed(tx, workflow, key, since=since), None)
        return None if found is None else self._seen_run(found)

    def on(self, event: str, callback: Callable[[str, dict[str, Any]], object]) -> Callable[[], None]:
        """Call `callback(event, fields)` in this process after each commit of such an event; what is returned ends it.

        Events: key.duplicate, key.handoff, key.release, key.retake, key.prune, key.held_long, key.replay, run.started,
        run.compensating, run.completed, run.failed, run.cancelled, run.compensated, run.compensation_failed,
        schedule.missed, schedule.failed, schedule.paused, workflow.moved, clock.jumped, or "*". The same go to the
        logger `durable.events` at INFO. A callback that raises is logged and changes nothing.
        """
        if event != "*" and event not in EVENTS:
            raise UsageError(f"there is no event {event!r}; there are {', '.join(EVENTS)} and *")
        return self._engine.listeners.on(event, callback)

    def has_worker(self) -> bool:
        """Is a worker alive on this file?"""
        return self._read(self._engine.has_live_worker)

    def check(self) -> list[str]:
        """What is wrong with the file: integrity, references, the invariants of keys. Empty: nothing."""
        try:
            return self._read(checks.check)
        except DatabaseCorrupt as error:  # it does not even open
            if error.hint == failures.HOW_MUCH:
                error.hint = failures.RESTORE
            raise

    def backup(self, path: str | os.PathLike[str]) -> Backup:
        """Copy the file, as it is at this moment, to a new file, 0600 and on disk when this returns.

        Workers go on meanwhile. The copy is checked whole before it gets its name. Raises UsageError (something is
        there already), NotFound (no such directory), DiskFull, DatabaseCorrupt.
        """
        return self._engine.database.back_up(Path(path))

    def _begin(self, since: Duration | None) -> int | None:
        return None if since is None else self._engine.now() - parse_duration(since)

    def _read(self, question: Callable[[Tx], T]) -> T:
        return self._engine.database.read(question)

    def _read_if_there(self, question: Callable[[Tx], T], otherwise: T) -> T:
        """The answer of the file; `otherwise` where there is none yet. A question makes no file."""
        try:
            return self._engine.database.read(question, create=False)
        except DatabaseNotFound:
            return otherwise

    def _seen_run(self, run: Run) -> Run:
        if run.owner is None:
            return run
        return replace(run, owner=replace(run.owner, alive=self._engine.alive(run.owner.id)))
