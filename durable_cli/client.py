"""`Durable`: one file, and all that can be done with it. The command line uses nothing else."""

from __future__ import annotations

import getpass
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from durable_cli import explaining, foreground, lookup, settling, starting
from durable_cli.core import arbitration
from durable_cli.core.keys import check_key, check_run_id, check_step_name
from durable_cli.core.policies import parse_timeout
from durable_cli.core.timing import Duration, parse_duration
from durable_cli.definition import UNSET, Definition, WorkflowFunction, parse_on_duplicate, refuse_start_options
from durable_cli.engine import Engine
from durable_cli.errors import (
    AlreadyFinished,
    DurableError,
    NotFinished,
    NotWaiting,
    WorkflowNotFound,
)
from durable_cli.foreground import Execution, Watch
from durable_cli.inputs import answer
from durable_cli.lookup import KeyDetails, Question
from durable_cli.model import (
    Activity,
    CancelResult,
    Key,
    OnDuplicate,
    Run,
    StartResult,
    Stats,
    Status,
    Workflow,
)
from durable_cli.execution import Progress
from durable_cli.owners import Liveness
from durable_cli.request import Request, merging, request_for
from durable_cli.runner import silent
from durable_cli.explaining import Explanation
from durable_cli.store import checks, events, reports, runs, workflows
from durable_cli.store.database import Tx
from durable_cli.values import codec

if TYPE_CHECKING:
    from durable_cli.worker import Counts, Worker

T = TypeVar("T")
AnyWorkflow = WorkflowFunction[..., Any] | Definition | str


def default_path() -> Path:
    """`DURABLE_DB`, else `durable/durable.db` in `$XDG_DATA_HOME` or `~/.local/share`."""
    named = os.environ.get("DURABLE_DB")
    if named:
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "durable" / "durable.db"


class Durable:
    """A durable file: starts, executes and shows runs.

    `path` defaults to `default_path()`. `clock` gives the moment in ms UTC. The file is opened (and created, unless
    `create=False`) by the first call that needs it. Thread-safe; a forked child opens its own connection. A context
    manager: `close()` gives up what this process owns. `vfs`, `liveness`, `ids`, `sleep` and `dice` are for tests.
    """

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
        )

    @property
    def path(self) -> Path:
        """The file, absolute."""
        return self._engine.path

    def close(self) -> None:
        """Give back what this process owns and close the file. The next call opens it again."""
        self._engine.close()

    def __enter__(self) -> Durable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    # -- starting ------------------------------------------------------------------------------------------------

    def start(
        self,
        workflow: AnyWorkflow,
        input: object = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
        timeout: Duration | None = None,
        run_id: str | None = None,
        moved: bool = False,
        **unknown: Any,
    ) -> StartResult:
        """Record a start; a worker, a tick or `execute` runs it.

        `workflow` is a decorated function or the name of one that the file knows. `run_id`: an id made by the caller,
        who may have lost the answer: the same start again is answered with that run. Raises InvalidInput, InvalidKey,
        InvalidName, WorkflowNotFound (nothing is written), KeyTaken (only the duplicate is recorded).
        """
        refuse_start_options(unknown)
        definition = self._definition(workflow)
        request = self._request(definition, input, key, on_duplicate, timeout, moved, run_id, at)
        engine = self._engine

        def attempt(request: Request) -> starting.Started:
            def write(tx: Tx) -> starting.Started:
                there = None if run_id is None else foreground.landed_start(tx, request, engine)
                return there or starting.start(tx, request, now=engine.now(), alive=engine.alive, owner_id=None)

            return engine.write(write, landed=lambda tx: foreground.landed_start(tx, request, engine))

        return _result(merging(definition, request, attempt))

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
        max_wait_ms: int | None = None,
        wait: bool = False,
        progress: Callable[[Progress], None] = silent,
        **unknown: Any,
    ) -> Execution:
        """Start and execute here until the run ends: what `durable run` does. Raises as `start`.

        `stop`: set it, and no further step begins; the run stays resumable. `max_wait_ms`: leave a run that rests
        longer. `wait`: where nothing is executed here, block until the holder's run ends.
        """
        refuse_start_options(unknown)
        definition = self._definition(workflow)
        request = self._request(definition, input, key, on_duplicate, timeout, moved)
        watch = Watch(stop, max_wait_ms, progress)
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
        request = self._request(workflow, input, key, on_duplicate, None, moved)
        engine = self._engine
        if not engine.path.exists():
            reason = "a new run would start: there is no database yet"
            return Explanation("create", reason, request.workflow, request.key)
        return engine.database.read(
            lambda tx: explaining.start(tx, request, now=engine.now(), alive=engine.alive, executing=execute)
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
        )

    def _definition(self, workflow: AnyWorkflow) -> Definition:
        if isinstance(workflow, Definition):
            return workflow
        if isinstance(workflow, WorkflowFunction):
            return workflow.definition
        known = self.workflow(workflow)
        if known is None:
            raise WorkflowNotFound(f"{self.path} knows no workflow {workflow!r}")
        from durable_cli.loading import load_workflow  # late: only starts by bare name need it

        return load_workflow(known)

    # -- going on ------------------------------------------------------------------------------------------------

    def resume(
        self,
        run: str,
        *,
        definition: Definition | None = None,
        stop: threading.Event | None = None,
        max_wait_ms: int | None = None,
        progress: Callable[[Progress], None] = silent,
    ) -> Execution:
        """Execute here an unfinished, due run without a live owner. Raises RunNotFound, NotResumable."""
        found = self.run(run)
        code = definition or self._definition(found.workflow)
        watch = Watch(stop, max_wait_ms, progress)
        return self._seen(foreground.resume(self._engine, code, found.id, watch=watch))

    def retry(self, run: str) -> Run:
        """Make a failed or cancelled run pending again in place, its recorded steps kept; the failed operation gets
        a fresh budget. Raises RunNotFound, NotRetryable, KeyTaken (the run stays exactly as it was).
        """
        found = self.run(run)

        def write(tx: Tx) -> DurableError | None:
            return settling.retry(tx, runs.get(tx, found.row_id), now=self._engine.now())

        _raise(self._engine.write(write))
        return self.run(found.id)

    def rerun(self, run: str) -> StartResult:
        """Start a fresh copy of a finished run. Raises RunNotFound, NotFinished, KeyTaken."""
        found = self.run(run)
        engine, new_id = self._engine, self._engine.new_id()

        def write(tx: Tx) -> starting.Started | arbitration.Rerun:
            again = runs.get(tx, found.row_id)
            return starting.rerun(tx, again, run_id=new_id, now=engine.now(), alive=engine.alive)

        answer = engine.write(write)
        if isinstance(answer, arbitration.Rerun):
            raise NotFinished(
                f"run {found.id} is {found.status}; only a finished run can be run again",
                run_id=found.id,
                status=str(found.status),
                hint=f"durable runs wait {found.id}",
            )
        return _result(answer)

    def cancel(
        self,
        run: str | None = None,
        *,
        key: str | None = None,
        workflow: str | None = None,
        reason: str | None = None,
    ) -> CancelResult:
        """Cancel a run, by id or as the holder of a key. Complete when it returns.

        `cancelled` is 0 where there was nothing to cancel: finished, compensating (which cannot be cancelled), or no
        run has that key. Raises RunNotFound for an unknown id, AmbiguousRun.
        """
        if run is None and key is None:
            raise TypeError("cancel needs a run or a key")
        engine, name = self._engine, check_key(key) or ""

        def write(tx: Tx) -> CancelResult:
            found = lookup.by_key_or_none(tx, name, workflow) if run is None else lookup.run(tx, run)
            if found is None:
                return CancelResult(0, None, None)
            answer = settling.cancel(tx, found, now=engine.now(), reason=reason)
            now = runs.get(tx, found.row_id)
            return CancelResult(int(answer is arbitration.Cancel.CANCEL), now.id, now.status)

        return engine.write(write)

    def release_key(self, run: str, *, by: str | None = None) -> Run:
        """Let the key of a finished holder go. Raises RunNotFound, NotFinished, NoKey. `by`: default the user."""
        found = self.run(run)
        who = by or getpass.getuser()

        def write(tx: Tx) -> DurableError | None:
            return settling.release(tx, runs.get(tx, found.row_id), by=who, now=self._engine.now())

        _raise(self._engine.write(write))
        return self.run(found.id)

    def explain_retry(self, run: str) -> Explanation:
        """What `retry` would do now, and why. Raises RunNotFound."""
        found = self.run(run)
        return self._read(lambda tx: explaining.retry(tx, runs.get(tx, found.row_id)))

    def explain_rerun(self, run: str) -> Explanation:
        """What `rerun` would do now, and why. Raises RunNotFound."""
        found = self.run(run)
        return self._read(lambda tx: explaining.rerun(tx, runs.get(tx, found.row_id)))

    def explain_cancel(
        self, run: str | None = None, *, key: str | None = None, workflow: str | None = None
    ) -> Explanation:
        """What `cancel` would do now, and why. Raises RunNotFound for an unknown id."""
        name = check_key(key)
        if run is not None:
            return explaining.cancel(self.run(run), workflow, key)
        found = None if name is None else self._read(lambda tx: lookup.by_key_or_none(tx, name, workflow))
        return explaining.cancel(found, workflow, key)

    def abandon(self) -> None:
        """Give back every run that this process executes; for a process that must leave at once."""
        self._engine.abandon()

    def send_event(self, run: str, name: str, payload: object = None, *, buffer: bool = True) -> Run:
        """Send an event to an unfinished run: delivered if it waits for it, else kept until it gets there.

        `buffer=False`: NotWaiting instead of keeping it. Raises RunNotFound, AlreadyFinished, InvalidInput (a payload
        that is no JSON).
        """
        found = self.run(run)
        return self._deliver(found, "event", check_step_name(name), codec(Any).accept(payload, place="payload"), buffer)

    def provide_input(self, run: str, name: str, value: object) -> Run:
        """Answer what a run asks a person (`ctx.wait_for_input`). Raises RunNotFound, NotWaiting, InvalidInput."""
        found = self.run(run)
        asked = next((one for one in self.inputs(run=found.id) if one.name == name), None)
        if asked is None:
            raise NotWaiting(
                f"run {found.id} does not ask for {name!r} now", run_id=found.id, status=str(found.status),
                hint="durable inputs",
            )
        text = answer(asked.details, value, load_code=lambda: self._definition(found.workflow))
        return self._deliver(found, "input", name, text, False)

    def inputs(self, *, run: str | None = None) -> list[Question]:
        """What unfinished runs ask people now, oldest first."""
        return self._read(lambda tx: lookup.questions(tx, run))

    def _deliver(self, found: Run, kind: str, name: str, payload: str, buffer: bool) -> Run:
        now = self._engine.now()

        def write(tx: Tx) -> DurableError | None:
            run = runs.get(tx, found.row_id)
            if run.finished:
                message = f"run {run.id} is {run.status}: it receives nothing any more"
                return AlreadyFinished(message, run_id=run.id, status=str(run.status))
            if not buffer and not events.waits_for(tx, run.row_id, kind, name, now):
                message = f"run {run.id} does not wait for {name!r} now"
                return NotWaiting(message, run_id=run.id, status=str(run.status))
            settling.send_event(tx, run, name, payload, now=now, kind=kind)
            return None

        _raise(self._engine.write(write))
        return self.run(found.id)

    # -- executing -----------------------------------------------------------------------------------------------

    def work(
        self, *, concurrency: int = 16, stop: threading.Event | None = None, grace: Duration = "10s"
    ) -> Counts:
        """Be a worker until `stop` is set: what `durable worker` does. Blocks."""
        return self.worker(concurrency=concurrency, stop=stop, grace=grace).work()

    def tick(self, *, concurrency: int = 16, stop: threading.Event | None = None) -> Counts:
        """Do all that is due now, then return: what `durable tick` does."""
        return self.worker(concurrency=concurrency, stop=stop).tick()

    def worker(
        self, *, concurrency: int = 16, stop: threading.Event | None = None, grace: Duration = "10s"
    ) -> Worker:
        """A worker on this file, to be run by its `work()` or `tick()`."""
        from durable_cli.worker import Worker  # late: most processes are none

        grace_s = parse_duration(grace) / 1000
        return Worker(self._engine, concurrency=concurrency, stop=stop, grace_s=grace_s)

    # -- looking -------------------------------------------------------------------------------------------------

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
        statuses: Iterable[Status | str] = (),
        key: str | None = None,
        unfinished: bool = False,
        since_ms: int | None = None,
        search: str | None = None,
        limit: int | None = None,
    ) -> list[Run]:
        """Runs, newest first. `since_ms`: started at most so long ago. `search`: words, `key:`, `workflow:`,
        `status:`."""
        since = None if since_ms is None else self._engine.now() - since_ms
        found = self._read(
            lambda tx: reports.runs(
                tx,
                workflow=workflow,
                statuses=[Status(status) for status in statuses],
                key=key,
                unfinished=unfinished,
                since=since,
                search=search,
                limit=limit,
            )
        )
        return [self._seen_run(run) for run in found]

    def keys(self, *, workflow: str | None = None, held: bool = False, stuck_ms: int | None = None) -> list[Key]:
        """Every key that has runs. `held`: only those with a holder; `stuck_ms`: only unfinished holders older."""
        now, alive = self._engine.now(), self._engine.alive
        return self._read(
            lambda tx: lookup.keys(tx, now=now, alive=alive, workflow=workflow, held=held, stuck_ms=stuck_ms)
        )

    def key(self, key: str, *, workflow: str | None = None) -> KeyDetails:
        """A key: holder, waiting run, all runs, what happened. Raises KeyNotFound, AmbiguousRun."""
        now, alive = self._engine.now(), self._engine.alive
        found = self._read(lambda tx: lookup.key_details(tx, key, workflow, now=now, alive=alive))
        return replace(found, runs=[self._seen_run(run) for run in found.runs])

    def activity(
        self,
        *,
        kinds: Iterable[str] = (),
        workflow: str | None = None,
        key: str | None = None,
        since_ms: int | None = None,
        limit: int | None = None,
    ) -> list[Activity]:
        """What happened to keys, newest first."""
        since = None if since_ms is None else self._engine.now() - since_ms
        return self._read(
            lambda tx: reports.activity(
                tx, kinds=list(kinds), workflow=workflow, key=key, since=since, limit=limit
            )
        )

    def stats(self, *, workflow: str | None = None, since_ms: int | None = None) -> Stats:
        """Counts: runs by status, keys held, duplicates by outcome, dropped inputs, hand-offs."""
        since = None if since_ms is None else self._engine.now() - since_ms
        now = self._engine.now()
        return self._read(lambda tx: Stats(**reports.stats(tx, now=now, workflow=workflow, since=since)))

    def wait(self, run: str, *, timeout_ms: int | None = None, stop: threading.Event | None = None) -> Run:
        """Block until a run is finished. Raises RunNotFound; NotOver when `timeout_ms` is over or `stop` is set."""
        return self.run(foreground.follow(self._engine, self.run(run).id, timeout_ms=timeout_ms, stop=stop).id)

    def workflow(self, name: str) -> Workflow | None:
        """What the file knows of a workflow."""
        if not self.path.exists():
            return None
        return self._read(lambda tx: workflows.get(tx, name))

    def workflow_names(self) -> list[str]:
        """The workflows that the file knows."""
        return self._read(workflows.names)

    def last_completed_at(self, workflow: str, key: str | None) -> int | None:
        """When the last completed run of a workflow with this key (or without one) ended, ms UTC."""
        return self._read(lambda tx: runs.last_completed_at(tx, workflow, key))

    def check(self) -> list[str]:
        """What is wrong with the file: integrity, references, the invariants of keys. Empty: nothing."""
        return self._read(checks.check)

    def _read(self, question: Callable[[Tx], T]) -> T:
        return self._engine.database.read(question)

    def _seen_run(self, run: Run) -> Run:
        if run.owner is None:
            return run
        return replace(run, owner=replace(run.owner, alive=self._engine.alive(run.owner.id)))

    def _seen(self, execution: Execution) -> Execution:
        return replace(execution, run=self.run(execution.run.id))


def _result(started: starting.Started) -> StartResult:
    if started.refusal is not None:
        raise started.refusal
    assert started.result is not None
    return started.result


def _raise(refusal: DurableError | None) -> None:
    if refusal is not None:
        raise refusal
