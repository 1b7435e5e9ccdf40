"""A Hypothesis state machine: the real engine on a real file, beside `keymodel`, on keys and all that moves them.

Two processes (in one: their liveness is told by hand, so that they can die at any moment) start runs in every mode,
execute them turn by turn, and do to runs whatever people may. After each rule the whole file is compared with the
model: every run with status, key, input, due time and owner; every row of activity in its order. What must always be
true is asked of the file besides, whatever the model says.
"""

from __future__ import annotations

from typing import Any, ClassVar

import keyruns
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from keyruns import unfinished
from keyworld import ACTS, KEYS, POLICIES, RULES, SCRIPT, SEEN, Process, World, claims_kept

from durable_cli import KeyTaken
from durable_cli.errors import AlreadyFinished, NoKey, NotFinished, NotResumable, NotRetryable
from durable_cli.model import Claim
from durable_cli.runner import Ended, Gone, Rested, take_turn
from durable_cli.worker import Worker


class KeyMachine(World):
    """See the module."""

    @initialize(names=st.lists(st.sampled_from(tuple(RULES)), min_size=1, max_size=2, unique=True))
    def of_these_workflows(self, names: list[str]) -> None:
        """An example is about one or two workflows: what shows much happens on few keys."""
        self.names = names

    # -- starting ----------------------------------------------------------------------------------------------------

    starts_of: ClassVar[dict[str, Any]] = {
        "number": st.integers(0, 1),
        "key": st.sampled_from((*KEYS, *KEYS, *KEYS, None)),
        "value": st.integers(0, 3),
        "policy": st.sampled_from(POLICIES),
        "who": st.integers(0, 1),
    }

    @rule(**starts_of, delay=st.sampled_from((None, None, None, 15, 45)), again=st.booleans())
    def start(
        self, number: int, key: str | None, value: int, policy: str, who: int, delay: int | None, again: bool
    ) -> None:
        for more in range(2 if again else 1):
            self._start(self._name(number), key, value + more, policy, who, delay)

    def _name(self, number: int) -> str:
        return self.names[number % len(self.names)]

    def _start(self, name: str, key: str | None, value: int, policy: str, who: int, delay: int | None) -> None:
        if name == "once" and policy == "run_again":
            return  # refused at the door, whatever the key: tests/engine/test_start.py
        new = self.ids.coming()
        at = None if delay is None else delay * 1000
        wanted = self.model.start(new, name, key, value, policy, delay=at)
        process = self.processes[who]
        try:
            answer = process.durable.start(self.flows[name], value, key=key, on_duplicate=policy, delay=delay)
            got = str(answer.outcome), answer.run_id
        except KeyTaken as taken:
            got = "taken", taken.holder_id
        self._answered(got, wanted[:2])

    @rule(**starts_of, act=st.sampled_from((None, *ACTS)))
    def execute(self, number: int, key: str | None, value: int, policy: str, who: int, act: str | None) -> None:
        """`durable run`, and perhaps one turn of what it has to execute."""
        self._execute(number, key, value, policy, who)
        if act is not None:
            self.turn(who, 0, act, True, True)

    def _execute(self, number: int, key: str | None, value: int, policy: str, who: int) -> None:
        name = self._name(number)
        if name == "once" and policy == "run_again":
            return
        process = self.processes[who]
        self._alive(process)
        wanted = self.model.start(self.ids.coming(), name, key, value, policy, by=process.name)
        before = dict(process.claims)
        try:
            with claims_kept(process):
                answer = process.durable.execute(self.flows[name], value, key=key, on_duplicate=policy)
            assert answer.start is not None
            got = str(answer.start.outcome), answer.start.run_id
        except KeyTaken as taken:
            got = "taken", taken.holder_id
        self._answered(got, wanted[:2])
        assert (process.claims != before) == wanted[2], f"claimed: {process.claims}, wanted: {wanted}"

    @rule(
        number=st.integers(0, 1),
        who=st.integers(0, 1),
        then=st.sampled_from((None, "replace", "complete", "complete", "fail", "cancel", "crash", "crashes", "undo")),
    )
    def crowd(self, number: int, who: int, then: str | None) -> None:
        """A run that has begun, one that waits behind it, and what then becomes of the first one."""
        self._execute(number, "a", 1, "use_existing", who)
        self.claim(who, 0, True)
        for value in (2, 3):
            self._start(self._name(number), "a", value, "run_again", who, None)
        self.the_file_is_as_the_model_says()
        if then == "replace":
            self._start(self._name(number), "a", 4, "cancel_existing", who, None)
        elif then == "cancel":
            self.cancel_by_key(who, number, "a")
        elif then in ("crash", "crashes"):
            self.crash(who)
            for _ in range(keyruns.MAX_CRASHES if then == "crashes" else 0):
                self.claim(who, 0, True)
                self.crash(who)
        elif then == "undo":
            self.turn(who, 0, "undoable", False, True)
            self.time_passes(25)
            self.turn(who, 0, "fail", False, True)
            self._start(self._name(number), "a", 5, "cancel_existing", who, None)
        elif then is not None:
            self.turn(who, 0, then, True, True)

    def _answered(self, got: tuple[str, str], wanted: tuple[str, str]) -> None:
        SEEN["starts"] += 1
        SEEN[f"answered {got[0]}"] += 1
        self.starts += 1
        self.created += got[0] == "created"
        assert got == wanted
        assert self.processes[0].durable.run(got[1]).id == got[1], "the answer names a run that is there"

    # -- executing ---------------------------------------------------------------------------------------------------

    def _some(self, number: int, wanted: Any = lambda run: True) -> Any:
        """One of the model's runs, the newest first."""
        found = [run for run in reversed(self.model.runs.values()) if wanted(run)]
        return found[number % len(found)] if found else None

    @rule(who=st.integers(0, 1), number=st.integers(0, 5), due=st.sampled_from((True, True, True, False)))
    def claim(self, who: int, number: int, due: bool) -> None:
        """`durable resume`: look after the run, then take it if that may be."""
        claimable = self.model.claimable() | {
            run["id"] for run in self.model.runs.values() if run["owner"] in self.model.dead
        }
        run = self._some(number, lambda run: run["id"] in claimable or not due)
        if run is None:
            return
        process = self.processes[who]
        self._alive(process)
        was = unfinished(run)
        self.model.look_after(run)
        try:
            with claims_kept(process):
                execution = process.durable.resume(run["id"])
        except NotResumable:
            assert run["id"] not in self.model.claimable()
            return
        if not unfinished(run):
            assert was
            assert execution.run.status == run["status"], "it has ended instead"
            heir = self.model.holder(run["workflow"], run["key"]) if run["key"] is not None else None
            promoted = heir is not None and heir["id"] in self.model.claimable()
            SEEN["claimed"] += self.model.inherit(heir if promoted else None, process.name) is not None
            return
        assert run["id"] in self.model.claimable()
        self.model.begin(run, process.name)
        SEEN["claimed"] += 1

    turns_of: ClassVar[dict[str, Any]] = {
        "who": st.integers(0, 1),
        "number": st.integers(0, 3),
        "act": st.sampled_from(ACTS),
        "undo": st.booleans(),
        "stays": st.booleans(),
    }

    @rule(who=st.integers(0, 1), acts=st.lists(st.sampled_from(ACTS), min_size=1, max_size=4), undo=st.booleans())
    def work(self, who: int, acts: list[str], undo: bool) -> None:
        """What a worker does: claim what is due and execute it, turn by turn, as time goes on."""
        for number, act in enumerate(acts):
            self.claim(who, number, True)
            self.turn(who, 0, act, undo, number % 2 == 1)
            self.the_file_is_as_the_model_says()
            if number < len(acts) - 1:
                self.time_passes(25)

    @rule(**turns_of)
    def turn(self, who: int, number: int, act: str, undo: bool, stays: bool) -> None:
        """An owner executes one of its runs until it rests or ends."""
        process = self.processes[who]
        mine = [claim for claim in process.claims.values() if self.model.runs[claim.run_id]["owner"] == process.name]
        if not mine:
            return
        claim = mine[-1 - number % len(mine)]
        run = self.model.runs[claim.run_id]
        if run["status"] in ("pending", "waiting") or run["due"] is not None:
            if run["due"] is None or run["due"] > self.clock.now:
                return  # it stays by it
            assert process.engine.go_on(claim) == self.model.go_on(run)
            if claim.epoch == 0:
                claim = Claim(claim.row_id, claim.run_id, claim.owner_id, 1)
        SCRIPT.act, SCRIPT.undo = act, undo
        flow = self.flows[run["workflow"]].definition
        turn = take_turn(process.engine, claim, flow, stay=stays)
        heir = self.model.turn(run, act, undo=undo, stays=stays)
        SEEN["turns"] += 1
        del process.claims[claim.run_id]
        if isinstance(turn, Ended):
            assert str(turn.status) == run["status"]
            assert (turn.promoted.run_id if turn.promoted else None) == heir
            if turn.promoted is not None:
                process.claims[turn.promoted.run_id] = turn.promoted
        elif stays:
            assert isinstance(turn, Rested)
            process.claims[claim.run_id] = turn.claim
        process.stale.append((claim, process.name))

    @rule(who=st.integers(0, 1), number=st.integers(0, 5), act=st.sampled_from(("complete", "fail", "nap")))
    def late_work(self, who: int, number: int, act: str) -> None:
        """A process that was suspended wakes up late and goes on with a run that is not its own any more."""
        process = self.processes[who]
        known = process.stale + [(claim, process.name) for claim in process.claims.values()]
        stale = [claim for claim, owner in known if self._taken_from(process, claim, owner)]
        if not stale:
            return
        claim = stale[-1 - number % len(stale)]
        SCRIPT.act = act
        flow = next(iter(self.flows.values()))
        assert isinstance(take_turn(process.engine, claim, flow.definition), Gone)
        assert not process.engine.go_on(claim)
        SEEN["late work came to nothing"] += 1

    def _taken_from(self, process: Process, claim: Claim, owner: str) -> bool:
        run = self.model.runs.get(claim.run_id)
        if run is None or run["owner"] != owner:
            return True
        return claim.run_id in process.claims and process.claims[claim.run_id].epoch > claim.epoch

    @rule(who=st.integers(0, 1))
    def crash(self, who: int) -> None:
        """kill -9: its lock is gone, and nothing else happens."""
        process = self.processes[who]
        if process.engine._owner is None:
            return
        self.hands.living.discard(process.engine._owner[1])
        self.model.dead.add(process.name)
        SEEN["crashed"] += any(run["owner"] == process.name for run in self.model.runs.values())
        process.stale += [(claim, process.name) for claim in process.claims.values()]
        process.claims = {}
        process.engine._owner = None
        process.lives += 1

    @rule(who=st.integers(0, 1), kind=st.sampled_from(("worker", "run")))
    def become(self, who: int, kind: str) -> None:
        """A worker is there, or stops being one: whoever promotes a run leaves it to a live worker."""
        process = self.processes[who]
        process.engine.become(kind)
        self._alive(process)
        if kind == "worker":
            self.model.workers.add(process.name)
        else:
            self.model.workers.discard(process.name)

    def _alive(self, process: Process) -> None:
        """The process is an owner from now on, and known by its name."""
        self.owners[process.engine.write_as_owner(lambda tx, owner_id: owner_id)] = process.name

    @rule(who=st.integers(0, 1))
    def sweep(self, who: int) -> None:
        """What a worker does before it claims: orphans, then runs whose time is over."""
        runs = self.model.runs.values()
        orphans = [run for run in runs if run["owner"] in self.model.dead]
        overdue = [run for run in runs if run["owner"] is None and run["status"] != "compensating"]
        overdue = [run for run in overdue if run["deadline"] is not None and run["deadline"] <= self.clock.now]
        for run in orphans:
            self.model._reap(run)
        for run in sorted(overdue, key=lambda run: run["deadline"]):
            self.model._overdue(run)
        Worker(self.processes[who].engine, concurrency=0).sweep()

    @rule(seconds=st.sampled_from((1, 10, 15, 25, 31, 61, 100)))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds * 1000)
        self.model.now = self.clock.now

    @precondition(lambda self: len(self.model.runs) > 3)
    @rule()
    def weeks_pass(self) -> None:
        self.time_passes(8 * 86_400)

    # -- what people do ----------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1), number=st.integers(0, 5))
    def cancel(self, who: int, number: int) -> None:
        run = self._some(number)
        if run is None:
            return
        answer = self.processes[who].durable.cancel(run["id"])
        assert bool(answer.cancelled) == self.model.cancel(run)
        assert answer.status == run["status"]

    @rule(who=st.integers(0, 1), number=st.integers(0, 1), key=st.sampled_from(KEYS))
    def cancel_by_key(self, who: int, number: int, key: str) -> None:
        name = self._name(number)
        of_key = self.model._of(name, key)
        run = self.model.holder(name, key) or (of_key[-1] if of_key else None)
        answer = self.processes[who].durable.cancel(key=key, workflow=name)
        assert answer.run_id == (run and run["id"])
        assert bool(answer.cancelled) == (run is not None and self.model.cancel(run))

    @rule(who=st.integers(0, 1), number=st.integers(0, 5), ended=st.sampled_from((True, True, True, False)))
    def retry(self, who: int, number: int, ended: bool) -> None:
        run = self._some(number, lambda run: not ended or run["status"] in ("failed", "cancelled"))
        if run is None:
            return
        wanted = self.model.retry(run)
        try:
            assert self.processes[who].durable.retry(run["id"]).id == run["id"]
            got = "ok"
        except NotRetryable:
            got = "status"
        except KeyTaken as taken:
            got = taken.holder_id
        assert got == wanted

    @rule(who=st.integers(0, 1), number=st.integers(0, 5), ended=st.sampled_from((True, True, True, False)))
    def rerun(self, who: int, number: int, ended: bool) -> None:
        run = self._some(number, lambda run: not ended or not unfinished(run))
        if run is None:
            return
        wanted = self.model.rerun(self.ids.coming(), run)
        try:
            answer = self.processes[who].durable.rerun(run["id"])
            got = str(answer.outcome), answer.run_id
        except NotFinished:
            assert wanted[0] == "unfinished"
            return
        except KeyTaken as taken:
            got = "taken", taken.holder_id
        self._answered(got, wanted)

    @rule(who=st.integers(0, 1), number=st.integers(0, 5), ended=st.sampled_from((True, True, True, False)))
    def release(self, who: int, number: int, ended: bool) -> None:
        run = self._some(number, lambda run: not ended or (run["holds"] and not unfinished(run)))
        if run is None:
            return
        wanted = self.model.release(run)
        try:
            self.processes[who].durable.release_key(run["id"], by="me")
            got = "ok"
        except NotFinished:
            got = "unfinished"
        except NoKey:
            got = "no key"
        assert got == wanted

    @rule(who=st.integers(0, 1), number=st.integers(0, 5))
    def send_event(self, who: int, number: int) -> None:
        run = self._some(number)
        if run is None:
            return
        sent = self.model.send_event(run)
        try:
            self.processes[who].durable.send_event(run["id"], "poke", 1)
            assert sent
        except AlreadyFinished:
            assert not sent

    @rule(who=st.integers(0, 1), seconds=st.sampled_from((10, 50, 50, 86_400)))
    def prune(self, who: int, seconds: int) -> None:
        durable = self.processes[who].durable
        duplicates = sum(row["kind"] == "key_duplicate" for row in self.model.told)
        would = durable.prune(older_than=seconds, dry_run=True)
        done = durable.prune(older_than=seconds)
        wanted = self.model.prune(seconds * 1000)
        for report in (would, done):
            assert (report.runs, report.keys_freed, report.never_keys_freed) == wanted
        self.pruned += duplicates - sum(row["kind"] == "key_duplicate" for row in self.model.told)
        for process in self.processes:
            process.claims = {run: claim for run, claim in process.claims.items() if run in self.model.runs}
