"""Executing in the foreground: what `durable run` does, from the start to the end of the run it names.

The process stays the owner of its run through every rest, so that nobody takes it while we sleep until it is due.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from durable_cli import adopting, settling, starting
from durable_cli.capture import in_foreground
from durable_cli.core.timing import format_duration
from durable_cli.definition import Definition
from durable_cli.engine import Engine
from durable_cli.errors import DurableError, NotFinished, NotOver, NotResumable, RunNotFound, UsageError
from durable_cli.execution import Progress
from durable_cli.loading import load_workflow
from durable_cli.model import Claim, Outcome, Run, StartResult, Status
from durable_cli.request import Request, merging
from durable_cli.runner import Ended, Gone, Rested, Stopped, silent, take_turn
from durable_cli.settling import look_after
from durable_cli.store import activity, history, runs, transitions
from durable_cli.store.database import Tx
from durable_cli.values import same_value

_LOOK_EVERY_S = 0.2
"""How often a process that rests or follows looks whether the file says something new."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What a call that executes did.

    `run`: the run the call is about, as it is now. `executed`: this call executed it (or reported its end as its
    own). `interrupted`: it was asked to stop, and the run is resumable. `left`: the run rests longer than the caller
    wanted to stay. `promoted`: runs that this call executed besides, since they had waited behind ours.
    """

    start: StartResult | None
    run: Run
    executed: bool
    interrupted: bool = False
    left: bool = False
    promoted: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Watch:
    """How a caller follows an execution: asked to stop by `stop`, leaving a rest longer than `max_wait_ms`."""

    stop: threading.Event | None = None
    max_wait_ms: int | None = None
    progress: Callable[[Progress], None] = silent
    unloadable: list[str] = field(default_factory=list)
    """Workflows of children whose code could not be loaded: their runs are left to others."""

    @property
    def stopping(self) -> bool:
        """Was this process asked to stop?"""
        return self.stop is not None and self.stop.is_set()


def execute(engine: Engine, definition: Definition, request: Request, *, watch: Watch, wait: bool) -> Execution:
    """Start a workflow and execute what that makes ours. Raises KeyTaken where the tables refuse the start."""

    def attempt(request: Request) -> starting.Started:
        def write(tx: Tx, owner_id: int) -> starting.Started:
            return starting.start(tx, request, now=engine.now(), alive=engine.alive, owner_id=owner_id)

        return engine.write_as_owner(write, landed=lambda tx: landed_start(tx, request, engine))

    started = merging(definition, request, attempt)
    if started.refusal is not None:
        raise started.refusal
    if started.claim is None:
        run = engine.database.read(lambda tx: runs.by_id(tx, _id(started)))
        assert run is not None
        if not wait or run.finished:
            return Execution(started.result, run, executed=started.ended)
    elif started.result is not None and started.result.outcome in _GOES_ON:
        _tell_taken_up(engine, request, started.claim, started.result.outcome, watch)
    taken = _Taken(started.claim, started.ended)
    return _execute_taken(engine, definition, taken, _id(started), watch, result=started.result)


def retry(engine: Engine, definition: Definition, run_id: str, *, watch: Watch) -> Execution:
    """Make a failed or cancelled run pending again and execute it. It is claimed in the transaction that revives it,
    or a worker would take it first. Raises NotRetryable, KeyTaken."""

    def write(tx: Tx, owner_id: int) -> Claim | DurableError:
        run = _now(tx, run_id)
        refusal = settling.retry(tx, run, now=engine.now(), alive=engine.alive)
        if refusal is not None:
            return refusal
        epoch = transitions.claim(tx, run.row_id, owner_id, engine.now())
        assert epoch is not None  # it is pending, due and nobody's
        return Claim(run.row_id, run.id, owner_id, epoch)

    answer = engine.write_as_owner(write)
    if isinstance(answer, DurableError):
        raise answer
    engine.ring()  # children were revived with it
    return _execute_taken(engine, definition, _Taken(answer), answer.run_id, watch)


def rerun(engine: Engine, definition: Definition, run_id: str, *, watch: Watch) -> Execution:
    """Start a fresh copy of a finished run and execute it. Raises NotFinished, KeyTaken."""
    new_id = engine.new_id()

    def write(tx: Tx, owner_id: int) -> starting.Started | NotFinished:
        run = _now(tx, run_id)
        return starting.rerun(tx, run, run_id=new_id, now=engine.now(), alive=engine.alive, owner_id=owner_id)

    started = engine.write_as_owner(write)
    if isinstance(started, NotFinished):
        raise started
    if started.refusal is not None:
        raise started.refusal
    return _execute_taken(engine, definition, _Taken(started.claim), _id(started), watch, result=started.result)


_GOES_ON = (Outcome.RESUMED, Outcome.QUEUED, Outcome.EVENT_SENT)
"""What a start does that, where it executes something at once, executes a run that was there before."""


def _tell_taken_up(engine: Engine, request: Request, claim: Claim, outcome: Outcome, watch: Watch) -> None:
    run = engine.database.read(lambda tx: runs.get(tx, claim.row_id))
    other = outcome is Outcome.RESUMED and not same_value(request.input, run.input)  # else it went somewhere
    watch.progress(Progress("taken_up", run.id, "", other_input=other))


def _id(started: starting.Started) -> str:
    assert started.result is not None
    return started.result.run_id


def landed_start(tx: Tx, request: Request, engine: Engine) -> starting.Started | None:
    """After an unknown commit: is the run of this start there? Then it is ours if we own it."""
    run = runs.by_id(tx, request.run_id)
    if run is None:
        return None
    if (run.workflow, run.key) != (request.workflow, request.key):
        raise UsageError(f"the id {run.id} is that of a run of another workflow or key")
    ours = run.owner is not None and engine.is_me(run.owner.id)
    claim = Claim(run.row_id, run.id, run.owner.id, run.epoch) if ours and run.owner else None
    result = StartResult(Outcome.CREATED, run.id, run.workflow, run.key, run.status)
    return starting.Started(result, claim=claim)


def resume(engine: Engine, definition: Definition, run_id: str, *, watch: Watch) -> Execution:
    """Execute an unfinished, due run without a live owner. Raises NotResumable for any other."""

    def write(tx: Tx, owner_id: int) -> _Taken | NotResumable:
        return _take_up(tx, engine, definition, run_id, owner_id)

    taken = engine.write_as_owner(write)
    if isinstance(taken, NotResumable):
        raise taken
    return _execute_taken(engine, definition, taken, run_id, watch)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What this process took up: the claim on a run, if there is one. `ended`: the run that the call is about ended
    when it was looked after; the claim is on the one that has its key now."""

    claim: Claim | None
    ended: bool = False


def _take_up(tx: Tx, engine: Engine, definition: Definition, run_id: str, owner_id: int) -> _Taken | NotResumable:
    """Claim a run that nobody executes, or the one that its end promoted where looking after it ended it; else why
    not."""
    run = _now(tx, run_id)
    reaped = look_after(tx, run, now=engine.now(), alive=engine.alive, reuse=definition.reuse)
    run = reaped.run
    if reaped.ended:
        heir = reaped.promoted
        return _Taken(None if heir is None else engine.claim_promoted(tx, heir, owner_id), ended=True)
    may = adopting.may_claim(tx, run, now=engine.now(), alive=engine.alive)
    epoch = transitions.claim(tx, run.row_id, owner_id, engine.now()) if may.yes else None
    if epoch is None:
        message = f"run {run.id} cannot be resumed here: {may.reason}"
        facts, hint = _instead(tx, run, engine.now(), works=engine.has_live_worker(tx))
        return NotResumable(message, run_id=run.id, status=str(run.status), facts=facts, hint=hint)
    return _Taken(Claim(run.row_id, run.id, owner_id, epoch))


def _instead(tx: Tx, run: Run, now: int, *, works: bool) -> tuple[tuple[str, ...], str]:
    """What to do with a run that cannot be resumed: facts and a hint. `works`: is a worker alive?"""
    if run.status in (Status.FAILED, Status.CANCELLED):
        return (), f"durable retry {run.id} --foreground"
    if run.finished:
        return (), f"durable rerun {run.id}"
    awaited = [runs.get(tx, step.child_row) for step in history.calls(tx, run.row_id) if step.child_row is not None]
    if run.owner is None and awaited:
        facts = tuple(f"it waits for run {one.id} of {one.workflow!r}, which is {one.status}" for one in awaited[:3])
        return facts, f"durable runs wait {run.id}"
    if run.owner is None and run.due_at is not None and run.due_at > now:
        seconds = (run.due_at - now + 999) // 1000
        at = datetime.fromtimestamp(run.due_at / 1000, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
        then = "a worker goes on with it then" if works else "no worker is alive to go on with it then; a tick does"
        facts = (f"it is due at {at}Z, in {format_duration(seconds * 1000)}", then)
        return facts, f"durable runs wait {run.id}"
    return (), f"durable runs wait {run.id}"


def _execute_taken(
    engine: Engine,
    definition: Definition,
    taken: _Taken,
    named: str,
    watch: Watch,
    *,
    result: StartResult | None = None,
) -> Execution:
    """Execute a claimed run (none: we wait for it) to its end, then whatever it promotes. The call is about the run
    `named`, and `result` what its start answered."""
    with in_foreground():
        return _execute_claims(engine, definition, taken, named, watch, result)


def _execute_claims(
    engine: Engine, definition: Definition, taken: _Taken, named: str, watch: Watch, result: StartResult | None
) -> Execution:
    executed: list[str] = []
    after: int | None = None  # how many we had executed when the named run was over
    left = interrupted = False
    while True:
        claim = taken.claim
        after = len(executed) if taken.ended else after
        while claim is not None:
            executed.append(claim.run_id)
            end = _to_its_end(engine, definition, claim, watch)
            while not (end.left or watch.stopping) and _executed_other(engine, claim.row_id, watch):
                pass  # children that it started and did not wait for
            after = len(executed) if claim.run_id == named else after
            claim = end.promoted
            left, interrupted = end.left, end.interrupted
        run = _read(engine, named)
        if run.finished or left or interrupted:
            break
        # Somebody else has it now, or the run we are named after still waits behind another process's.
        taken = _follow(engine, definition, named, watch)
        over = taken.claim is None and not taken.ended
        interrupted = over and watch.stopping
        left = over and not watch.stopping and not _read(engine, named).finished
    others = () if after is None else tuple(_read(engine, run_id) for run_id in executed[after:])
    did = bool(executed) or taken.ended
    return Execution(result, run, did, interrupted=interrupted, left=left, promoted=others)


@dataclass(frozen=True, slots=True)
class _End:
    promoted: Claim | None = None
    left: bool = False
    interrupted: bool = False


def _to_its_end(engine: Engine, definition: Definition, claim: Claim, watch: Watch) -> _End:
    if claim.epoch == 0:
        end = _rest(engine, Rested(_due_at(engine, claim), claim), watch)
        if end is not None:
            return end
        claim = replace(claim, epoch=1)
    while True:
        turn = take_turn(engine, claim, definition, stop=watch.stop, progress=watch.progress)
        if isinstance(turn, Ended):
            return _End(promoted=turn.promoted)
        if isinstance(turn, Stopped):
            return _End(interrupted=True)
        if isinstance(turn, Gone):
            return _End(promoted=_promoted_by_others(engine, claim))
        claim = turn.claim
        end = _rest(engine, turn, watch)
        if end is not None:
            return end


def _rest(engine: Engine, rested: Rested, watch: Watch) -> _End | None:
    """Stay by a resting run until it is due (None), or leave it."""
    engine.taken_up(rested.claim)
    try:
        return _stay(engine, rested.claim, rested.due_at, watch)
    finally:
        engine.let_go(rested.claim)


def _stay(engine: Engine, claim: Claim, due_at: int | None, watch: Watch) -> _End | None:
    watch.progress(Progress("resting", claim.run_id, "", due_at=due_at))
    while True:
        if due_at is not None and due_at <= engine.now() and engine.go_on(claim):
            return None
        if watch.max_wait_ms is not None and (due_at is None or due_at - engine.now() > watch.max_wait_ms):
            engine.abandon([claim])
            return _End(left=True)
        if not _executed_other(engine, claim.row_id, watch):
            # Short slices: a clock that jumps, a laptop that wakes, an event, a cancel are all seen at the next one.
            left_s = _LOOK_EVERY_S if due_at is None else (due_at - engine.now()) / 1000
            engine.pause(max(0.0, min(_LOOK_EVERY_S, left_s)), watch.stop)
        if watch.stopping:
            engine.abandon([claim])
            return _End(interrupted=True)
        run = engine.database.read(lambda tx: runs.get(tx, claim.row_id))
        if run.owner is None or (run.owner.id, run.epoch) != (claim.owner_id, claim.epoch):
            return _End(promoted=_promoted_by_others(engine, claim))
        due_at = run.due_at


def _due_at(engine: Engine, claim: Claim) -> int | None:
    return engine.database.read(lambda tx: runs.get(tx, claim.row_id)).due_at


def _executed_other(engine: Engine, root: int, watch: Watch, *, started: bool = True) -> bool:
    """Execute one turn of a due run that the one in row `root` waits for, or behind (or `started`), where nobody else
    does. True: there was one."""
    found = engine.claim_left_alone(root, started=started, besides=watch.unloadable)
    if found is None:
        return False
    child, known = found
    try:
        definition = load_workflow(known)
    except DurableError as error:
        watch.unloadable.append(known.name)
        engine.put_back(child, note=error.message)
        return True
    at: Claim | None = child
    while at is not None:  # and whoever waited behind it
        turn = take_turn(engine, at, definition, stay=False, stop=watch.stop, progress=watch.progress)
        at = turn.promoted if isinstance(turn, Ended) else None
    return True


def _promoted_by_others(engine: Engine, claim: Claim) -> Claim | None:
    """Another process ended our run: look once whether a run that waited behind it is left to nobody."""

    def write(tx: Tx, owner_id: int) -> Claim | None:
        run = runs.get(tx, claim.row_id)
        if not run.finished or run.key is None:
            return None
        next_id = activity.promoted_after(tx, workflow=run.workflow, key=run.key, run_id=run.id)
        promoted = runs.by_id(tx, next_id) if next_id else None
        if promoted is None or promoted.status is not Status.PENDING or promoted.owner is not None:
            return None
        return engine.claim_promoted(tx, promoted, owner_id)

    return engine.write_as_owner(write)


def _follow(engine: Engine, definition: Definition, run_id: str, watch: Watch) -> _Taken:
    """Wait for the end of a run that another process executes, and take it up if that process dies and nobody else is
    there to go on with it. Nothing taken: it is finished, or we are to stop, or have waited long enough."""
    began = engine.passed()
    while not watch.stopping:
        run = _read(engine, run_id)
        if run.finished or _waits_too_long(run, watch.max_wait_ms, engine.passed() - began, engine.now()):
            break
        if engine.database.read(lambda tx, run=run: _is_left_alone(tx, engine, run)):  # type: ignore[misc]

            def write(tx: Tx, owner_id: int) -> _Taken | NotResumable:
                return _take_up(tx, engine, definition, run_id, owner_id)

            taken = engine.write_as_owner(write)
            if isinstance(taken, _Taken):
                return taken
        # What a run without an owner waits behind may have been left alone, too.
        if run.owner is not None or not _executed_other(engine, run.row_id, watch, started=False):
            engine.pause(_LOOK_EVERY_S, watch.stop)
    return _Taken(None)


def _waits_too_long(run: Run, limit: int | None, waited: int, now: int) -> bool:
    """Has a call that follows a run waited for so long, or would it, since the run rests longer?"""
    return limit is not None and max(waited, 0 if run.due_at is None else run.due_at - now) > limit


def _is_left_alone(tx: Tx, engine: Engine, run: Run) -> bool:
    """Has the run a dead owner, or none while it is due and no worker lives?"""
    if run.owner is not None:
        return not engine.alive(run.owner.id)
    may = adopting.may_claim(tx, run, now=engine.now(), alive=engine.alive)
    return may.yes and not engine.has_live_worker(tx)


def follow(engine: Engine, run_id: str, *, timeout_ms: int | None = None, stop: threading.Event | None = None) -> Run:
    """Block until a run is finished. Raises NotOver when `timeout_ms` is over or `stop` is set before."""
    began = engine.passed()
    while True:
        run = _read(engine, run_id)
        if run.finished:
            return run
        over = timeout_ms is not None and engine.passed() - began >= timeout_ms
        if over or (stop is not None and stop.is_set()):
            raise NotOver(f"run {run.id} is {run.status}", run_id=run.id, status=str(run.status))
        left = _LOOK_EVERY_S if timeout_ms is None else (timeout_ms - (engine.passed() - began)) / 1000
        engine.pause(min(_LOOK_EVERY_S, max(left, 0.001)), stop)


def _read(engine: Engine, run_id: str) -> Run:
    return engine.database.read(lambda tx: _now(tx, run_id))


def _now(tx: Tx, run_id: str) -> Run:
    run = runs.by_id(tx, run_id)
    if run is None:
        raise RunNotFound(f"run {run_id} is gone: it was pruned")
    return run
