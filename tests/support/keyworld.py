"""What the machine of `keymachine` stands on: workflows that do as they are told, processes whose lives are in our
hands, and the comparison of the whole file with the model.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyruns
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from keymodel import Model
from keyruns import unfinished

from durable_cli import Context, Debounce, Durable, Retry, definition, foreground, workflow
from durable_cli.core import lifecycle
from durable_cli.foreground import Execution
from durable_cli.model import Claim
from durable_cli.testing import Clock

SEEN: Counter[str] = Counter()
"""What has happened over all examples: rules, and the model's branches."""
_MEMORY = Path("/dev/shm")
KEYS = ("a", "a", "a", "b")
ACTS = ("complete", "complete", "fail", "fail", "nap", "event", "undoable", "undoable")
POLICIES = ("use_existing", "error", "cancel_existing", "run_again", "send_event:poke")
RULES: dict[str, dict[str, Any]] = {
    "plain": {"reuse": "after_close", "period": None, "cap": None, "timeout": None, "merge": False},
    "proud": {"reuse": "after_failure", "period": None, "cap": None, "timeout": 60_000, "merge": True},
    "once": {"reuse": "never", "period": None, "cap": None, "timeout": 60_000, "merge": False},
    "burst": {"reuse": "after_close", "period": 30_000, "cap": 70_000, "timeout": 60_000, "merge": False},
    "endless": {"reuse": "after_failure", "period": 30_000, "cap": None, "timeout": None, "merge": True},
}


class Boom(Exception):
    """What a step raises that is told to fail."""


class Script:
    """What the steps of the turn that is under way do."""

    act = "nap"
    undo = True

    def next(self) -> str:
        """The next act, once; after it the function takes a nap."""
        act, self.act = self.act, "nap"
        if act == "fail":
            raise Boom
        return act

    def undone(self, _: object) -> None:
        if not self.undo:
            raise Boom


SCRIPT = Script()


def body(ctx: Context, value: int) -> int:
    """Does what the script says, as long as it says something."""
    reserved = False
    while True:
        act = ctx.run("act", SCRIPT.next)
        if act == "undoable" and not reserved:
            reserved = True
            again = Retry(max_attempts=2, base=keyruns.UNDO_AGAIN_MS / 1000, jitter=0)
            ctx.run("reserve", int, compensate=SCRIPT.undone, compensate_retry=again)
        elif act == "event":
            ctx.wait_for_event("poke")
        elif act == "complete":
            return value
        else:
            ctx.sleep("nap", keyruns.NAP_MS / 1000)


def define(name: str) -> Any:
    """The workflow of one line of RULES."""
    rules = RULES[name]
    wait = rules["period"]
    debounce = None if wait is None else Debounce(wait / 1000, None if rules["cap"] is None else rules["cap"] / 1000)

    @workflow(
        name=name,
        reuse=rules["reuse"],
        debounce=debounce,
        timeout=None if rules["timeout"] is None else rules["timeout"] / 1000,
        merge=(lambda old, new: old + 1000 + new) if rules["merge"] else None,
    )
    def flow(ctx: Context, value: int) -> int:
        return body(ctx, value)

    return flow


class Hands:
    """Liveness told by hand, for all processes of an example."""

    def __init__(self) -> None:
        self.living: set[int] = set()

    def hold(self, owner_id: int) -> None:
        self.living.add(owner_id)

    def release(self, owner_id: int) -> None:
        self.living.discard(owner_id)

    def alive(self, owner_id: int) -> bool:
        return owner_id in self.living

    def pid(self, owner_id: int) -> int | None:
        return 1 if owner_id in self.living else None

    def reassert(self) -> list[int]:
        return []


class Ids:
    """Ids in their order, and which one comes next."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return self.coming(0)

    def coming(self, ahead: int = 1) -> str:
        return f"r{self.count + ahead:09d}"


class Process:
    """One of the processes: its library, its claims, and which incarnation it is."""

    def __init__(self, number: int, path: Path, clock: Clock, hands: Hands, ids: Ids) -> None:
        self.number = number
        self.lives = 0
        self.durable = Durable(path, clock=clock, liveness=hands, ids=ids, sleep=clock.sleep)
        self.claims: dict[str, Claim] = {}
        self.stale: list[tuple[Claim, str]] = []

    @property
    def engine(self) -> Any:
        return self.durable._engine

    @property
    def name(self) -> str:
        return f"{self.number}.{self.lives}"


@contextlib.contextmanager
def claims_kept(process: Process) -> Iterator[None]:
    """What `durable run` would execute now is only claimed: the machine executes it, when it likes."""

    def keep(engine: Any, _: Any, taken: Any, named: str, watch: Any, *, result: Any = None) -> Execution:
        if taken.claim is not None:
            process.claims[taken.claim.run_id] = taken.claim
        return Execution(result, process.durable.run(named), executed=True)

    real = foreground._execute_taken
    foreground._execute_taken = keep
    try:
        yield
    finally:
        foreground._execute_taken = real


class World(RuleBasedStateMachine):
    """A file, two processes, and the model beside them. After each rule the two are compared."""

    def __init__(self) -> None:
        super().__init__()
        SEEN["examples"] += 1
        self.folder = tempfile.mkdtemp(prefix="keys-", dir=_MEMORY if _MEMORY.is_dir() else None)
        self.clock, self.ids, hands = Clock(), Ids(), Hands()
        self.hands = hands
        self._crashes, lifecycle.MAX_CRASHES = lifecycle.MAX_CRASHES, keyruns.MAX_CRASHES  # type: ignore[misc]
        self.flows = {name: define(name) for name in RULES}
        path = Path(self.folder) / "durable.db"
        self.processes = [Process(number, path, self.clock, hands, self.ids) for number in range(2)]
        self.model = Model(RULES, self.clock.now)
        self.owners: dict[int, str] = {}
        self.heard: list[str] = []
        for process in self.processes:
            process.durable.on("key.duplicate", lambda event, fields: self.heard.append(fields["outcome"]))
        self.starts = self.created = self.pruned = 0

    def teardown(self) -> None:
        SEEN.update(self.model.seen)
        lifecycle.MAX_CRASHES = self._crashes  # type: ignore[misc]
        try:
            assert self.processes[0].durable.check() == []
        finally:
            for process in self.processes:
                process.engine.database.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            for name in RULES:
                definition.forget(name)

    # -- what has to be true after each rule -------------------------------------------------------------------------

    @invariant()
    def the_file_is_as_the_model_says(self) -> None:
        SEEN["rules"] += 1
        if not self.processes[0].durable.path.exists():
            return
        durable = self.processes[0].durable
        runs = list(reversed(durable.runs()))
        self._promises(runs)
        for run in runs:
            wanted = self.model.runs.get(run.id)
            assert wanted is not None, f"run {run.id} should not be there"
            got = {
                "key": run.key,
                "holds": run.holds_key,
                "behind": run.runs_after_id,
                "status": str(run.status),
                "input": int(run.input),
                "due": run.due_at,
                "deadline": run.deadline_at,
                "owner": None if run.owner is None else self.owners[run.owner.id],
                "begun": run.epoch > 0,
                "crashes": run.crashes if unfinished(wanted) else wanted["crashes"],
            }
            assert got == {name: wanted[name] for name in got}, f"run {run.id}"
        assert [run.id for run in runs] == list(self.model.runs)
        told = [
            {"at": row.at, "kind": row.kind, "workflow": row.workflow, "key": row.key, "run": row.run_id}
            | {"details": row.details}
            for row in reversed(durable.activity())
        ]
        assert told == self.model.told
        duplicates = sum(row["kind"] == "key_duplicate" for row in told) + self.pruned
        assert len(self.heard) == duplicates, "every row was told to the listeners"
        assert self.starts == self.created + duplicates, "each start is a created run or a duplicate that is told"

    def _promises(self, runs: list[Any]) -> None:
        """SPEC 3, of the file alone."""
        held, behind = set(), set()
        by_id = {run.id: run for run in runs}
        for run in runs:
            place = run.workflow, run.key
            if run.holds_key:
                assert place not in held, f"two runs hold {place}"
                held.add(place)
            if run.runs_after_id is not None:
                assert place not in behind, f"two runs wait for {place}"
                behind.add(place)
                ahead = by_id[run.runs_after_id]
                assert ahead.holds_key, f"run {run.id} waits behind one without the key"
                assert not ahead.finished, f"run {run.id} waits behind one that is over"
                assert (ahead.workflow, ahead.key) == place
            if run.key is not None and not run.finished:
                assert run.holds_key != (run.runs_after_id is not None), f"run {run.id} neither holds nor waits"
            if run.error is not None and run.error.type == "Replaced":
                wanted = self.model.runs[run.id]["error"]
                assert str(wanted) in run.error.message, "the replaced run names its replacer"

    @rule()
    def look_at_the_stats(self) -> None:
        durable = self.processes[0].durable
        if not durable.path.exists():
            return
        stats = durable.stats()
        counts = Counter(run["status"] for run in self.model.runs.values())
        assert {status: n for status, n in stats.runs.items() if n} == dict(counts)
        assert stats.held == sum(run["holds"] for run in self.model.runs.values())
        told = [row["details"] for row in self.model.told if row["kind"] == "key_duplicate"]
        assert {name: n for name, n in stats.readds.items() if n} == dict(Counter(row["outcome"] for row in told))
        dropped = [row for row in told if row["outcome"] in ("use_existing", "error") and row["input_changed"]]
        assert stats.dropped_inputs == len(dropped)
        assert stats.handoffs == sum(row["kind"] == "key_handed_off" for row in self.model.told)
