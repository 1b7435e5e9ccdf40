"""All that ends a run or moves a key without starting anything.

Every function here works inside a write transaction that the caller holds, reads the facts, asks `core` and applies
the answer. `end` alone ends a run, and it decides in the same transaction who has the key next: there is no instant
in which a finished holder has a run waiting behind it.

Refusals are returned as values, so that the transaction (and the activity in it) can commit before they are raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from durable_cli import reopening
from durable_cli.core import arbitration, lifecycle, timing
from durable_cli.definition import loaded_definition
from durable_cli.errors import DurableError, KeyTaken, NoKey, NotFinished, NotRetryable
from durable_cli.model import Claim, Policies, Reuse, Run, RunError, Status, StepStatus
from durable_cli.store import activity, events, history, runs, transitions, workflows
from durable_cli.store.database import Tx

Alive = Callable[[int], bool]


def policies_of(tx: Tx, workflow: str) -> Policies:
    """The policies in force: the loaded definition's, else as the workflow's last start wrote them."""
    known = workflows.get(tx, workflow)
    if known is None:
        return Policies()
    loaded = loaded_definition(known)
    return loaded.policies if loaded else known.policies


def reuse_of(tx: Tx, workflow: str) -> Reuse:
    """The `reuse` in force."""
    return policies_of(tx, workflow).reuse


def fail(tx: Tx, run: Run, error: RunError, *, now: int, reuse: Reuse | None = None) -> Run | None:
    """An unfinished run has failed: it begins to undo its steps that have a compensation, or ends if there is none.
    Returns the run promoted by its end.
    """
    if run.status is not Status.COMPENSATING and history.to_undo(tx, run.row_id):
        begin_to_undo(tx, run, error, now=now)
        return None
    status = Status.COMPENSATION_FAILED if run.status is Status.COMPENSATING else Status.FAILED
    return end(tx, run, status, now=now, error=run.error or error, reuse=reuse)


def begin_to_undo(tx: Tx, run: Run, error: RunError, *, now: int) -> None:
    """A run has failed and undoes what it did. Its children whose end it waited for are cancelled before that."""
    transitions.compensate(tx, run.row_id, error, now)
    awaited = history.children_waited_for(tx, run.row_id)
    for child in runs.children(tx, run.row_id):
        if child.row_id in awaited:
            cancel(tx, child, now=now, reason=f"the run that started it, {run.id}, has failed")


def end(
    tx: Tx,
    run: Run,
    status: Status,
    *,
    now: int,
    result: str | None = None,
    error: RunError | None = None,
    reuse: Reuse | None = None,
) -> Run | None:
    """End an unfinished run, wake who waits for its end, and promote (or cancel) the run that waits behind it.
    Returns the promoted run.
    """
    _close(tx, run, status, now=now, result=result, error=error)
    waiting = runs.waiting_behind(tx, run.row_id)
    if waiting is None:
        return None
    reuse = reuse or reuse_of(tx, run.workflow)
    if arbitration.decide_succession(status, reuse) is arbitration.Succession.CANCEL:
        text = f"run {run.id} ended {status} and reuse={reuse} keeps the key {run.key!r} for it"
        kept = RunError("KeyKept", text, fields={"run_id": run.id})
        _close(tx, waiting, Status.CANCELLED, now=now, error=kept)  # somebody may wait for its end
        return None
    hand_over(tx, from_run=run, to_run=waiting, reason="promoted", now=now)
    return runs.get(tx, waiting.row_id)


def _close(
    tx: Tx, run: Run, status: Status, *, now: int, result: str | None = None, error: RunError | None = None
) -> None:
    """The run is finished; its parent learns it, and its children that nobody asks for any more are cancelled."""
    transitions.end(tx, run.row_id, status=status, result=result, error=error, now=now)
    for parent in runs.waiting_for_child(tx, run.row_id):
        transitions.wake(tx, parent.row_id, now)
    if status is Status.COMPLETED:
        return
    awaited = history.children_waited_for(tx, run.row_id)
    for child in runs.children(tx, run.row_id):
        if status is Status.CANCELLED or child.row_id in awaited:
            cancel(tx, child, now=now, reason=f"the run that started it, {run.id}, ended {status}")


def hand_over(tx: Tx, *, from_run: Run, to_run: Run, reason: str, now: int) -> None:
    """The waiting run `to_run` takes the key of `from_run`."""
    transitions.drop_key(tx, from_run.row_id)
    transitions.promote(tx, to_run.row_id, now)
    _note_hand_off(tx, from_run, to_run.id, reason, now)


def _note_hand_off(tx: Tx, from_run: Run, to_id: str, reason: str, now: int) -> None:
    assert from_run.key is not None
    activity.handed_off(
        tx, at=now, workflow=from_run.workflow, key=from_run.key, from_id=from_run.id, to_id=to_id, reason=reason
    )


def free_key(tx: Tx, holder: Run, *, to_id: str, now: int) -> None:
    """A finished holder lets its key go to the run that a start is about to insert."""
    transitions.drop_key(tx, holder.row_id)
    _note_hand_off(tx, holder, to_id, "start", now)


def replace(tx: Tx, holder: Run, *, by_id: str, now: int) -> Run | None:
    """Cancel an unfinished holder for the run that a start is about to insert. Returns the run that waited behind it,
    which has to wait behind the new one (the caller knows its row).
    """
    error = RunError("Replaced", f"replaced by run {by_id}", fields={"run_id": by_id})
    _close(tx, holder, Status.CANCELLED, now=now, error=error)
    waiting = runs.waiting_behind(tx, holder.row_id)  # now: a child of the holder's has been cancelled with it
    transitions.drop_key(tx, holder.row_id)
    _note_hand_off(tx, holder, by_id, "replaced", now)
    return waiting


def give_back(tx: Tx, claim: Claim, *, now: int) -> bool:
    """The owner lets its unfinished run go, to be claimed by anybody. False: it was not its any more."""
    if not runs.ours(tx, claim.row_id, claim.owner_id, claim.epoch):
        return False
    transitions.give_back(tx, claim.row_id, now, crash=False)
    return True


@dataclass(frozen=True, slots=True)
class Reaped:
    """A run after its owner was looked at. `ended`: it had killed its owners too often and is failed now."""

    run: Run
    ended: bool = False
    promoted: Run | None = None


def reap(tx: Tx, run: Run, *, now: int, alive: Alive, reuse: Reuse | None = None) -> Reaped:
    """If the owner of an unfinished run is dead, take the run from it: it may be claimed, or has failed (CrashLoop)."""
    if run.finished or run.owner is None or alive(run.owner.id):
        return Reaped(run)
    fate = lifecycle.decide_orphan(run.status, run.crashes, resting=run.due_at is not None)
    transitions.give_back(tx, run.row_id, now, crash=fate is not lifecycle.Orphan.GIVE_BACK)
    run = runs.get(tx, run.row_id)
    if fate is not lifecycle.Orphan.FAIL:
        return Reaped(run)
    promoted = fail(tx, run, _crash_loop(tx, run), now=now, reuse=reuse)
    run = runs.get(tx, run.row_id)
    return Reaped(run, ended=run.finished, promoted=promoted)


def end_overdue(tx: Tx, run: Run, *, now: int, reuse: Reuse | None = None) -> Reaped:
    """If the run's time is over and nobody owns it, it has failed (Timeout)."""
    overdue = run.deadline_at is not None and run.deadline_at <= now
    if not overdue or run.finished or run.owner is not None or run.status is Status.COMPENSATING:
        return Reaped(run)
    promoted = fail(tx, run, timeout_error(run), now=now, reuse=reuse)
    run = runs.get(tx, run.row_id)
    return Reaped(run, ended=run.finished, promoted=promoted)


def timeout_error(run: Run) -> RunError:
    """Why a run whose deadline is over has failed."""
    assert run.timeout_ms is not None
    return RunError("Timeout", f"the run was not over {timing.format_duration(run.timeout_ms)} after it could begin")


def look_after(tx: Tx, run: Run, *, now: int, alive: Alive, reuse: Reuse | None = None) -> Reaped:
    """`reap`, then `end_overdue`: what everybody does who meets an unfinished run."""
    reaped = reap(tx, run, now=now, alive=alive, reuse=reuse)
    return reaped if reaped.ended else end_overdue(tx, reaped.run, now=now, reuse=reuse)


def _crash_loop(tx: Tx, run: Run) -> RunError:
    recorded = [step for step in history.of_run(tx, run.row_id) if step.status is not StepStatus.RETRYING]
    after = f"after step {recorded[-1].name!r}" if recorded else "before its first step ended"
    return RunError(
        "CrashLoop",
        f"the process that executed this run died {run.crashes} times in a row {after}",
        attempt=run.crashes,
    )


def cancel(tx: Tx, run: Run, *, now: int, reason: str | None) -> arbitration.Cancel:
    """Cancel a run, as far as its status allows; the answer says what was done."""
    answer = arbitration.decide_cancel(run.status)
    if answer is arbitration.Cancel.CANCEL:
        error = RunError("Cancelled", reason or "cancelled")
        end(tx, run, Status.CANCELLED, now=now, error=error)
    return answer


def send_event(tx: Tx, run: Run, name: str, payload: str, *, now: int, kind: str = "event") -> bool:
    """Keep an event for an unfinished run, and deliver it if the run waits for it now. True: it did."""
    event = events.send(tx, run.row_id, kind, name, payload, now)
    if not events.waits_for(tx, run.row_id, kind, name, now):
        return False
    if events.received(tx, run.row_id, kind, name) is None:
        events.receive(tx, event)
    transitions.wake(tx, run.row_id, now)
    return True


def note_held_long(tx: Tx, run: Run, *, now: int) -> bool:
    """An unfinished holder has had its key longer than its workflow's max_hold: record that once, and cancel it if the
    workflow says so. True: something was done.
    """
    assert run.key is not None
    known = workflows.get(tx, run.workflow)  # the row, as every list of such keys goes by
    policies = known.policies if known else Policies()
    old = (
        run.held_since is not None and policies.max_hold_ms is not None and run.held_since < now - policies.max_hold_ms
    )
    told = activity.told_held_long(tx, workflow=run.workflow, key=run.key, run_id=run.id)
    cancels = policies.on_max_hold == "cancel" and run.status is not Status.COMPENSATING
    if run.finished or not run.holds_key or not old or (told and not cancels):
        return False
    if not told:
        activity.held_long(
            tx,
            at=now,
            workflow=run.workflow,
            key=run.key,
            run_id=run.id,
            held_ms=now - (run.held_since or now),
            action=policies.on_max_hold,
        )
    if cancels:
        assert policies.max_hold_ms is not None
        limit = timing.format_duration(policies.max_hold_ms)
        cancel(tx, run, now=now, reason=f"it held its key longer than {limit} (max_hold)")
    return True


def key_taken(holder: Run, *, what: str = "nothing was started") -> KeyTaken:
    """The refusal that names the holder of a key."""
    kept = holder.finished
    message = f"key {holder.key!r} of workflow {holder.workflow!r} is "
    message += (
        f"kept by run {holder.id}, which is {holder.status}" if kept else f"held by run {holder.id} ({holder.status})"
    )
    hint = f"durable release-key {holder.id}" if kept else f"durable runs wait {holder.id}"
    facts: tuple[str, ...] = ()
    if holder.status in (Status.FAILED, Status.CANCELLED):
        facts = (f"to go on with it in place: durable retry {holder.id} --foreground",)
    return KeyTaken(
        f"{message}; {what}",
        holder_id=holder.id,
        holder_status=str(holder.status),
        finished=kept,
        facts=facts,
        hint=hint,
    )


def retry(tx: Tx, run: Run, *, now: int, reuse: Reuse | None = None) -> DurableError | None:
    """Make a failed or cancelled run pending again, its recorded steps kept. Returns the refusal, if it is one."""
    holder = runs.holder(tx, run.workflow_id, run.key) if run.key is not None else None
    newer = holder if holder is not None and holder.row_id != run.row_id else None
    answer = arbitration.decide_retry(
        run.status,
        keyed=run.key is not None,
        holds_key=run.holds_key,
        newer=newer.status if newer else None,
        reuse=reuse or reuse_of(tx, run.workflow),
    )
    if answer is arbitration.Retry.REFUSE_STATUS:
        return _not_retryable(run)
    if answer is arbitration.Retry.REFUSE_KEY:
        assert newer is not None
        return key_taken(newer, what=f"run {run.id} stays as it is")
    if newer is not None:
        transitions.drop_key(tx, newer.row_id)
    if answer in (arbitration.Retry.TAKE, arbitration.Retry.RETAKE):
        assert run.key is not None
        activity.retaken(
            tx,
            at=now,
            workflow=run.workflow,
            key=run.key,
            run_id=run.id,
            from_id=newer.id if newer else None,
        )
    reopening.reopen(tx, run, now=now, retry=retry)
    transitions.revive(tx, run.row_id, now)
    return None


def _not_retryable(run: Run) -> NotRetryable:
    if run.finished:
        hint = f"durable rerun {run.id}"
    elif run.owner is not None:
        hint = f"durable runs wait {run.id}"
    else:
        hint = f"durable resume {run.id}"
    return NotRetryable(
        f"run {run.id} is {run.status}; only a failed or cancelled run can be retried",
        run_id=run.id,
        status=str(run.status),
        hint=hint,
    )


def release(tx: Tx, run: Run, *, by: str, now: int) -> DurableError | None:
    """Let a finished holder's key go. Returns the refusal, if it is one."""
    answer = arbitration.decide_release(run.status, holds_key=run.holds_key)
    if answer is arbitration.Release.REFUSE_UNFINISHED:
        return NotFinished(
            f"run {run.id} is {run.status}; only a finished run's key can be released",
            run_id=run.id,
            status=str(run.status),
            hint=f"durable cancel {run.id}",
        )
    if answer is arbitration.Release.REFUSE_NO_KEY:
        why = "has no key" if run.key is None else f"does not hold its key {run.key!r} any more"
        return NoKey(f"run {run.id} {why}", run_id=run.id, status=str(run.status))
    assert run.key is not None
    transitions.drop_key(tx, run.row_id)
    activity.released(tx, at=now, workflow=run.workflow, key=run.key, run_id=run.id, by=by)
    return None
