"""What an operation would do now, and why (`--dry-run`): the operation itself is done, and what it did is told.

Every function works inside a write transaction that its caller rolls back (`Engine.rehearse`). So there is no second
copy of any rule that could say something else than what then happens.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable_cli import settling, starting
from durable_cli.core import arbitration
from durable_cli.core.arbitration import Action
from durable_cli.core.timing import format_age
from durable_cli.errors import InputMismatch, KeyTaken, NotFinished
from durable_cli.model import Outcome, Run, Status
from durable_cli.owners import Alive
from durable_cli.request import Request
from durable_cli.starting import Started
from durable_cli.store import runs, workflows
from durable_cli.store.database import Tx


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would happen now and why. `facts` are lines for a person.

    `outcome`: what a start would answer (None: it would be refused, or it is no start). `due_at`: when the run that it
    answers with would begin, where that is not now.
    """

    action: str
    reason: str
    workflow: str
    key: str | None
    facts: tuple[str, ...] = ()
    holder_id: str | None = None
    holder_status: Status | None = None
    outcome: Outcome | None = None
    due_at: int | None = None


# -- starts ----------------------------------------------------------------------------------------------------------

_ACTIONS = {
    Outcome.CREATED: Action.CREATE,
    Outcome.EXISTING: Action.EXISTING,
    Outcome.RESUMED: Action.EXISTING,
    Outcome.REPLACED: Action.REPLACE,
    Outcome.QUEUED: Action.QUEUE,
    Outcome.EVENT_SENT: Action.SEND_EVENT,
}
_WORDS = {
    Action.CREATE: "a new run would start",
    Action.EXISTING: "nothing would start: the answer is the holder",
    Action.REFUSE: "nothing would start: the key is taken",
    Action.REPLACE: "the holder would be cancelled and a new run would take the key",
    Action.QUEUE: "a run would wait behind the holder",
    Action.MERGE_HOLDER: "the holder, never started, would take the new input",
    Action.MERGE_WAITING: "the run waiting behind the holder would take the new input",
    Action.SEND_EVENT: "the input would be sent to the holder as an event",
}


def without_file(request: Request, *, now: int) -> Explanation:
    """What a start does where there is no database yet."""
    due_at = starting.first_due(request, now)
    return Explanation(
        str(Action.CREATE),
        f"{_WORDS[Action.CREATE]}: there is no database yet",
        request.workflow,
        request.key,
        outcome=Outcome.CREATED,
        due_at=due_at if due_at > now else None,
    )


def start(tx: Tx, request: Request, *, now: int, alive: Alive, owner_id: int | None) -> Explanation:
    """Start, and tell what that did. Raises what the start raises besides KeyTaken, MergeFirst too."""
    known = workflows.get(tx, request.workflow)
    met = runs.holder(tx, known.id, request.key) if known is not None and request.key is not None else None
    facts = [] if met is None else [_met(met, now, alive)]
    started = starting.start(tx, request, now=now, alive=alive, owner_id=owner_id)
    action = _action(started)
    if met is not None:
        facts += _ended_first(tx, met)
        strict = ", on_mismatch=error" if request.policies.on_mismatch == "error" else ""
        facts.append(f"policies: on_duplicate={request.on_duplicate}, reuse={request.policies.reuse}{strict}")
    result, refusal = started.result, started.refusal
    holder_id = refusal.holder_id if refusal else result.holder_id if result else None
    holder_status = Status(refusal.holder_status) if refusal else result.holder_status if result else None
    answer = None if result is None else runs.by_id(tx, result.run_id)
    later = answer is not None and not answer.finished and answer.epoch == 0 and (answer.due_at or 0) > now
    return Explanation(
        str(action),
        _WORDS[action] + _why(started, action, request, met) + _here(started),
        request.workflow,
        request.key,
        facts=tuple(facts),
        holder_id=holder_id or (met.id if met else None),
        holder_status=holder_status or (met.status if met else None),
        outcome=result.outcome if result else None,
        due_at=answer.due_at if answer is not None and later else None,
    )


def _action(started: Started) -> Action:
    result = started.result
    if result is None:
        return Action.REFUSE
    if result.outcome is Outcome.MERGED:
        return Action.MERGE_HOLDER if result.run_id == result.holder_id else Action.MERGE_WAITING
    return _ACTIONS[result.outcome]


def _why(started: Started, action: Action, request: Request, met: Run | None) -> str:
    if isinstance(started.refusal, InputMismatch):
        return ", and its run has another input"
    if action is not Action.CREATE:
        return ""
    if request.key is None:
        return ": it has no key"
    if met is None:
        return ": nobody holds the key"
    return f": reuse={request.policies.reuse} lets the key go" if met.finished else ": the holder would have ended"


def _here(started: Started) -> str:
    """What this process would execute, unless that is a new run of its own."""
    claim, result = started.claim, started.result
    if started.ended:
        failed = "; its process has died too often: it would have failed, and this call would say so"
        return failed if claim is None else f"{failed}, and then execute run {claim.run_id}, which waited behind it"
    if claim is None or result is None or result.outcome in (Outcome.CREATED, Outcome.REPLACED):
        return ""
    if claim.epoch == 0:
        return "; nobody stays by it, so this call would, and execute it when it is due"
    return "; nobody executes it, so it would be taken up here"


def _met(holder: Run, now: int, alive: Alive) -> str:
    """The holder as the start meets it: status, owner, since when it has the key, when it is due."""
    words = [f"holder: run {holder.id}", str(holder.status)]
    if holder.owner is None:
        words.append("no owner")
    else:
        words.append(f"owner {'alive' if alive(holder.owner.id) else 'dead'}, pid {holder.owner.pid}")
    if holder.held_since is not None:
        words.append(f"took the key {format_age(now - holder.held_since)} ago")
    if holder.due_at is not None and holder.due_at > now:
        words.append(f"due in {format_age(holder.due_at - now)}")
    elif holder.due_at is None and holder.status is Status.WAITING:
        words.append("waits for something to come")
    return ", ".join(words)


def _ended_first(tx: Tx, met: Run) -> list[str]:
    """A holder whose time was over, or whose process died too often, has failed before anything was decided."""
    after = runs.get(tx, met.row_id)
    failed = after.finished or after.status is Status.COMPENSATING
    if after.status is met.status or not failed or after.status is Status.CANCELLED:
        return []
    return [f"first it would become {after.status} ({after.error.type if after.error else 'its time is over'})"]


# -- runs ------------------------------------------------------------------------------------------------------------


def retry(tx: Tx, run: Run, *, now: int, alive: Alive) -> Explanation:
    """Retry the run, and tell what that did."""
    holder = runs.holder(tx, run.workflow_id, run.key) if run.key is not None else None
    newer = holder if holder is not None and holder.row_id != run.row_id else None
    refusal = settling.retry(tx, run, now=now, alive=alive)
    if refusal is not None:
        taken = isinstance(refusal, KeyTaken)
        answer = arbitration.Retry.REFUSE_KEY if taken else arbitration.Retry.REFUSE_STATUS
    elif run.key is None or run.holds_key:
        answer = arbitration.Retry.KEEP
    else:
        answer = arbitration.Retry.TAKE if newer is None else arbitration.Retry.RETAKE
    reasons = {
        arbitration.Retry.KEEP: "the run would be pending again, its recorded steps kept",
        arbitration.Retry.TAKE: "the run would be pending again and take its key, which nobody holds",
        arbitration.Retry.RETAKE: "the run would be pending again and take its key back",
        arbitration.Retry.REFUSE_STATUS: f"nothing would happen: the run is {run.status}, not failed or cancelled",
        arbitration.Retry.REFUSE_KEY: "nothing would happen: a newer run has the key",
    }
    return _of_run(tx, str(answer), reasons[answer], run, newer)


def rerun(tx: Tx, run: Run, *, run_id: str, now: int, alive: Alive) -> Explanation:
    """Start a fresh copy of the run, and tell what that did."""
    holder = runs.holder(tx, run.workflow_id, run.key) if run.key is not None else None
    started = starting.rerun(tx, run, run_id=run_id, now=now, alive=alive, owner_id=None)
    if isinstance(started, NotFinished):
        answer = arbitration.Rerun.REFUSE_UNFINISHED
    else:
        answer = arbitration.Rerun.CREATE if started.refusal is None else arbitration.Rerun.REFUSE_KEY
    reasons = {
        arbitration.Rerun.CREATE: "a new run would start with the same input and key",
        arbitration.Rerun.REFUSE_UNFINISHED: f"nothing would start: the run is {run.status}, not finished",
        arbitration.Rerun.REFUSE_KEY: "nothing would start: the key is taken",
    }
    return _of_run(tx, str(answer), reasons[answer], run, holder)


def cancel(run: Run | None, workflow: str | None, key: str | None) -> Explanation:
    """What a cancel would do to the run (None: no run has that key)."""
    if run is None:
        return Explanation("nothing", "nothing to cancel: no run has that key", workflow or "", key)
    answer = arbitration.decide_cancel(run.status)
    reasons = {
        arbitration.Cancel.CANCEL: "the run would be cancelled, and its unfinished children with it",
        arbitration.Cancel.NOTHING: f"nothing to cancel: the run is {run.status}",
        arbitration.Cancel.REFUSE: "nothing would happen: a compensating run cannot be cancelled",
    }
    return _told(str(answer), reasons[answer], run, None, ())


def _of_run(tx: Tx, action: str, reason: str, run: Run, holder: Run | None) -> Explanation:
    return _told(action, reason, run, holder, () if holder is None else tuple(_ended_first(tx, holder)))


def _told(action: str, reason: str, run: Run, holder: Run | None, more: tuple[str, ...]) -> Explanation:
    facts = [f"run {run.id} of workflow {run.workflow!r}, {run.status}"]
    if holder is not None:
        facts.append(f"holder of its key: run {holder.id}, {holder.status}")
    return Explanation(
        action,
        reason,
        run.workflow,
        run.key,
        facts=(*facts, *more),
        holder_id=holder.id if holder else None,
        holder_status=holder.status if holder else None,
    )
