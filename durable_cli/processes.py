"""Commands that die with us: a subprocess in a process group of its own, watched over.

Killed with -9, a process cannot take its children along. So each command gets a watcher: a `/bin/sh` that leads the
command's process group and does nothing but read from a pipe whose write end this process alone has. When we die, in
whatever way, the pipe ends, and the watcher kills the whole group at once: the run may be adopted the next moment, and
its command must not overlap with the old one. When the command ends by itself only the watcher is killed; what the
command left behind (a daemon) goes on, with no descriptor of ours.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from durable_cli.terminal import STOPS, Terminal

_WATCHER: Final = """
trap '' HUP TERM QUIT TSTP TTIN TTOU USR1 USR2 PIPE
trap "$0" INT
echo
failed=0
while [ $failed -lt 2 ]; do
  read -r _ || failed=$((failed + 1))
done
kill -s KILL 0
"""
"""Says that it is ready; at the end of the pipe it kills. `$0` is what it does at a SIGINT. A `read` that a signal
interrupts has failed too, in some shells, but only at the end of the pipe does the next one fail without a signal.
"""
_IGNORES: Final = ""
_TELLS: Final = "failed=0; echo"

KILL_AFTER_S: Final = 5.0
"""Between TERM and KILL."""
_STOP_GRACE_S: Final = 10.0
"""How long a command may go on after our own stop where nobody says how long (`durable run --grace` does)."""
_GIVE_UP_S: Final = 5.0
"""After KILL: a process of another user (sudo) cannot be killed by us."""
_STRAGGLERS_S: Final = 0.2
"""After the end of the command, for what it wrote through others (`tee`). A daemon may keep its pipe open for ever."""
_CHECK_EVERY_S: Final = 0.5
_POLL_S: Final = 0.05
_TWICE_S: Final = 2.0

_ours: set[int] = set()
"""The write ends of the watchers' pipes."""


def _close_in_child() -> None:
    for descriptor in _ours:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _ours.clear()


os.register_at_fork(after_in_child=_close_in_child)


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. `env`: all of its environment. `input`: what it reads; None: nothing.

    `attached`: it has our standard input, and our terminal where there is one; of its output, what would go to the
    terminal goes there directly.
    """

    argv: Sequence[str]
    cwd: str | None
    env: Mapping[str, str]
    input: bytes | None = None
    attached: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: by `exit_code` or by `signal`; neither: that is lost, since somebody else in this process
    waited for it or ignores SIGCHLD. `interrupted`: we were asked to stop; `timed_out`.
    """

    exit_code: int | None
    signal: int | None
    interrupted: bool
    timed_out: bool


def run(
    command: Command,
    *,
    output: Callable[[str, str, bytes], None],
    check: Callable[[], None],
    stop: threading.Event,
    timeout_s: float | None,
) -> Ended:
    """Run a command to its end. Raises OSError when it cannot be begun, and what `check` raises, once it is over.

    `output(stream, text, data)` gets what it prints. `check` is called twice a second: when it raises, the group gets
    TERM, and KILL a little later. So it is when the time is over. `stop`: the group gets the signal that stopped us
    (`stop.signal`, else TERM), and KILL after the grace (`stop.grace_s`).
    """
    with _Watched(tells=command.attached) as group, _Running(command, group, output, stop) as running:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return running.to_its_end(check, deadline)


class _Watched:
    """A process group with a watcher as its leader. `tells`: it tells of each Ctrl-C that the group gets."""

    def __init__(self, *, tells: bool) -> None:
        self._at_sigint = _TELLS if tells else _IGNORES

    def __enter__(self) -> _Watched:
        reader, self._writer = os.pipe()
        _ours.add(self._writer)
        try:
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHER, self._at_sigint],
                stdin=reader,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                process_group=0,
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(reader)
        assert self._watcher.stdout is not None
        self.messages = self._watcher.stdout.fileno()
        os.read(self.messages, 1)  # it is ready: no signal to the group can end it from now on
        return self

    @property
    def id(self) -> int:
        return self._watcher.pid

    def signal(self, number: int) -> None:
        """Send a signal to the whole group. The leader is not reaped before the end: the number is nobody else's."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.id, number)
            if number != signal.SIGKILL:
                os.killpg(self.id, signal.SIGCONT)  # a stopped process learns nothing

    def __exit__(self, *_: object) -> None:
        self._watcher.kill()
        self._watcher.wait()
        if self._watcher.stdout is not None:
            self._watcher.stdout.close()
        self._let_go()

    def _let_go(self) -> None:
        _ours.discard(self._writer)
        os.close(self._writer)


class _Running:
    """A command in a watched group, from its start to its end."""

    def __init__(
        self, command: Command, group: _Watched, output: Callable[[str, str, bytes], None], stop: threading.Event
    ) -> None:
        self._group = group
        self._output = output
        self._stop = stop
        self._command = command
        self._selector = selectors.DefaultSelector()
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._pipes = 0
        self._kill_at: float | None = None
        self._given_up_at: float | None = None
        self._interrupted = self._timed_out = self._lost = False
        self._left: BaseException | None = None
        self._ctrl_c_at: float | None = None
        self._terminal: Terminal | None = None

    # -- beginning --

    def __enter__(self) -> _Running:
        if self._command.attached:
            self._terminal = Terminal.open()
            if self._terminal is not None:
                self._terminal.lend(self._group.id)
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        command = self._command
        outs = {"stdout": 1, "stderr": 2}
        direct = {name for name, number in outs.items() if command.attached and os.isatty(number)}
        with _input_of(command) as stdin:
            self._process = subprocess.Popen(
                list(command.argv),
                stdin=stdin,
                stdout=None if "stdout" in direct else subprocess.PIPE,
                stderr=None if "stderr" in direct else subprocess.PIPE,
                cwd=command.cwd,
                env=dict(command.env),
                process_group=self._group.id,
            )
        for name in (name for name in outs if name not in direct):
            self._watch(getattr(self._process, name), name)
        self._selector.register(self._group.messages, selectors.EVENT_READ, "message")
        self._pidfd = _pidfd(self._process.pid)
        if self._pidfd is not None:
            self._selector.register(self._pidfd, selectors.EVENT_READ, "exit")

    def _watch(self, pipe: IO[bytes], name: str) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, selectors.EVENT_READ, name)
        self._pipes += 1

    def __exit__(self, *_: object) -> None:
        process = getattr(self, "_process", None)
        if process is not None:
            if process.returncode is None:
                self._group.signal(signal.SIGKILL)
                process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        if (pidfd := getattr(self, "_pidfd", None)) is not None:
            os.close(pidfd)
        self._selector.close()
        if self._terminal is not None:
            killed = process is not None and (process.returncode or 0) < 0
            self._terminal.take_back(self._group.id, modes=killed)
            self._terminal.close()

    # -- going on --

    def to_its_end(self, check: Callable[[], None], deadline: float | None) -> Ended:
        """See `run`."""
        next_check = time.monotonic() + _CHECK_EVERY_S
        while not self._poll():
            now = time.monotonic()
            if now >= next_check:
                next_check = now + _CHECK_EVERY_S
                self._check(check)
            if deadline is not None and now >= deadline and not self._timed_out:
                self._timed_out = True
                self._end_it(signal.SIGTERM, KILL_AFTER_S)
            self._heed_stop()
            self._kill_if_due(now)
            if self._given_up_at is not None and now >= self._given_up_at:
                self._process.returncode = -signal.SIGKILL  # not ours to kill, nor to wait for
                break
            until = min(next_check, *(at for at in (deadline, self._kill_at) if at is not None and at > now), now + 1)
            self._listen(until - now if self._pidfd is not None and self._terminal is None else _POLL_S)
        self._drain()
        return self._ended()

    def _check(self, check: Callable[[], None]) -> None:
        if self._left is not None:
            return
        try:
            check()
        except BaseException as error:
            self._left = error
            self._end_it(signal.SIGTERM, KILL_AFTER_S)

    def _heed_stop(self) -> None:
        if self._stop.is_set() and not self._interrupted:
            self._interrupted = True
            number = getattr(self._stop, "signal", None) or signal.SIGTERM
            self._end_it(number, getattr(self._stop, "grace_s", _STOP_GRACE_S))

    def _end_it(self, number: int, grace_s: float) -> None:
        self._group.signal(number)
        kill_at = time.monotonic() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _kill_if_due(self, now: float) -> None:
        if self._kill_at is not None and now >= self._kill_at and self._given_up_at is None:
            self._group.signal(signal.SIGKILL)
            self._given_up_at = now + _GIVE_UP_S

    def _poll(self) -> bool:
        """Has the command ended?"""
        process = self._process
        while process.returncode is None:
            try:
                pid, status = os.waitpid(process.pid, os.WNOHANG | (os.WUNTRACED if self._terminal else 0))
            except ChildProcessError:
                self._lost, process.returncode = True, 0  # `Popen` is not to wait for it again
                break
            if pid == 0:
                return False
            if os.WIFSTOPPED(status):
                self._be_stopped(os.WSTOPSIG(status))
            else:
                process.returncode = os.waitstatus_to_exitcode(status)
        return True

    def _be_stopped(self, number: int) -> None:
        """The terminal stopped the command (Ctrl-Z): stop with it, as one job, and go on with it."""
        terminal, group = self._terminal, self._group
        if terminal is None or number not in STOPS:
            return
        if not (number != signal.SIGTSTP and terminal.is_lent(group.id)):
            terminal.take_back(group.id)
            os.killpg(os.getpgrp(), number)  # here we stop, until the shell says go on
            terminal.lend(group.id)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group.id, signal.SIGCONT)

    def _listen(self, seconds: float) -> bool:
        """Wait at most so long for output. False: none came."""
        came = False
        for key, _ in self._selector.select(max(seconds, 0)):
            if key.data == "exit":
                self._selector.unregister(key.fileobj)
                continue
            try:
                data = os.read(key.fd, 65536)
            except BlockingIOError:
                continue
            if not data:
                self._selector.unregister(key.fileobj)
                self._pipes -= key.data != "message"
            elif key.data == "message":
                self._told_of_ctrl_c()
            else:
                came = True
                self._output(key.data, self._decoders[key.data].decode(data), data)
        return came

    def _told_of_ctrl_c(self) -> None:
        """The terminal sent Ctrl-C to the command; the second within a moment is meant to end it."""
        if self._terminal is None:
            return  # it was us who sent the signal
        if self._had_ctrl_c():
            self._group.signal(signal.SIGKILL)
        self._ctrl_c_at = time.monotonic()

    def _had_ctrl_c(self) -> bool:
        """Was Ctrl-C typed just now? A program that uses it for something else (an interpreter) ends later."""
        return self._ctrl_c_at is not None and time.monotonic() - self._ctrl_c_at < _TWICE_S

    def _drain(self) -> None:
        """What the command has written and we have not read."""
        self._listen(_POLL_S if self._terminal is not None and self._process.returncode else 0)
        end = time.monotonic() + _STRAGGLERS_S
        while self._pipes and (self._listen(0) or time.monotonic() < end):
            self._listen(_POLL_S)
        for name, decoder in self._decoders.items():
            self._output(name, decoder.decode(b"", True), b"")

    def _ended(self) -> Ended:
        code = self._process.returncode
        by_signal = -code if code < 0 else None
        bad = code != 0 or self._lost
        if self._terminal is not None and (by_signal == signal.SIGINT or (bad and self._had_ctrl_c())):
            self._interrupted = True
            if os.getpgrp() != os.getpid():
                os.killpg(os.getpgrp(), signal.SIGINT)  # the script that we are in would have got it too
        if self._left is not None:
            raise self._left
        return Ended(
            None if by_signal or self._lost else code, by_signal, bad and self._interrupted, bad and self._timed_out
        )


@contextlib.contextmanager
def _input_of(command: Command) -> Iterator[int | IO[bytes] | None]:
    if command.input is not None:
        with tempfile.TemporaryFile(prefix="durable-") as file:
            file.write(command.input)
            file.seek(0)
            yield file
    else:
        yield None if command.attached else subprocess.DEVNULL


def _pidfd(pid: int) -> int | None:
    """A descriptor that is readable when the process has ended, where there are such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
