"""All that can make a run: one transaction that reads the holder, decides, and writes run, key and activity.

`start` is called inside a write transaction that the caller holds. With an owner id the caller executes what it
starts (`durable run`): the run to execute is then claimed in the same transaction, so that no crash can leave a key
held by a run that nobody will ever look at.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable_cli import adopting, settling
from durable_cli.core import arbitration
from durable_cli.core.arbitration import Action
from durable_cli.core.timing import debounce_due
from durable_cli.errors import InputMismatch, KeyTaken, NotFinished
from durable_cli.model import Claim, OnDuplicate, Outcome, Policy, Run, StartResult, Status
from durable_cli.owners import Alive
from durable_cli.request import MergeFirst, Request, has_moved
from durable_cli.store import activity, runs, transitions, workflows
from durable_cli.store.database import Tx
from durable_cli.values import same_value


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

    def mismatches(self, holder: Run) -> bool:
        """Has the holder another input, where the workflow takes that for a mistake?"""
        strict = self.request.policies.on_mismatch == "error"
        return strict and not same_value(self.request.input, holder.input)

    def claim(self, run: Run) -> Claim | None:
        """Claim a run for the caller if it executes and the run may be claimed now; stay by one that only has to
        wait until it is due (its claim has the epoch 0)."""
        if self.owner_id is None:
            return None
        if run.epoch == 0 and run.due_at is not None and run.due_at > self.now and run.debounced:
            stays = transitions.stay_by(self.tx, run.row_id, self.owner_id)
            return Claim(run.row_id, run.id, self.owner_id, 0) if stays else None
        may = adopting.may_claim(self.tx, run, now=self.now, alive=self.alive)
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

    def newer_input(self, older: Run) -> str:
        """The input that takes the place of a run's that has not begun: this start's, merged if the workflow does."""
        if not self.request.merges:
            return self.request.input
        if self.request.merged is None or self.request.merged[0] != older.input:
            raise MergeFirst(older.input)
        return self.request.merged[1]

    def note_duplicate(
        self,
        holder: Run,
        outcome: str,
        *,
        other: str,
        lost: str | None = None,
        newer: str | None = None,
        runs_after: str | None = None,
    ) -> None:
        """Record the duplicate. `other`: the input that the start's (or, merged, what takes its place) is compared
        with; `lost`: what will not run."""
        changed = not same_value(self.request.input if newer is None else newer, other)
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
            schedule=self.request.schedule,
            replayed=self.request.replayed,
        )


def start(tx: Tx, request: Request, *, now: int, alive: Alive, owner_id: int | None) -> Started:
    """Start a workflow: the answer of the tables for its key, applied."""
    policy = request.on_duplicate.policy
    workflow_id = write_workflow(tx, request, now)
    it = _Start(tx, request, workflow_id, now, alive, owner_id)
    if request.key is None:
        return _create(it, None)
    holder = runs.holder(tx, workflow_id, request.key)
    gathers = holder is not None and debounces(it.request) and _is_debounced(holder)
    if holder is not None and (gathers or not _is_replaced_as_it_is(it, holder)):
        reaped = settling.reap(tx, holder, now=now, alive=alive, reuse=request.policies.reuse)
        if reaped.ended and it.executing and policy in (Policy.USE_EXISTING, Policy.ERROR):
            return _take_up_ended(it, reaped)
        holder = _without_overdue(it, reaped.promoted or reaped.run)
    if holder is not None and debounces(it.request) and _is_debounced(holder):
        return _debounce(it, holder)
    decision = arbitration.decide_start(
        facts_of(tx, holder), reuse=request.policies.reuse, policy=policy, executing=it.executing
    )
    return _apply(it, decision, holder)


def _without_overdue(it: _Start, holder: Run) -> Run:
    """The holder, after one whose time is over was ended and, perhaps, followed by the run that waited behind it."""
    overdue = settling.end_overdue(it.tx, holder, now=it.now, reuse=it.request.policies.reuse)
    return overdue.promoted or overdue.run


def _is_debounced(holder: Run) -> bool:
    """Does the holder still wait for newer starts? Until it is claimed, also when it is due."""
    return holder.debounced and holder.epoch == 0 and holder.status is Status.PENDING


def _debounce(it: _Start, holder: Run) -> Started:
    """The holder takes the newer input and waits anew; input and due time change together."""
    policies = it.request.policies
    assert policies.debounce_ms is not None
    newer = it.newer_input(holder)
    it.note_duplicate(holder, "debounced", other=holder.input, lost=holder.input, newer=newer)
    due_at = debounce_due(
        now=it.now, first=holder.created_at, period_ms=policies.debounce_ms, timeout_ms=policies.debounce_timeout_ms
    )
    transitions.postpone(it.tx, holder.row_id, newer, max(due_at, it.request.at or 0))
    claim = it.claim(runs.get(it.tx, holder.row_id)) if holder.owner is None else None
    return Started(it.result(Outcome.MERGED, holder.id, holder), claim=claim)


def _is_replaced_as_it_is(it: _Start, holder: Run) -> bool:
    """Is it replaced whoever owns it? Then its owner's death is no crash of a run that goes on. One whose time is over
    and whose owner is dead has failed before, though: what it did has to be undone."""
    replaces = it.request.on_duplicate.policy is Policy.CANCEL_EXISTING and holder.status is not Status.COMPENSATING
    if not replaces or holder.owner is None:
        return False
    return not settling.is_overdue(holder, it.now) or it.alive(holder.owner.id)


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
        newer = it.newer_input(holder)
        it.note_duplicate(holder, "run_again", other=holder.input, lost=holder.input, newer=newer)
        _take_newer(it, holder, newer)
        claim = it.claim(runs.get(it.tx, holder.row_id)) if decision.adopt else None
        return Started(it.result(Outcome.MERGED, holder.id, holder), claim=claim)
    if action is Action.SEND_EVENT:
        return _send_event(it, holder, adopt=decision.adopt)
    return _wait_behind(it, holder, adopt=decision.adopt)


def _create(it: _Start, holder: Run | None, *, may_wait: bool = True) -> Started:
    if holder is not None:
        settling.free_key(it.tx, holder, to_id=it.request.run_id, now=it.now)
    run = _insert(it, may_wait=may_wait)
    claim = it.claim(run)
    return Started(it.result(Outcome.CREATED, run.id), claim=claim)


def debounces(request: Request) -> bool:
    """Does this start wait for newer ones? Keyless starts never do, nor do retries and reruns."""
    return request.policies.debounce_ms is not None and request.key is not None


def first_due(request: Request, now: int, *, may_wait: bool = True) -> int:
    """When a new run of this start is due: now, or later if asked for (`at`) or if it waits for newer starts."""
    due_at = now if request.at is None else max(now, request.at)
    return max(due_at, now + (request.policies.debounce_ms or 0)) if may_wait and debounces(request) else due_at


def _insert(it: _Start, runs_after: int | None = None, *, may_wait: bool = True) -> Run:
    """A new run; `may_wait`: for newer starts, where its workflow does."""
    may_wait = may_wait and runs_after is None
    due_at = first_due(it.request, it.now, may_wait=may_wait)
    row_id = transitions.insert(
        it.tx,
        public_id=it.request.run_id,
        workflow_id=it.workflow_id,
        key=it.request.key,
        input=it.request.input,
        now=it.now,
        due_at=due_at if runs_after is None else it.request.at,
        runs_after=runs_after,
        timeout_ms=it.request.timeout_ms,
        parent=it.request.parent,
        debounced=may_wait and debounces(it.request),
    )
    return runs.get(it.tx, row_id)


def _existing(it: _Start, holder: Run, *, adopt: bool) -> Started:
    """The holder is the answer, and taken up where nobody executes it: then nothing is refused, under `error` and for
    another input either, or a crash would leave a cron job answering "taken" for ever."""
    claim = it.claim(holder) if adopt else None
    refusal: KeyTaken | None = None
    if claim is None and it.request.on_duplicate.policy is Policy.ERROR:  # it rests, and is not due
        refusal = settling.key_taken(holder)
    elif claim is None and it.mismatches(holder):
        refusal = _mismatch(holder)
    told = "use_existing" if refusal is None else "error"
    it.note_duplicate(holder, told, other=holder.input, lost=it.request.input)
    if refusal is not None:
        return Started(None, refusal=refusal)
    outcome = Outcome.EXISTING if claim is None else Outcome.RESUMED
    return Started(it.result(outcome, holder.id, holder), claim=claim)


def _mismatch(holder: Run) -> InputMismatch:
    taken = settling.key_taken(holder)
    return InputMismatch(
        f"{taken.message}: that run has another input",
        holder_id=taken.holder_id,
        holder_status=taken.holder_status,
        finished=taken.finished,
        hint=f"durable runs show {holder.id}",
    )


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
        newer = it.newer_input(waiting)
        it.note_duplicate(
            holder, "run_again", other=waiting.input, lost=waiting.input, newer=newer, runs_after=waiting.id
        )
        _take_newer(it, waiting, newer)
    claim = it.claim(holder) if adopt else None
    return Started(it.result(outcome, waiting.id, holder), claim=claim)


def _take_newer(it: _Start, run: Run, newer: str) -> None:
    """A run that has not begun takes a newer input; it never begins before what that start asked for (`at`)."""
    if it.request.at is not None and it.request.at > (run.due_at or 0):
        transitions.postpone(it.tx, run.row_id, newer, it.request.at)
    else:
        transitions.set_input(it.tx, run.row_id, newer)


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


def write_workflow(tx: Tx, request: Request, now: int) -> int:
    """Write the policies and the place of the code, unless another place has the name."""
    known = workflows.get(tx, request.workflow)
    if known is not None:
        moved = has_moved(known, request)
        if moved is not None:
            activity.moved(tx, at=now, workflow=request.workflow, from_place=moved[0], to_place=moved[1])
    return workflows.put(
        tx, name=request.workflow, location=request.location, policies=request.policies, known=known, now=now
    )


# -- rerun ---------------------------------------------------------------------------------------------------------


def rerun(tx: Tx, run: Run, *, run_id: str, now: int, alive: Alive, owner_id: int | None) -> Started | NotFinished:
    """Start a fresh copy of a finished run: same workflow, input and key. A taken key is refused, whoever holds it."""
    known = workflows.get(tx, run.workflow)
    assert known is not None
    holder = runs.holder(tx, run.workflow_id, run.key) if run.key is not None else None
    if holder is not None:
        reaped = settling.look_after(tx, holder, now=now, alive=alive)
        holder = reaped.promoted or reaped.run
        run = runs.get(tx, run.row_id)  # it may have been the holder, and be over now
    policies = settling.policies_of(tx, run.workflow)
    answer = arbitration.decide_rerun(run.status, holder=holder.status if holder else None, reuse=policies.reuse)
    request = Request(
        run_id=run_id,
        workflow=run.workflow,
        location=known.location,
        policies=policies,
        on_duplicate=OnDuplicate(Policy.ERROR),
        key=run.key,
        input=run.input,
        timeout_ms=run.timeout_ms,
    )
    it = _Start(tx, request, run.workflow_id, now, alive, owner_id)
    if answer is arbitration.Rerun.CREATE:
        return _create(it, holder, may_wait=False)
    if answer is arbitration.Rerun.REFUSE_KEY:
        assert holder is not None
        it.note_duplicate(holder, "error", other=holder.input, lost=run.input)
        return Started(None, refusal=settling.key_taken(holder))
    return NotFinished(
        f"run {run.id} is {run.status}; only a finished run can be run again",
        run_id=run.id,
        status=str(run.status),
        hint=adopting.how_it_ends(tx, run, alive),
    )
