"""Real processes for the tests in `crash/` and `races/`: starting them, waiting for them, looking at what they left.

Nothing here sleeps to let something happen: a wait is always for a fact (a file, an exit, a state of a process) and
ends with an error at its deadline. Only `until` pauses between two looks.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import durable_cli
from durable_cli import Durable, Run

T = TypeVar("T")
U = TypeVar("U")
Strike = tuple[int, str, int]  # signal, phase, number of the write: see striker.py

SUPPORT = Path(__file__).resolve().parent
FLOWS = SUPPORT / "flows"
PACKAGE_ROOT = Path(durable_cli.__file__).resolve().parent.parent
EXAMPLES = PACKAGE_ROOT / "examples"
DEADLINE_S = 60.0
"""Long: it is only ever reached by a failure, and the machine may be busy."""
_KILLED = -signal.SIGKILL


def environment(**more: str) -> dict[str, str]:
    """The environment of a child: ours, without a database of the user's, with durable on the path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DURABLE_", "JOBS_"))}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), env.get("PYTHONPATH")]))
    return {**env, **more}


@dataclass(frozen=True)
class Ended:
    """A process that is over. `code` is negative for a signal, as subprocess has it."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        assert self.out.strip(), f"no answer on stdout; exit {self.code}, stderr: {self.err}"
        return json.loads(self.out)

    @property
    def killed(self) -> bool:
        return self.code == _KILLED

    def ok(self) -> Ended:
        """This, if it ended well."""
        assert self.code == 0, f"exit {self.code}\nstdout: {self.out}\nstderr: {self.err}"
        return self


class Child:
    """A running process whose output is kept. Killed at the end of a `with` block if it is still there."""

    def __init__(self, argv: Sequence[str], **env: str) -> None:
        # Files and no pipes: a child that is stopped or killed can never block on us, nor we on it.
        self._out, self._err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err, env=environment(**env)
        )
        self.pid = self.process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()  # also ends a stopped one
            self.process.wait()
        self._out.close()
        self._err.close()

    def over(self) -> bool:
        return self.process.poll() is not None

    def end(self, deadline_s: float = DEADLINE_S) -> Ended:
        """Wait for its end. Fails, with what it said so far, at the deadline."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.process.args} still runs after {deadline_s} s; it said: {self._said()}"
            ) from None
        return Ended(code, *self._said())

    def _said(self) -> tuple[str, str]:
        # pread: the child shares the offset of the file, and may still write.
        return tuple(os.pread(file.fileno(), 1 << 24, 0).decode() for file in (self._out, self._err))  # type: ignore

    def wait_said(self, text: str) -> None:
        """Wait until it has said this on stderr."""
        until(lambda: text in self._said()[1] or self.over(), f"{text!r} on stderr")
        assert text in self._said()[1], f"it ended without a word of it: {self._said()}"

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        self.send(signal.SIGSTOP)
        self.wait_stopped()

    def wait_stopped(self) -> None:
        until(lambda: self.stopped() or self.over(), f"process {self.pid} stopped")
        assert self.stopped(), f"it ended instead: {self.end()}"

    def stopped(self) -> bool:
        return state_of(self.pid) == "T"

    def go_on(self) -> None:
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait until it is dead."""
        self.send(signal.SIGKILL)
        self.process.wait(DEADLINE_S)


def state_of(pid: int) -> str:
    """The letter of a process's state (`T` stopped, `Z` zombie), from ps, which Linux and macOS have."""
    answer = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip()[:1]


def until(fact: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Look until `fact` is true; its value. Fails at the deadline."""
    end = time.monotonic() + deadline_s
    while not (found := fact()):
        assert time.monotonic() < end, f"waited {deadline_s} s in vain for: {what}"
        time.sleep(0.005)
    return found


def durable_argv(db: Path, *args: str, app_dir: Path = FLOWS) -> list[str]:
    """The command line of `durable ARGS` on a database."""
    return [sys.executable, "-m", "durable_cli", "--db", str(db), "--app-dir", str(app_dir), *args]


def durable(db: Path, *args: str, app_dir: Path = FLOWS, **env: str) -> Ended:
    """Run `durable ARGS` to its end."""
    with Child(durable_argv(db, *args, app_dir=app_dir), **env) as child:
        return child.end()


def spawn(db: Path, *args: str, app_dir: Path = FLOWS, **env: str) -> Child:
    """Begin `durable ARGS`."""
    return Child(durable_argv(db, *args, app_dir=app_dir), **env)


def python(*args: str, **env: str) -> Child:
    """Begin a Python script of this folder."""
    return Child([sys.executable, *args], **env)


class Nursling:
    """A process that a nursery forked: as `Child`, in a tenth of the time."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], strikes: Sequence[Strike]) -> None:
        self._nursery = _Nursery.take()
        folder = self._nursery.folder.name
        self._files = (f"{folder}/out", f"{folder}/err")
        order = {"argv": argv, "env": env, "out": self._files[0], "err": self._files[1], "strikes": strikes}
        self._ended: Ended | None = None
        self.pid = self._nursery.order(order)

    def __enter__(self) -> Nursling:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)
            self.end()

    def end(self) -> Ended:
        """Wait for its end."""
        if self._ended is None:
            code = self._nursery.answer(DEADLINE_S)
            self._ended = Ended(code, *(Path(file).read_text() for file in self._files))
            self._nursery.give_back()
        return self._ended

    def wait_stopped(self) -> None:
        until(lambda: state_of(self.pid) in ("T", "Z"), f"process {self.pid} stopped")
        assert state_of(self.pid) == "T", f"it ended instead: {self.end()}"

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class _Nursery:
    """One nursery process (see nursery.py), for one nursling at a time."""

    _free: ClassVar[list[_Nursery]] = []

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="nursery-")
        self._process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

        atexit.register(self.close)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self.folder.cleanup()

    @classmethod
    def take(cls) -> _Nursery:
        try:
            return cls._free.pop()
        except IndexError:
            return cls()

    def give_back(self) -> None:
        self._free.append(self)

    def order(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self.answer(DEADLINE_S)

    def answer(self, deadline_s: float) -> int:
        assert self._process.stdout is not None
        # Unbuffered reads, or a line in the buffer would be invisible to poll.
        line = b""
        while not line.endswith(b"\n"):
            watched = select.poll()  # `select` ends at 1,024 open files
            watched.register(self._process.stdout, select.POLLIN)
            ready = watched.poll(deadline_s * 1000)
            assert ready, f"no answer from the nursery after {deadline_s} s"
            byte = os.read(self._process.stdout.fileno(), 1)
            assert byte, "the nursery died"
            line += byte
        return int(line)


def nursling(db: Path, *args: str, strikes: Sequence[Strike] = (), **env: str) -> Nursling:
    """Begin `durable ARGS`; with `strikes` it gets those signals at those writes (see striker.py)."""
    return Nursling(durable_argv(db, *args)[3:], environment(**env), strikes)


def quick(db: Path, *args: str, strikes: Sequence[Strike] = (), **env: str) -> Ended:
    """Run `durable ARGS` to its end, as a nursling."""
    with nursling(db, *args, strikes=strikes, **env) as child:
        return child.end()


@contextlib.contextmanager
def image(db: Path) -> Iterator[Durable]:
    """A copy of the database as it lies there, opened: looking must not recover the WAL before the next process does.

    Only for a database that nobody writes to at the moment.
    """
    with tempfile.TemporaryDirectory(prefix="image-", dir=db.parent) as folder:
        for suffix in ("", "-wal"):
            if Path(f"{db}{suffix}").exists():
                shutil.copy(f"{db}{suffix}", Path(folder) / f"{db.name}{suffix}")
        with Durable(Path(folder) / db.name, create=False) as it:
            yield it


def recorded_steps(run: Run) -> set[str]:
    """The names of the steps that have their end on record."""
    return {step.name for step in run.steps or () if step.finished_at is not None}


def contents(db: Path) -> dict[str, list[dict[str, Any]]]:
    """All that the file says, but for who is alive: to compare two moments with."""
    tables = ("durable_runs", "durable_steps", "durable_activity", "durable_workflows")
    with Durable(db, create=False) as it:
        return it._engine.database.read(
            lambda tx: {name: tx.rows(f"SELECT * FROM {name} ORDER BY 1, 2, 3") for name in tables}
        )


class Log:
    """The side effects of the steps, one line each: run, step, attempt, pid. Written by the jobs with O_APPEND."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[list[str]]:
        if not self.path.exists():
            return []
        return [line.split() for line in self.path.read_text().splitlines()]

    def steps(self) -> list[str]:
        """The steps in the order of their executions."""
        return [line[1] for line in self.lines()]


class Gate:
    """Where a step of a child waits for the test: the step makes `arrived`, then waits for `open`."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self.path = folder / name
        os.mkfifo(self.path)
        self._arrived = Path(f"{self.path}.arrived")
        self._writer: int | None = None

    def wait_arrived(self, child: Child | None = None) -> None:
        until(lambda: self._arrived.exists() or (child is not None and child.over()), f"a step at {self.path}")
        assert self._arrived.exists(), f"the process ended before: {child.end() if child else None}"

    def open(self) -> None:
        """Let the steps at the gate go on, and all that come later."""
        self._writer = os.open(self.path, os.O_RDWR)  # a reader's open is answered; its read finds a byte
        os.write(self._writer, b"." * 64)

    def close(self) -> None:
        if self._writer is not None:
            os.close(self._writer)


def each_on_its_own(function: Callable[[U], T], points: Sequence[U], at_once: int = 2) -> list[T]:
    """Call `function` for every point, some at once: most of the time is spent waiting for children."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(function, points))
