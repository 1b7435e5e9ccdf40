"""`Durable`: one file, and all that can be done with it. The command line uses nothing else."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from durable_cli import explaining, foreground, starting
from durable_cli.changing import result_of
from durable_cli.core.keys import check_run_id
from durable_cli.core.policies import parse_timeout
from durable_cli.core.timing import Duration, parse_duration
from durable_cli.definition import UNSET, Definition, refuse_start_options
from durable_cli.errors import DurableError, UsageError
from durable_cli.execution import Progress
from durable_cli.explaining import Explanation
from durable_cli.foreground import Execution, Watch
from durable_cli.model import (
    OnDuplicate,
    StartResult,
)
from durable_cli.producing import definition_within, later_moment, requests_of, start_many, start_within
from durable_cli.reading import AnyWorkflow
from durable_cli.request import Request, merging, request_for
from durable_cli.runner import silent
from durable_cli.store.database import Tx
from durable_cli.timetable import Timetable

if TYPE_CHECKING:
    from durable_cli.doctor import Diagnosis
    from durable_cli.outlook import Due
    from durable_cli.worker import Counts, Worker


class Durable(Timetable):
    """A durable file: starts, executes and shows runs.

    `path` defaults to `default_path()`. `clock` gives the moment in ms UTC. The file is opened (and created, unless
    `create=False`) by the first call that needs it. Thread-safe; a forked child opens its own connection. A context
    manager: `close()` gives up what this process owns. `vfs`, `liveness`, `ids`, `sleep` and `dice` are for tests.
    """

    # -- starting ------------------------------------------------------------------------------------------------

    def start(
        self,
        workflow: AnyWorkflow,
        input: object = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
        timeout: Duration | None = None,
        at: dt.datetime | None = None,
        delay: Duration | None = None,
        connection: object = None,
        run_id: str | None = None,
        moved: bool = False,
        **unknown: Any,
    ) -> StartResult:
        """Record a start; a worker, a tick or `execute` runs it.

        `workflow` is a decorated function or the name of one that the file knows. `at` (a datetime with a zone) or
        `delay`: it may begin then. `connection`: an apsw connection to the same file with a write transaction of the
        caller's, whose commit or rollback decides. `run_id`: an id made by the caller, who may have lost the answer:
        the same start again is answered with that run. Raises InvalidInput, InvalidKey, InvalidName,
        WorkflowNotFound (nothing is written), KeyTaken (only the duplicate is recorded).
        """
        refuse_start_options(unknown)
        if connection is not None and isinstance(workflow, str):
            definition = definition_within(self._engine, connection, workflow)
        else:
            definition = self._definition(workflow)
        moment = later_moment(at, delay, self._engine.now())
        request = self._request(definition, input, key, on_duplicate, timeout, moved, run_id, moment)
        if connection is not None:
            return result_of(start_within(self._engine, connection, definition, request, again=run_id is not None))
        engine = self._engine

        def attempt(request: Request) -> starting.Started:
            def write(tx: Tx) -> starting.Started:
                there = None if run_id is None else foreground.landed_start(tx, request, engine)
                return there or starting.start(tx, request, now=engine.now(), alive=engine.alive, owner_id=None)

            return engine.write(write, landed=lambda tx: foreground.landed_start(tx, request, engine))

        return result_of(merging(definition, request, attempt))

    def start_many(
        self, workflow: AnyWorkflow, items: Iterable[Mapping[str, Any]], *, moved: bool = False
    ) -> list[StartResult | DurableError]:
        """Start a workflow many times in one transaction: the answer of each item, in order.

        An item has what `start` takes: `input`, `key`, `on_duplicate`, `timeout`, `at`, `delay`. One that is refused
        is answered with its error and stops no other.
        """
        definition = self._definition(workflow)
        return start_many(self._engine, definition, requests_of(self._engine, definition, list(items), moved=moved))

    def replay_input(
        self,
        key: str,
        activity_id: int | None = None,
        *,
        workflow: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
    ) -> StartResult:
        """Start an input again that the key dropped or superseded: that of a row of activity, else the newest one.

        An ordinary start by the rules of the key; nothing is overwritten. Raises as `start`, and KeyNotFound,
        AmbiguousRun, InputNotFound; AlreadyReplayed where the newest one was started again before.
        """
        from durable_cli import replaying

        found = self.replayable(key, activity_id, workflow=workflow)
        if activity_id is None:
            replaying.refuse_again(found)
        row = found.lost.activity
        definition = self._definition(row.workflow)
        request = self._request(definition, found.lost.input, key, on_duplicate, None, False)
        request = replace(request, replayed=row.id)
        return result_of(replaying.replay(self._engine, definition, request, key=key, row=activity_id))

    def execute(
        self,
        workflow: AnyWorkflow,
        input: object = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
        timeout: Duration | None = None,
        moved: bool = False,
        stop: threading.Event | None = None,
        max_wait: Duration | None = None,
        wait: bool = False,
        progress: Callable[[Progress], None] = silent,
        **unknown: Any,
    ) -> Execution:
        """Start and execute here until the run ends: what `durable run` does. Raises as `start`.

        `stop`: set it, and no further step begins; the run stays resumable. `max_wait`: leave a run that rests
        longer. `wait`: where nothing is executed here, block until the holder's run ends.
        """
        refuse_start_options(unknown)
        definition = self._definition(workflow)
        request = self._request(definition, input, key, on_duplicate, timeout, moved)
        watch = Watch(stop, None if max_wait is None else parse_duration(max_wait), progress)
        return self._seen(foreground.execute(self._engine, definition, request, watch=watch, wait=wait))

    def explain_start(
        self,
        workflow: AnyWorkflow,
        input: object = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
        execute: bool,
        moved: bool = False,
    ) -> Explanation:
        """What a start would do now, and why. Writes nothing and creates no file."""
        return self._explain(self._request(workflow, input, key, on_duplicate, None, moved), execute=execute)

    def later(self, *, at: dt.datetime | None = None, delay: Duration | None = None) -> int:
        """The moment (ms UTC) that a start with this `at=` or `delay=` may begin; now without any."""
        now = self._engine.now()
        return max(now, later_moment(at, delay, now) or now)

    def explain_many(
        self, workflow: AnyWorkflow, items: Iterable[Mapping[str, Any]], *, moved: bool = False
    ) -> list[Explanation | DurableError]:
        """What each item of `start_many` would do now if it came alone. Writes nothing and creates no file."""
        definition = self._definition(workflow)
        asked = requests_of(self._engine, definition, list(items), moved=moved)
        return [one if isinstance(one, DurableError) else self._explained(one) for one in asked]

    def _explained(self, request: Request) -> Explanation | DurableError:
        try:
            return self._explain(request, execute=False)
        except UsageError as error:  # its code has moved
            return error

    def _explain(self, request: Request, *, execute: bool) -> Explanation:
        engine = self._engine
        return self._read_if_there(
            lambda tx: explaining.start(tx, request, now=engine.now(), alive=engine.alive, executing=execute),
            Explanation("create", "a new run would start: there is no database yet", request.workflow, request.key),
        )

    def _request(
        self,
        workflow: AnyWorkflow,
        input: object,
        key: str | None,
        on_duplicate: str | OnDuplicate | None,
        timeout: Duration | None,
        moved: bool,
        run_id: str | None = None,
        at: int | None = None,
    ) -> Request:
        return request_for(
            self._definition(workflow),
            input,
            run_id=self._engine.new_id() if run_id is None else check_run_id(run_id),
            key=key,
            on_duplicate=on_duplicate,
            timeout_ms=parse_timeout(timeout),
            at=at,
            moved=moved,
            limit=self._engine.max_value_bytes,
        )

    # -- going on ------------------------------------------------------------------------------------------------

    def resume(
        self,
        run: str,
        *,
        definition: Definition | None = None,
        stop: threading.Event | None = None,
        max_wait: Duration | None = None,
        progress: Callable[[Progress], None] = silent,
    ) -> Execution:
        """Execute here an unfinished, due run without a live owner. Raises RunNotFound, NotResumable."""
        found = self.run(run)
        code = definition or self._definition(found.workflow)
        watch = Watch(stop, None if max_wait is None else parse_duration(max_wait), progress)
        return self._seen(foreground.resume(self._engine, code, found.id, watch=watch))

    def abandon(self) -> None:
        """Give back every run that this process executes; for a process that must leave at once."""
        self._engine.abandon()

    # -- executing -----------------------------------------------------------------------------------------------

    def work(
        self,
        *,
        concurrency: int = 16,
        stop: threading.Event | None = None,
        grace: Duration = "10s",
        retention: Duration | None = None,
    ) -> Counts:
        """Be a worker until `stop` is set: what `durable worker` does. Blocks. `retention`: once an hour, finished runs
        that ended longer ago are pruned."""
        return self.worker(concurrency=concurrency, stop=stop, grace=grace, retention=retention).work()

    def tick(
        self, *, concurrency: int = 16, stop: threading.Event | None = None, retention: Duration | None = None
    ) -> Counts:
        """Do all that is due now, then return: what `durable tick` does. `retention` as for `work`."""
        return self.worker(concurrency=concurrency, stop=stop, retention=retention).tick()

    def worker(
        self,
        *,
        concurrency: int = 16,
        stop: threading.Event | None = None,
        grace: Duration = "10s",
        progress: Callable[[Progress], None] = silent,
        retention: Duration | None = None,
    ) -> Worker:
        """A worker on this file, to be run by its `work()` or `tick()`. `progress` is called in its threads."""
        from durable_cli.worker import Worker  # late: most processes are none

        return Worker(
            self._engine,
            concurrency=concurrency,
            stop=stop,
            grace_s=parse_duration(grace) / 1000,
            progress=progress,
            retention_ms=None if retention is None else parse_duration(retention),
        )

    def due(self) -> Due:
        """What `tick` would do now: orphaned, overdue and due runs, by their ids. Writes nothing."""
        from durable_cli.outlook import look

        return look(self._engine)

    # -- care ----------------------------------------------------------------------------------------------------

    def doctor(self) -> Diagnosis:
        """What is wrong, or soon will be, with the file and what it needs. Loads no code and writes nothing.

        Raises DatabaseNotFound; every other error of the file is a finding.
        """
        from durable_cli.doctor import examine

        return examine(self._engine)

    # -- internal ------------------------------------------------------------------------------------------------

    def _seen(self, execution: Execution) -> Execution:
        return replace(execution, run=self.run(execution.run.id))
