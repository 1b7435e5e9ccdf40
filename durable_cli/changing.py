"""What `Durable` changes about runs that exist: retry, rerun, cancel, release, events, answers."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterable
from typing import Any

from durable_cli import explaining, lookup, settling, starting
from durable_cli.core import arbitration
from durable_cli.core.keys import brief, check_key, check_step_name
from durable_cli.core.timing import Duration, parse_duration
from durable_cli.definition import Definition, WorkflowFunction
from durable_cli.errors import (
    AlreadyFinished,
    DurableError,
    NotFinished,
    NotWaiting,
    UsageError,
    WorkflowNotFound,
)
from durable_cli.explaining import Explanation
from durable_cli.inputs import answer
from durable_cli.lookup import Question
from durable_cli.model import (
    CancelResult,
    Run,
    StartResult,
    Status,
)
from durable_cli.pruning import Pruned, prune, trust
from durable_cli.reading import AnyWorkflow, Reader, statuses_of
from durable_cli.store import events, runs
from durable_cli.store.database import Tx
from durable_cli.values import codec


class Changer(Reader):
    """A durable file whose runs can be changed."""

    def _definition(self, workflow: AnyWorkflow) -> Definition:
        if isinstance(workflow, Definition):
            return workflow
        if isinstance(workflow, WorkflowFunction):
            return workflow.definition
        if not isinstance(workflow, str):
            raise UsageError(
                f"{brief(workflow)} is no workflow", hint="decorate the function with @workflow, or give a name"
            )
        known = self.workflow(workflow)
        if known is None:
            raise WorkflowNotFound(
                f"{self.path} knows no workflow {workflow!r}", hint="start it once by its function, or from its file"
            )
        from durable_cli.loading import load_workflow  # late: only starts by bare name need it

        return load_workflow(known)

    def retry(self, run: str) -> Run:
        """Make a failed or cancelled run pending again in place, its recorded steps kept; the failed operation gets
        a fresh budget. Raises RunNotFound, NotRetryable, KeyTaken (the run stays exactly as it was).
        """
        found = self.run(run)

        def write(tx: Tx) -> DurableError | None:
            engine = self._engine
            return settling.retry(tx, runs.again(tx, found), now=engine.now(), alive=engine.alive)

        _raise(self._engine.write(write))
        return self.run(found.id)

    def rerun(self, run: str) -> StartResult:
        """Start a fresh copy of a finished run. Raises RunNotFound, NotFinished, KeyTaken."""
        found = self.run(run)
        engine, new_id = self._engine, self._engine.new_id()

        def write(tx: Tx) -> starting.Started | NotFinished:
            again = runs.again(tx, found)
            return starting.rerun(tx, again, run_id=new_id, now=engine.now(), alive=engine.alive, owner_id=None)

        answer = engine.write(write)
        if isinstance(answer, NotFinished):
            raise answer
        return result_of(answer)

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
            now = runs.again(tx, found)
            return CancelResult(int(answer is arbitration.Cancel.CANCEL), now.id, now.status, was=found.status)

        return engine.write(write)

    def release_key(self, run: str, *, by: str | None = None) -> Run:
        """Let the key of a finished holder go. Raises RunNotFound, NotFinished, NoKey. `by`: default the user."""
        found = self.run(run)
        who = by or _user()

        def write(tx: Tx) -> DurableError | None:
            return settling.release(tx, runs.again(tx, found), by=who, now=self._engine.now())

        _raise(self._engine.write(write))
        return self.run(found.id)

    def explain_retry(self, run: str) -> Explanation:
        """What `retry` would do now, and why. Raises RunNotFound."""
        found = self.run(run)
        engine = self._engine
        return engine.rehearse(
            lambda tx, _: explaining.retry(tx, runs.again(tx, found), now=engine.now(), alive=engine.alive)
        )

    def explain_rerun(self, run: str) -> Explanation:
        """What `rerun` would do now, and why. Raises RunNotFound."""
        found = self.run(run)
        engine, new_id = self._engine, self._engine.new_id()

        def rerun(tx: Tx, _: int) -> Explanation:
            again = runs.again(tx, found)
            return explaining.rerun(tx, again, run_id=new_id, now=engine.now(), alive=engine.alive)

        return engine.rehearse(rerun)

    def explain_cancel(
        self, run: str | None = None, *, key: str | None = None, workflow: str | None = None
    ) -> Explanation:
        """What `cancel` would do now, and why. Raises RunNotFound for an unknown id."""
        name = check_key(key)
        if run is not None:
            return explaining.cancel(self.run(run), workflow, key)
        found = None if name is None else self._read(lambda tx: lookup.by_key_or_none(tx, name, workflow))
        return explaining.cancel(found, workflow, key)

    def prune(
        self,
        *,
        older_than: Duration | None = None,
        workflow: str | None = None,
        status: Status | str | Iterable[Status | str] = (),
        dry_run: bool = False,
        trust_clock: bool = False,
    ) -> Pruned:
        """Delete finished runs that ended more than so long ago, with their steps, events and logs; a pruned holder's
        key is free. Activity stays 7 days, and as long as any run has its key. Raises ClockSuspect.

        `trust_clock`: the clock is right, although it seems to have jumped; without `older_than` that is all it says.
        """
        if older_than is None:
            if not trust_clock:
                raise UsageError("say what is old: older_than=")
            if not dry_run:
                trust(self._engine)
            return Pruned()
        return prune(
            self._engine,
            older_than_ms=parse_duration(older_than),
            workflow=workflow,
            statuses=statuses_of(status),
            dry_run=dry_run,
            trust_clock=trust_clock,
        )

    def send_event(self, run: str, name: str, payload: object = None, *, buffer: bool = True) -> Run:
        """Send an event to an unfinished run: delivered if it waits for it, else kept until it gets there.

        `buffer=False`: NotWaiting instead of keeping it. Raises RunNotFound, AlreadyFinished, InvalidInput (a payload
        that is no JSON).
        """
        found = self.run(run)
        text = codec(Any).accept(payload, place="payload", limit=self._engine.max_value_bytes)
        check_step_name(name, "an event")

        def refused(tx: Tx, now: int) -> DurableError | None:
            if buffer or events.waits_for(tx, found.row_id, "event", name, now):
                return None
            message = f"run {found.id} does not wait for {name!r} now"
            return NotWaiting(message, run_id=found.id, status=str(found.status))

        return self._deliver(found, "event", name, text, refused)

    def provide_input(self, run: str, name: str, value: object) -> Run:
        """Answer what a run asks a person (`ctx.wait_for_input`). Raises RunNotFound, NotWaiting,
        AlreadyFinished, InvalidInput."""
        found = self.run(run)
        asked = next((one for one in self.inputs(run=found.id) if one.name == name), None)
        if asked is None and found.finished:
            message = f"run {found.id} is {found.status}: it asks for nothing any more"
            raise AlreadyFinished(message, run_id=found.id, status=str(found.status))
        not_asked = NotWaiting(
            f"run {found.id} does not ask for {name!r} now",
            run_id=found.id,
            status=str(found.status),
            hint="durable inputs",
        )
        if asked is None:
            raise not_asked
        limit = self._engine.max_value_bytes
        text = answer(asked.details, value, load_code=lambda: self._definition(found.workflow), limit=limit)

        def refused(tx: Tx, now: int) -> DurableError | None:
            # Somebody else may have answered since, or the run may ask something else by that name.
            still = events.waits_for(tx, found.row_id, "input", name, now) and asked in lookup.questions(tx, found.id)
            return None if still else not_asked

        return self._deliver(found, "input", name, text, refused)

    def inputs(self, *, run: str | None = None) -> list[Question]:
        """What unfinished runs ask people now, oldest first."""
        return self._read(lambda tx: lookup.questions(tx, run))

    def _deliver(
        self, found: Run, kind: str, name: str, payload: str, refused: Callable[[Tx, int], DurableError | None]
    ) -> Run:
        now = self._engine.now()

        def write(tx: Tx) -> DurableError | None:
            run = runs.again(tx, found)
            if run.finished:
                message = f"run {run.id} is {run.status}: it receives nothing any more"
                return AlreadyFinished(message, run_id=run.id, status=str(run.status))
            refusal = refused(tx, now)
            if refusal is None:
                settling.send_event(tx, run, name, payload, now=now, kind=kind)
            return refusal

        _raise(self._engine.write(write))
        return self.run(found.id)


def result_of(started: starting.Started) -> StartResult:
    """The answer of a start. Raises its refusal."""
    if started.refusal is not None:
        raise started.refusal
    assert started.result is not None
    return started.result


def _raise(refusal: DurableError | None) -> None:
    if refusal is not None:
        raise refusal


def _user() -> str:
    """The user's name; a container may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
