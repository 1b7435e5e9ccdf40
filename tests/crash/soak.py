"""kill -9 at random moments: executors and producers on a few keys, and a supervisor that kills and stops them.

    python tests/crash/soak.py --kills 10000          (about 3 minutes on 2 cores)
    python tests/crash/soak.py --kills 0 --seconds 30 --keys 1

Every process writes down what it was told and what it did, in one file, line by line with O_APPEND, and checks each
answer at once: it is a run that can be read, or a named refusal with a holder that can be read. Afterwards the file is
held against the database. Prints one line, `N checks, M violations`; the exit code is 1 if there was any.

Keys come in three kinds, so that the checks can be exact. `p`: nobody cancels, so the executions of two of its runs
never mix. `c`: everything is done to it. `r`: failed runs are retried, none is cancelled.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from durable_cli import Context, Durable, DurableError, KeyContended, KeyTaken, Run, StartResult, Status, workflow
from durable_cli.errors import NoKey, NotFinished, NotResumable, NotRetryable
from durable_cli.execution import Progress

_POLICIES = {
    "p": ("use_existing", "use_existing", "error", "run_again"),
    "c": ("use_existing", "error", "run_again", "cancel_existing", "cancel_existing"),
    "r": ("use_existing", "error"),
}
_REFUSALS = (KeyTaken, KeyContended, NotResumable, NotRetryable, NotFinished, NoKey)
_MEAN_S = 0.012  # between two kills


class Book:
    """What happened, a line each: `exec` RUN STEP TOKEN KEY, `raise` and `recorded` RUN STEP, `ack` RUN, `end` RUN
    STATUS, `bad` WHAT."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *words: object) -> None:
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


_book: Book
_count = 0


def body(ctx: Context, step: int) -> str:
    """A step: leave a trace, take a moment, fail now and then."""
    global _count
    _count += 1
    token = f"{os.getpid()}-{_count}"
    _book.note("exec", ctx.run_id, step, token, ctx.key or "-")
    if random.random() < 0.3:
        time.sleep(random.random() * 0.002)
    if random.random() < 0.04:
        _book.note("raise", ctx.run_id, step, token)
        raise RuntimeError("by chance")
    return token


@workflow
def soaked(ctx: Context, plan: dict[str, int]) -> list[str]:
    """One to four steps."""
    return [ctx.run(f"s{step}", body, ctx, step) for step in range(plan["steps"])]


# -- the processes -------------------------------------------------------------------------------------------------


class Actor:
    """One process: does random things and checks every answer."""

    def __init__(self, db: Path, keys: list[str]) -> None:
        self.it = Durable(db)
        self.keys = keys

    def executor(self) -> None:
        while True:
            self._answered(random.choices([self._execute, self._resume], [9, 1])[0])

    def producer(self) -> None:
        acts = [self._start, self._cancel, self._retry, self._rerun, self._release]
        while True:
            self._answered(random.choices(acts, [10, 1, 3, 1, 1])[0])
            time.sleep(random.random() * 0.01)

    def _answered(self, act: Callable[[], None]) -> None:
        try:
            act()
        except _REFUSALS as refusal:
            if isinstance(refusal, KeyTaken):
                self.it.run(refusal.holder_id)  # RunNotFound is a violation
            elif not refusal.message:
                _book.note("bad", f"a refusal without a word: {refusal!r}")

    def _key(self, kinds: str) -> str | None:
        fitting = [key for key in self.keys if key[0] in kinds]
        return random.choice(fitting) if fitting else None

    def _plan(self) -> dict[str, int]:
        return {"steps": random.randrange(1, 5), "n": random.randrange(10)}

    def _started(self, result: StartResult | None) -> None:
        if result is None:
            _book.note("bad", "a start without an answer")
            return
        self.it.run(result.run_id)
        _book.note("ack", result.run_id)

    def _execute(self) -> None:
        key = None if random.random() < 0.03 else self._key("pcr")
        policy = random.choice(_POLICIES[key[0]]) if key else None
        execution = self.it.execute(
            soaked, self._plan(), key=key, on_duplicate=policy, progress=self._watch, max_wait=0
        )
        self._started(execution.start)
        self._ended(execution.run)

    def _watch(self, progress: Progress) -> None:
        if progress.kind == "step_completed":
            _book.note("recorded", progress.run_id, progress.step[1:])

    def _ended(self, run: Run) -> None:
        if run.finished:
            _book.note("end", run.id, run.status)

    def _resume(self) -> None:
        unfinished = self.it.runs(unfinished=True)
        if unfinished:
            definition = soaked.definition
            self._ended(self.it.resume(random.choice(unfinished).id, definition=definition, progress=self._watch).run)

    def _start(self) -> None:
        key = self._key("pcr")
        assert key is not None
        self._started(self.it.start(soaked, self._plan(), key=key, on_duplicate=random.choice(_POLICIES[key[0]])))

    def _cancel(self) -> None:
        if key := self._key("c"):
            answer = self.it.cancel(key=key)
            if answer.cancelled and answer.run_id:
                _book.note("end", answer.run_id, Status.CANCELLED)

    def _retry(self) -> None:
        failed = [run for run in self.it.runs(status=["failed"]) if (run.key or "-")[0] == "r"]
        if failed:
            _book.note("ack", self.it.retry(random.choice(failed).id).id)

    def _some(self, kinds: str) -> Run | None:
        key = self._key(kinds)
        found = self.it.runs(key=key) if key else []
        return random.choice(found[:5]) if found else None

    def _rerun(self) -> None:
        if run := self._some("c"):
            self._started(self.it.rerun(run.id))

    def _release(self) -> None:
        if run := self._some("c"):
            self.it.release_key(run.id)


def drain(db: Path) -> None:
    """Execute whatever is unfinished, in order: what a crash left must not need anything else."""
    with Durable(db) as it:
        for _ in range(1000):
            unfinished = [run for run in it.runs(unfinished=True) if run.runs_after_id is None]
            for run in unfinished:
                it.resume(run.id, definition=soaked.definition)
            if not unfinished:
                return


# -- the supervisor ------------------------------------------------------------------------------------------------


@dataclass
class Soak:
    """One soak in a folder."""

    folder: Path
    kills: int
    seconds: float
    keys: list[str]
    executors: int
    producers: int
    seed: int
    _processes: dict[int, str] = field(default_factory=dict)
    _spawned: int = 0

    @property
    def db(self) -> Path:
        return self.folder / "durable.db"

    @property
    def book(self) -> Path:
        return self.folder / "book"

    def run(self) -> tuple[int, list[str]]:
        """The number of checks, and what is wrong."""
        for role in ["executor"] * self.executors + ["producer"] * self.producers:
            self._spawn(role)
        done = self._storm() if self.kills else self._quiet()
        for pid in list(self._processes):
            self._kill(pid)
        self._spawn("drain")
        _, status = os.waitpid(next(iter(self._processes)), 0)
        checks, wrong = Audit(self.db, self.book, done).all()
        return checks + 1, wrong + (["the drain failed"] if status else [])

    def _storm(self) -> int:
        dice, stopped = random.Random(self.seed), 0
        for _ in range(self.kills):
            time.sleep(dice.expovariate(1 / _MEAN_S))
            if stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGCONT)
                stopped = 0
            victim = dice.choice(sorted(self._processes))
            self._spawn(self._kill(victim))
            if dice.random() < 0.1:
                stopped = dice.choice(sorted(self._processes))
                os.kill(stopped, signal.SIGSTOP)
        return self.kills

    def _quiet(self) -> int:
        time.sleep(self.seconds)
        return len(self._processes)  # all of them are killed at the end

    def _kill(self, pid: int) -> str:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            Book(self.book).note("bad", f"a process ended by itself ({os.waitstatus_to_exitcode(status)})")
        return self._processes.pop(pid)

    def _spawn(self, role: str) -> None:
        self._spawned += 1
        pid = os.fork()
        if pid == 0:
            self._live(role)
        self._processes[pid] = role

    def _live(self, role: str) -> NoReturn:
        global _book
        random.seed(f"{self.seed}-{self._spawned}")
        _book, code = Book(self.book), 0
        try:
            if role == "drain":
                drain(self.db)
            else:
                getattr(Actor(self.db, self.keys), role)()
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            name = error.code() if isinstance(error, DurableError) else type(error).__name__
            _book.note("bad", f"{role}: {name} at {where.name}:{where.lineno}: {error}".replace("\n", " "))
            code = 1
        os._exit(code)


# -- the audit -----------------------------------------------------------------------------------------------------


class Audit:
    """Holds the book against the database."""

    def __init__(self, db: Path, book: Path, kills: int) -> None:
        self.kills = kills
        self.checks = 0
        self.wrong: list[str] = []
        self.lines = [line.split() for line in book.read_text().splitlines()]
        with Durable(db, create=False) as it:
            self.broken = it.check()
            self.runs = {run.id: it.run(run.id) for run in it.runs()}
            self.free = [it.start(soaked, {"steps": 1}, key=key.key).run_id for key in it.keys() if key.status]  # noqa: SIM118
        self.steps = {
            (run.id, step.name[1:]): (step.result or "").strip('"')
            for run in self.runs.values()
            for step in run.steps or ()
            if step.status == "completed"
        }
        self.executions: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for line in self.of("exec"):
            self.executions[line[1], line[2]].append(line[3])

    def of(self, kind: str) -> list[list[str]]:
        return [line for line in self.lines if line[0] == kind]

    def expect(self, fact: bool, what: str) -> None:
        self.checks += 1
        if not fact:
            self.wrong.append(what)

    def all(self) -> tuple[int, list[str]]:
        self.wrong += [f"the database: {what}" for what in self.broken]
        self.wrong += [" ".join(line) for line in self.of("bad")]
        self._acknowledged()
        self._executions()
        self._order_of_keys()
        self._ends()
        # "Sometimes": a soak in which nothing happened proves nothing.
        self.expect(len(self.steps) > 10, f"only {len(self.steps)} steps were recorded")
        self.expect(bool(self.of("ack")), "no start was acknowledged")
        return self.checks, self.wrong

    def _acknowledged(self) -> None:
        for line in self.of("ack"):
            self.expect(line[1] in self.runs, f"lost: the acknowledged start of run {line[1]}")
        for line in self.of("recorded"):
            self.expect((line[1], line[2]) in self.steps, f"lost: the acknowledged step {line[2]} of run {line[1]}")
        for line in self.of("end"):
            run = self.runs.get(line[1])
            # A failed run of an `r` key may have been retried since.
            retried = run is not None and run.key is not None and run.key[0] == "r" and line[2] == "failed"
            self.expect(
                run is not None and (retried or run.status == line[2]), f"run {line[1]} is not {line[2]} any more"
            )

    def _executions(self) -> None:
        for place, token in self.steps.items():
            last = self.executions[place][-1:] or ["none"]
            # The one that was recorded is the last one: none came after its record, not even unacknowledged.
            self.expect(last == [token], f"step {place} was executed after its record ({token}, then {last[0]})")
        again = sum(len(tokens) - 1 for tokens in self.executions.values())
        allowed = self.kills + len(self.of("raise"))
        self.expect(again <= allowed, f"{again} executions again, although only {allowed} had been cut off or failed")
        self.again = again

    def _order_of_keys(self) -> None:
        """On a key that nobody cancels, a run's executions are over when the next run's begin."""
        at: dict[str, str] = {}
        over: set[str] = set()
        for line in self.of("exec"):
            run, key = line[1], line[4]
            if key[0] != "p":
                continue
            self.expect(run not in over, f"run {run} of key {key} executed after its successor had begun")
            if at.get(key, run) != run:
                over.add(at[key])
            at[key] = run

    def _ends(self) -> None:
        for run in self.runs.values():
            self.expect(run.finished, f"run {run.id} is stuck: {run.status}")
            for step in run.steps or ():
                # Its moment was taken before its transaction, the end's inside the end's.
                late = run.finished_at is not None and (step.finished_at or 0) > run.finished_at
                self.expect(not late, f"step {step.name} of run {run.id} was recorded after the run was {run.status}")
            if run.status is Status.COMPLETED:
                recorded = sum(1 for place in self.steps if place[0] == run.id)
                self.expect(
                    f'"steps":{recorded},' in run.input.replace(" ", ""), f"run {run.id} completed without all steps"
                )
        self.expect(len(set(self.free)) == len(self.free), "two keys were answered with one run")
        for run_id in self.free:
            self.expect(run_id not in self.runs, f"the key of run {run_id} is still taken")


def keys_of(count: int) -> list[str]:
    """So many keys, of all three kinds in turn."""
    return [f"{'pcr'[n % 3]}{n}" for n in range(count)]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="kill -9 soak of durable")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long, with --kills 0")
    parser.add_argument("--keys", type=int, default=9)
    parser.add_argument("--executors", type=int, default=5)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="durable-soak-") as folder:
        soak = Soak(
            Path(folder),
            options.kills,
            options.seconds,
            keys_of(options.keys),
            options.executors,
            options.producers,
            options.seed,
        )
        checks, wrong = soak.run()
        lines = collections.Counter(line.split()[0] for line in soak.book.read_text().splitlines())
    for what in wrong[:20]:
        print(what, file=sys.stderr)
    figures = f"{options.kills} kills, {lines['ack']} answers, {lines['exec']} executions, seed {options.seed}"
    print(f"{checks} checks, {len(wrong)} violations ({figures}, {time.monotonic() - began:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
