"""What an operation would do now, and why (`--dry-run`). Reads only; asks the same tables as the operation itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from durable_cli import settling
from durable_cli.core import arbitration
from durable_cli.core.arbitration import Action
from durable_cli.model import Run, Status
from durable_cli.owners import Alive
from durable_cli.request import Request, has_moved
from durable_cli.starting import facts_of
from durable_cli.store import runs, workflows
from durable_cli.store.database import Tx


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would happen now and why. `facts` are lines for a person."""

    action: str
    reason: str
    workflow: str
    key: str | None
    facts: tuple[str, ...] = ()
    holder_id: str | None = None
    holder_status: Status | None = None


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


def start(tx: Tx, request: Request, *, now: int, alive: Alive, executing: bool) -> Explanation:
    """What `start` would decide at this moment; reads only. Raises what the start would raise besides KeyTaken."""
    known = workflows.get(tx, request.workflow)
    if known is not None:
        has_moved(known, request)
    if request.key is None:
        return Explanation("create", "without a key every start is a new run", request.workflow, None)
    holder = runs.holder(tx, known.id, request.key) if known else None
    if holder is None:
        reason = "a new run would start: nobody holds the key"
        return Explanation("create", reason, request.workflow, request.key)
    dead = holder.owner is not None and not alive(holder.owner.id)
    facts = facts_of(tx, holder)
    assert facts is not None
    decision = arbitration.decide_start(
        replace(facts, orphaned=facts.orphaned or dead),
        reuse=request.policies.reuse,
        policy=request.on_duplicate.policy,
        executing=executing,
    )
    reason = _WORDS[decision.action]
    if decision.adopt and (holder.due_at is None or holder.due_at <= now):
        reason += "; nobody executes it, so it would be taken up here"
    owner = "no owner" if holder.owner is None else f"owner {'dead' if dead else 'alive'}, pid {holder.owner.pid}"
    return Explanation(
        str(decision.action),
        reason,
        request.workflow,
        request.key,
        facts=(
            f"holder: run {holder.id}, {holder.status}, {owner}",
            f"policies: on_duplicate={request.on_duplicate}, reuse={request.policies.reuse}",
        ),
        holder_id=holder.id,
        holder_status=holder.status,
    )


def retry(tx: Tx, run: Run) -> Explanation:
    """What a retry of the run would do."""
    holder = runs.holder(tx, run.workflow_id, run.key) if run.key is not None else None
    newer = holder if holder is not None and holder.row_id != run.row_id else None
    answer = arbitration.decide_retry(
        run.status,
        keyed=run.key is not None,
        holds_key=run.holds_key,
        newer=newer.status if newer else None,
        reuse=settling.reuse_of(tx, run.workflow),
    )
    reasons = {
        arbitration.Retry.KEEP: "the run would be pending again, its recorded steps kept",
        arbitration.Retry.TAKE: "the run would be pending again and take its key, which nobody holds",
        arbitration.Retry.RETAKE: "the run would be pending again and take its key back",
        arbitration.Retry.REFUSE_STATUS: f"nothing would happen: the run is {run.status}, not failed or cancelled",
        arbitration.Retry.REFUSE_KEY: "nothing would happen: a newer run has the key",
    }
    return _of_run(str(answer), reasons[answer], run, newer)


def rerun(tx: Tx, run: Run) -> Explanation:
    """What a rerun of the run would do."""
    holder = runs.holder(tx, run.workflow_id, run.key) if run.key is not None else None
    answer = arbitration.decide_rerun(
        run.status, holder=holder.status if holder else None, reuse=settling.reuse_of(tx, run.workflow)
    )
    reasons = {
        arbitration.Rerun.CREATE: "a new run would start with the same input and key",
        arbitration.Rerun.REFUSE_UNFINISHED: f"nothing would start: the run is {run.status}, not finished",
        arbitration.Rerun.REFUSE_KEY: "nothing would start: the key is taken",
    }
    return _of_run(str(answer), reasons[answer], run, holder)


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
    return _of_run(str(answer), reasons[answer], run, None)


def _of_run(action: str, reason: str, run: Run, holder: Run | None) -> Explanation:
    facts = [f"run {run.id} of workflow {run.workflow!r}, {run.status}"]
    if holder is not None:
        facts.append(f"holder of its key: run {holder.id}, {holder.status}")
    return Explanation(
        action,
        reason,
        run.workflow,
        run.key,
        facts=tuple(facts),
        holder_id=holder.id if holder else None,
        holder_status=holder.status if holder else None,
    )
