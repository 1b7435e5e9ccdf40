"""All that can make a run: one transaction that reads the holder, decides, and writes run, key and activity.

`start` is called inside a write transaction that the caller holds. With an owner id the caller executes what it
starts (`durable run`): the run to execute is then claimed in the same transaction, so that no crash can leave a key
held by a run that nobody will ever look at.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from durable_cli import settling
from durable_cli.core import arbitration, lifecycle
from durable_cli.core.arbitration import Action
from durable_cli.core.keys import check_key
from durable_cli.core.policies import parse_on_duplicate
from durable_cli.definition import Definition
from durable_cli.errors import InvalidDefinition, KeyTaken, WorkflowMoved
from durable_cli.model import (
    Claim,
    Location,
    OnDuplicate,
    Outcome,
    Policy,
    Reuse,
    Run,
    StartResult,
    Status,
    Workflow,
)
from durable_cli.settling import Alive
from durable_cli.store import activity, runs, transitions, workflows
from durable_cli.store.database import Tx
from durable_cli.values import same_value


@dataclass(frozen=True, slots=True)
class Request:
    """A start, checked and ready: `run_id` is made by the caller, so that an unknown commit can be looked up.

    `default_...` is the workflow's own policy, which each start writes to its row; beside it is what this start uses.
    `parent`: the row of the run whose child this is.
    """

    run_id: str
    workflow: str
    location: Location
    reuse: Reuse
    default_on_duplicate: OnDuplicate
    on_duplicate: OnDuplicate
    key: str | None
    input: str
    timeout_ms: int | None = None
    default_timeout_ms: int | None = None
    moved: bool = False
    parent: int | None = None


def request_for(
    definition: Definition,
    input: object,
    *,
    run_id: str,
    key: str | None = None,
    on_duplicate: str | OnDuplicate | None = None,
    timeout_ms: int | None = None,
    moved: bool = False,
    parent: int | None = None,
) -> Request:
    """A checked start of a loaded workflow. Raises InvalidInput, InvalidKey, InvalidName; nothing is written yet."""
    policy = definition.on_duplicate if on_duplicate is None else parse_on_duplicate(on_duplicate)
    return Request(
        run_id=run_id,
        workflow=definition.name,
        location=definition.location,
        reuse=definition.reuse,
        default_on_duplicate=definition.on_duplicate,
        on_duplicate=policy,
        key=check_key(key),
        input=definition.accept_input(input),
        timeout_ms=definition.timeout_ms if timeout_ms is None else timeout_ms,
        default_timeout_ms=definition.timeout_ms,
        moved=moved,
        parent=parent,
    )


@dataclass(frozen=True, slots=True)
class Started:
    """What a start did: a result or a refusal, and the claim on the run that the caller is to execute now.

    `ended`: the holder this call would have taken up has failed instead; only what it promoted is executed.
    """

    result: StartResult | None
    refusal: KeyTaken | None = None
    claim: Claim | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class _Start:
    """One start in its transaction: the facts that every step of it needs."""

    tx: Tx
    request: Request
    workflow_id: int
    now: int
    alive: Alive
    owner_id: int | None

    @property
    def executing(self) -> bool:
        return self.owner_id is not None

    @property
    def key(self) -> str:
        assert self.request.key is not None
        return self.request.key

    def claim(self, run: Run) -> Claim | None:
        """Claim a run for the caller if it executes and the run may be claimed now."""
        if self.owner_id is None:
            return None
        may = lifecycle.decide_claim(
            run.status,
            behind=run.runs_after_row is not None,
            owned=run.owner is not None,
            due_at=run.due_at,
            now=self.now,
        )
        epoch = transitions.claim(self.tx, run.row_id, self.owner_id, self.now) if may.yes else None
        return None if epoch is None else Claim(run.row_id, run.id, self.owner_id, epoch)

    def result(
        self, outcome: Outcome, run_id: str, holder: Run | None = None, replaced: str | None = None
    ) -> StartResult:
        run = runs.by_id(self.tx, run_id)
        assert run is not None
        return StartResult(
            outcome=outcome,
            run_id=run.id,
            workflow=run.workflow,
            key=run.key,
            status=run.status,
            holder_id=holder.id if holder else None,
            holder_status=holder.status if holder else None,
            replaced_id=replaced,
        )

    def note_duplicate(
        self, holder: Run, outcome: str, *, other: str, lost: str | None = None, runs_after: str | None = None
    ) -> None:
        """Record the duplicate. `other`: the input that the start's is compared with; `lost`: what will not run."""
        changed = not same_value(self.request.input, other)
        activity.duplicate(
            self.tx,
            at=self.now,
            workflow=self.request.workflow,
            key=self.key,
            holder_id=holder.id,
            outcome=outcome,
            input_changed=changed,
            input=lost if changed else None,
            runs_after=runs_after,
        )


def start(tx: Tx, request: Request, *, now: int, alive: Alive, owner_id: int | None) -> Started:
    """Start a workflow: the answer of the tables for its key, applied."""
    policy = request.on_duplicate.policy
    check_policy(request)
    workflow_id = _write_workflow(tx, request, now)
    it = _Start(tx, request, workflow_id, now, alive, owner_id)
    if request.key is None:
        return _create(it, None)
    holder = runs.holder(tx, workflow_id, request.key)
    if holder is not None and not _to_be_replaced(holder, policy):
        reaped = settling.reap(tx, holder, now=now, alive=alive, reuse=request.reuse)
        if reaped.ended and it.executing and policy in (Policy.USE_EXISTING, Policy.ERROR):
            return _take_up_ended(it, reaped)
        holder = _without_overdue(it, reaped.promoted or reaped.run)
    decision = arbitration.decide_start(
        facts_of(tx, holder), reuse=request.reuse, policy=policy, executing=it.executing
    )
    return _apply(it, decision, holder)


def _without_overdue(it: _Start, holder: Run) -> Run:
    """The holder, after one whose time is over was ended and, perhaps, followed by the run that waited behind it."""
    overdue = settling.end_overdue(it.tx, holder, now=it.now, reuse=it.request.reuse)
    return overdue.promoted or overdue.run


def check_policy(request: Request) -> None:
    if request.on_duplicate.policy is Policy.RUN_AGAIN and request.reuse is Reuse.NEVER:
        raise InvalidDefinition(
            f"run_again can never run again on workflow {request.workflow!r}, whose reuse is never",
            hint='use "use_existing", "error", "cancel_existing" or "send_event:NAME"',
        )


def _to_be_replaced(holder: Run, policy: Policy) -> bool:
    """Is it replaced whoever owns it? Then its owner's death is no crash of a run that goes on."""
    running = holder.owner is not None and holder.status is not Status.COMPENSATING
    return running and policy is Policy.CANCEL_EXISTING


def facts_of(tx: Tx, holder: Run | None) -> arbitration.Holder | None:
    """What the tables want to know of a holder whose dead owner has been reaped."""
    if holder is None:
        return None
    return arbitration.Holder(
        status=holder.status,
        started=holder.epoch > 0,
        orphaned=holder.owner is None,
        has_waiting=runs.waiting_behind(tx, holder.row_id) is not None,
    )


def _apply(it: _Start, decision: arbitration.Decision, holder: Run | None) -> Started:
    action = decision.action
    if action is Action.CREATE:
        return _create(it, holder)
    assert holder is not None
    if action is Action.REPLACE:
        return _replace(it, holder)
    if action is Action.REFUSE:
        it.note_duplicate(holder, "error", other=holder.input, lost=it.request.input)
        return Started(None, refusal=settling.key_taken(holder))
    if action is Action.EXISTING:
        return _existing(it, holder, adopt=decision.adopt)
    if action is Action.MERGE_HOLDER:
        it.note_duplicate(holder, "run_again", other=holder.input, lost=holder.input)
        transitions.set_input(it.tx, holder.row_id, it.request.input)
        claim = it.claim(holder) if decision.adopt else None
        return Started(it.result(Outcome.MERGED, holder.id, holder), claim=claim)
    if action is Action.SEND_EVENT:
        return _send_event(it, holder, adopt=decision.adopt)
    return _wait_behind(it, holder, adopt=decision.adopt)


def _create(it: _Start, holder: Run | None) -> Started:
    if holder is not None:
        settling.free_key(it.tx, holder, to_id=it.request.run_id, now=it.now)
    run = _insert(it)
    claim = it.claim(run)
    return Started(it.result(Outcome.CREATED, run.id), claim=claim)


def _insert(it: _Start, runs_after: int | None = None) -> Run:
    row_id = transitions.insert(
        it.tx,
        public_id=it.request.run_id,
        workflow_id=it.workflow_id,
        key=it.request.key,
        input=it.request.input,
        now=it.now,
        due_at=it.now if runs_after is None else None,
        runs_after=runs_after,
        timeout_ms=it.request.timeout_ms,
        parent=it.request.parent,
    )
    return runs.get(it.tx, row_id)


def _existing(it: _Start, holder: Run, *, adopt: bool) -> Started:
    claim = it.claim(holder) if adopt else None
    refused = claim is None and it.request.on_duplicate.policy is Policy.ERROR  # it rests, and is not due
    outcome_told = "error" if refused else "use_existing"
    it.note_duplicate(holder, outcome_told, other=holder.input, lost=it.request.input)
    if refused:
        return Started(None, refusal=settling.key_taken(holder))
    outcome = Outcome.EXISTING if claim is None else Outcome.RESUMED
    return Started(it.result(outcome, holder.id, holder), claim=claim)


def _replace(it: _Start, holder: Run) -> Started:
    it.note_duplicate(holder, "cancel_existing", other=holder.input, lost=holder.input)
    waiting = settling.replace(it.tx, holder, by_id=it.request.run_id, now=it.now)
    run = _insert(it)
    if waiting is not None:
        transitions.wait_behind(it.tx, waiting.row_id, run.row_id)
    claim = it.claim(run)
    return Started(it.result(Outcome.REPLACED, run.id, holder, replaced=holder.id), claim=claim)


def _wait_behind(it: _Start, holder: Run, *, adopt: bool) -> Started:
    """One run waits behind the holder, with the newest input."""
    waiting = runs.waiting_behind(it.tx, holder.row_id)
    if waiting is None:
        waiting = _insert(it, runs_after=holder.row_id)
        outcome = Outcome.QUEUED
        it.note_duplicate(holder, "run_again", other=holder.input, runs_after=waiting.id)
    else:
        outcome = Outcome.MERGED
        it.note_duplicate(holder, "run_again", other=waiting.input, lost=waiting.input, runs_after=waiting.id)
        transitions.set_input(it.tx, waiting.row_id, it.request.input)
    claim = it.claim(holder) if adopt else None
    return Started(it.result(outcome, waiting.id, holder), claim=claim)


def _send_event(it: _Start, holder: Run, *, adopt: bool) -> Started:
    """The input goes to the holder as an event; that may make it due, and then it is ours to go on with."""
    event = it.request.on_duplicate.event
    assert event is not None
    settling.send_event(it.tx, holder, event, it.request.input, now=it.now)
    it.note_duplicate(holder, "send_event", other=holder.input)
    claim = it.claim(runs.get(it.tx, holder.row_id)) if adopt else None
    return Started(it.result(Outcome.EVENT_SENT, holder.id, holder), claim=claim)


def _take_up_ended(it: _Start, reaped: settling.Reaped) -> Started:
    """The holder that this call would have taken up has failed instead, having killed its process too often. The
    caller reports that, since such a job can tell nobody itself.
    """
    failed = reaped.run
    it.note_duplicate(failed, "use_existing", other=failed.input, lost=it.request.input)
    claim = it.claim(reaped.promoted) if reaped.promoted is not None else None
    return Started(it.result(Outcome.RESUMED, failed.id, failed), claim=claim, ended=True)


def _write_workflow(tx: Tx, request: Request, now: int) -> int:
    """Write the policies and the place of the code, unless another place has the name."""
    known = workflows.get(tx, request.workflow)
    if known is not None and known.location != request.location:
        _check_place(tx, known, request, now)
    return workflows.put(
        tx,
        name=request.workflow,
        location=request.location,
        reuse=request.reuse,
        on_duplicate=request.default_on_duplicate,
        timeout_ms=request.default_timeout_ms,
        known=known,
        now=now,
    )


def _check_place(tx: Tx, known: Workflow, request: Request, now: int) -> None:
    moved = has_moved(known, request)
    if moved is not None:
        activity.moved(tx, at=now, workflow=request.workflow, from_place=moved[0], to_place=moved[1])


def has_moved(known: Workflow, request: Request) -> tuple[str, str] | None:
    """From where to where the code has moved; None if it has not. Raises WorkflowMoved if that is not allowed."""
    old, new = known.location, request.location
    if (old.file, old.qualname) == (new.file, new.qualname):
        return None
    from_place, to_place = f"{old.file}:{old.qualname}", f"{new.file}:{new.qualname}"
    if not request.moved and os.path.exists(old.file):
        raise WorkflowMoved(
            f"workflow {request.workflow!r} is recorded from another place",
            facts=(f"recorded: {from_place}", f"this one: {to_place}"),
            hint="add --moved if the code has moved here; else give one of them another name=",
        )
    return from_place, to_place


# -- rerun ---------------------------------------------------------------------------------------------------------


def rerun(tx: Tx, run: Run, *, run_id: str, now: int, alive: Alive) -> Started | arbitration.Rerun:
    """Start a fresh copy of a finished run: same workflow, input and key. A taken key is refused, whoever holds it."""
    known = workflows.get(tx, run.workflow)
    assert known is not None
    holder = runs.holder(tx, run.workflow_id, run.key) if run.key is not None else None
    if holder is not None:
        reaped = settling.look_after(tx, holder, now=now, alive=alive)
        holder = reaped.promoted or reaped.run
    reuse = settling.reuse_of(tx, run.workflow)
    answer = arbitration.decide_rerun(run.status, holder=holder.status if holder else None, reuse=reuse)
    request = Request(
        run_id=run_id,
        workflow=run.workflow,
        location=known.location,
        reuse=reuse,
        default_on_duplicate=known.on_duplicate,
        on_duplicate=OnDuplicate(Policy.ERROR),
        key=run.key,
        input=run.input,
        timeout_ms=run.timeout_ms,
        default_timeout_ms=known.timeout_ms,
    )
    it = _Start(tx, request, run.workflow_id, now, alive, None)
    if answer is arbitration.Rerun.CREATE:
        return _create(it, holder)
    if answer is arbitration.Rerun.REFUSE_KEY:
        assert holder is not None
        it.note_duplicate(holder, "error", other=holder.input, lost=run.input)
        return Started(None, refusal=settling.key_taken(holder))
    return answer
