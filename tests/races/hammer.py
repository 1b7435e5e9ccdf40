"""Eight processes and one key, in all modes at once; bursts that are collapsed; events against the end of a run.

    python tests/races/hammer.py --seconds 60
    python tests/races/hammer.py --burst
    python tests/races/hammer.py --events 500

Each prints one line, `N replies, M violations`; the exit code is 1 if there was any.

The first: everything that may be done to a key is done to one key. A reply is a run that can be read or a named
refusal; an error of the file, of a constraint, of a lock is a violation. The invariants of the file are looked at
every second, and in the end the replies are added up against the runs and the activity.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from durable_cli import Context, Debounce, Durable, KeyTaken, Status, workflow
from durable_cli.errors import AlreadyFinished, NoKey, NotFinished, NotResumable, NotRetryable, RunNotFound

PROCESSES = 8
POLICIES = ("use_existing", "error", "cancel_existing", "run_again", "send_event:poke")
_REFUSED = (NoKey, NotFinished, NotResumable, NotRetryable, AlreadyFinished, RunNotFound)


def pause(ms: int) -> int:
    time.sleep(ms / 1000)
    if ms == 3:
        raise RuntimeError("by chance")
    return ms


@workflow
def hammered(ctx: Context, n: int) -> int:
    """A step or two, and sometimes a rest."""
    ctx.run("first", pause, n % 4)
    if n % 5 == 0:
        ctx.sleep("rest", 0.005)
    return ctx.run("second", pause, n % 3)


@workflow(debounce=Debounce("1s"))
def burst(ctx: Context, n: int) -> int:
    """Collapsed starts."""
    return ctx.run("n", int, n)


@workflow
def freed(ctx: Context, n: int) -> int:
    """As `kept`, but its key is free when it has ended."""
    ctx.run("go", _go, n)
    return n


@workflow(reuse="after_failure")
def kept(ctx: Context, n: int) -> int:
    """Ends at the moment that its step tells another process to send it an event."""
    ctx.run("go", _go, n)
    return n


class Family:
    """Forked processes, each with a file for what it has to say at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: list[int] = []

    def fork(self, life: Callable[[int, Counter[str]], None]) -> None:
        number = len(self.pids)
        pid = os.fork()
        if pid:
            self.pids.append(pid)
            return
        said: Counter[str] = Counter()
        try:
            random.seed(f"{os.getpid()}")
            life(number, said)
        except BaseException:
            said[f"bad: {traceback.format_exc(limit=-4)}"] += 1
        (self.folder / f"said-{number}").write_text(json.dumps(said))
        os._exit(0)

    def over(self) -> bool:
        """Are all of them over?"""
        for pid in list(self.pids):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.pids.remove(pid)
        return not self.pids

    def said(self) -> Counter[str]:
        """What all of them said."""
        total: Counter[str] = Counter()
        for file in self.folder.glob("said-*"):
            total.update(json.loads(file.read_text()))
        return total


# -- everything at once --------------------------------------------------------------------------------------------


class Hammer:
    """One process: does random things to the key, and counts the replies."""

    def __init__(self, db: Path, said: Counter[str]) -> None:
        self.it = Durable(db)
        self.said = said

    def strike(self) -> None:
        acts = (self._start, self._execute, self._cancel, self._retry, self._rerun, self._release, self._event)
        act = random.choices(acts, (12, 12, 1, 2, 2, 1, 1))[0]
        try:
            act()
        except KeyTaken as taken:
            self.said["refused retry" if act == self._retry else "taken"] += 1
            self.it.run(taken.holder_id)  # RunNotFound is a violation: nothing is pruned here
        except _REFUSED as refused:
            self.said[f"refused {type(refused).__name__}"] += 1

    def _started(self, answer: Any) -> None:
        self.said[str(answer.outcome)] += 1
        self.it.run(answer.run_id)

    def _start(self) -> None:
        self._started(self.it.start(hammered, random.randrange(20), key="k", on_duplicate=random.choice(POLICIES)))

    def _execute(self) -> None:
        policy = random.choice(POLICIES)
        done = self.it.execute(hammered, random.randrange(20), key="k", on_duplicate=policy, max_wait=0.02)
        self._started(done.start)

    def _some(self) -> str:
        return random.choice(self.it.runs(key="k", limit=6) or self.it.runs()).id

    def _cancel(self) -> None:
        self.it.cancel(key="k")
        self.said["other"] += 1

    def _retry(self) -> None:
        self.it.retry(self._some())
        self.said["other"] += 1

    def _rerun(self) -> None:
        self._started(self.it.rerun(self._some()))

    def _release(self) -> None:
        self.it.release_key(self._some(), by="hammer")
        self.said["other"] += 1

    def _event(self) -> None:
        self.it.send_event(self._some(), "poke", 1)
        self.said["other"] += 1


def hammer(folder: Path, seconds: float) -> tuple[int, list[str]]:
    """Replies, and what is wrong."""
    db, family, wrong = folder / "durable.db", Family(folder), []
    until = time.monotonic() + seconds

    def life(_: int, said: Counter[str]) -> None:
        one = Hammer(db, said)
        one.it.start(hammered, 1, key="before")
        while time.monotonic() < until:
            one.strike()

    for _ in range(PROCESSES):
        family.fork(life)
    looks, next_look = 0, time.monotonic() + 1
    with Durable(db) as it:
        while not family.over():
            time.sleep(0.02)
            if time.monotonic() >= next_look:
                wrong += it.check()
                looks, next_look = looks + 1, time.monotonic() + 1
        wrong += it.check()
        said = family.said()
        wrong += [what for what in said if what.startswith("bad")]
        runs = it.runs(key="k")
        told = [row.details for row in it.activity(key="k", kinds=["key_duplicate"])]
    made = said["created"] + said["replaced"] + said["queued"]
    starts = made + said["existing"] + said["merged"] + said["event_sent"] + said["resumed"] + said["taken"]
    if len(runs) != made:
        wrong.append(f"{len(runs)} runs, but {made} starts were told that they made one")
    if len(told) != starts - said["created"]:
        wrong.append(f"{len(told)} duplicates in the activity, {starts} starts, {said['created']} created")
    if looks < seconds / 2:
        wrong.append(f"looked only {looks} times")
    wrong += [f"never: {one}" for one in ("created", "existing", "replaced", "taken", "event_sent") if not said[one]]
    return sum(said.values()), wrong


# -- bursts --------------------------------------------------------------------------------------------------------


def collapse(folder: Path, each: int = 25) -> tuple[int, list[str]]:
    """F02: eight processes start numbered inputs; one run, with the input of the last commit, and a reader sees input
    and due time change together."""
    db, family, wrong = folder / "durable.db", Family(folder), []

    def life(number: int, said: Counter[str]) -> None:
        with Durable(db) as it:
            for n in range(each):
                answer = it.start(burst, number * 1000 + n, key="k")
                said[f"{answer.outcome} {answer.run_id}"] += 1

    for _ in range(PROCESSES):
        family.fork(life)
    due: dict[str, int | None] = {}
    with Durable(db) as it:
        while not family.over():
            for run in it.runs(key="k"):
                if due.setdefault(run.input, run.due_at) != run.due_at:
                    wrong.append(f"input {run.input} was due at {due[run.input]}, then at {run.due_at}")
        said = family.said()
        wrong += [what for what in said if what.startswith("bad")]
        runs = it.runs(key="k")
        superseded = [row.details.get("input") for row in it.activity(key="k", kinds=["key_duplicate"])]
        inputs = {number * 1000 + n for number in range(PROCESSES) for n in range(each)}
        last = inputs - set(superseded)  # every other one was there, and replaced
        if len(runs) != 1 or len({what.split()[1] for what in said if not what.startswith("bad")}) != 1:
            wrong.append(f"{len(runs)} runs instead of one")
        elif len(last) != 1 or {int(runs[0].input)} != last or len(superseded) != len(inputs) - 1:
            wrong.append(f"the run has input {runs[0].input}; never replaced: {sorted(last)}")
        else:
            while (run := it.run(runs[0].id)).due_at is not None and run.due_at > time.time() * 1000:
                time.sleep(0.02)
            done = it.resume(run.id, definition=burst.definition)
            if done.run.status is not Status.COMPLETED or {int(done.run.result or -1)} != last:
                wrong.append(f"executed {done.run.result}, not {last}")
        wrong += it.check()
    return sum(said.values()), wrong


# -- an event against the end --------------------------------------------------------------------------------------

_pipes: dict[str, int] = {}


def _go(n: int) -> int:
    os.write(_pipes["go"], b"!")
    time.sleep(random.random() * 0.004)
    return n


def _flow(number: int) -> Any:
    return freed if number % 2 else kept


def events(folder: Path, rounds: int) -> tuple[int, list[str]]:
    """E03: each start ends as an event kept for a run that was unfinished at the commit, or as a new run, or as
    KeyTaken; never as "sent" to a run that was over."""
    db, family, wrong = folder / "durable.db", Family(folder), []
    listen, _pipes["go"] = os.pipe()
    hear, answer = os.pipe()
    outcomes: Counter[str] = Counter()

    def life(_: int, said: Counter[str]) -> None:
        with Durable(db) as it:
            for number in range(rounds):
                os.read(listen, 1)
                time.sleep(random.random() * 0.008)
                try:
                    done = it.start(_flow(number), 10_000 + number, key=f"k{number}", on_duplicate="send_event:poke")
                    told = [str(done.outcome), done.run_id, str(done.holder_status)]
                except KeyTaken as taken:
                    told = ["taken", taken.holder_id, taken.holder_status]
                os.write(answer, (json.dumps(told) + "\n").encode())

    family.fork(life)
    replies = os.fdopen(hear)
    with Durable(db) as it:
        for number in range(rounds):
            done = it.execute(_flow(number), number, key=f"k{number}")
            outcome, run_id, status = json.loads(replies.readline())
            outcomes[outcome] += 1
            kept_events = it._engine.database.read(
                lambda tx, row=done.run.row_id: tx.value(  # type: ignore[misc]
                    "SELECT count(*) FROM durable_events WHERE run_id = :row AND payload = :n",
                    row=row,
                    n=str(10_000 + number),
                )
            )
            of_key = it.runs(key=f"k{number}")
            if outcome == "event_sent":
                right = (run_id, status, kept_events, len(of_key)) == (done.run.id, "running", 1, 1)
            elif outcome == "created":
                last = (of_key[0].id, of_key[0].input) if of_key else None
                right = (number % 2, last, kept_events, len(of_key)) == (1, (run_id, str(10_000 + number)), 0, 2)
            else:
                right = (outcome, run_id, status, kept_events, len(of_key)) == ("taken", done.run.id, "completed", 0, 1)
            if not right:
                wrong.append(f"round {number}: {outcome} {run_id} {status}, {kept_events} events, {len(of_key)} runs")
        wrong += it.check()
    while not family.over():
        time.sleep(0.01)
    wrong += [what for what in family.said() if what.startswith("bad")]
    wrong += [f"never: {one}" for one in ("event_sent", "taken", "created") if not outcomes[one]]
    if sum(outcomes.values()) != rounds:
        wrong.append(f"{sum(outcomes.values())} answers in {rounds} rounds")
    return rounds, wrong


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="eight processes and one key")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--burst", action="store_true")
    parser.add_argument("--events", type=int, default=0, metavar="ROUNDS")
    options = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="durable-hammer-") as folder:
        if options.burst:
            replies, wrong = collapse(Path(folder))
        elif options.events:
            replies, wrong = events(Path(folder), options.events)
        else:
            replies, wrong = hammer(Path(folder), options.seconds)
    for what in wrong[:20]:
        print(what, file=sys.stderr)
    print(f"{replies} replies, {len(wrong)} violations ({time.monotonic() - began:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
