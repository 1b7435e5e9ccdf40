"""`ctx.shell`: a command as a step.

The command runs in a process group of its own, which dies with us (`processes`). What it prints is kept in the run's
log, and passed on where the run is executed in the foreground.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from durable_cli.capture import is_foreground, pass_on
from durable_cli.core.policies import Retry, parse_timeout
from durable_cli.core.timing import Duration, format_duration
from durable_cli.errors import DurableError, ShellFailed, StepTimeout, UsageError
from durable_cli.execution import Stop
from durable_cli.logs import Source
from durable_cli.operations import Operations, StepOptions

KEPT: Final = 64 * 1024
"""Bytes of each stream that the result has: the last ones."""
_LAST_LINES: Final = 10


@dataclass(frozen=True, slots=True)
class ShellResult:
    """How a command ended: by `exit_code`, or (None) by `signal`. Neither is 0 and None only with `check=False`.

    `stdout` and `stderr`: the last 64 KiB of each; `truncated`: there was more. All of it is in the run's log, up to
    that one's bounds.
    """

    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    truncated: bool

    @property
    def ok(self) -> bool:
        """Did it exit with 0?"""
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of `ctx.shell`, checked. `attached`: for `durable exec`, see `processes.Command`."""

    name: str
    argv: tuple[str, ...]
    input: bytes | None
    env: dict[str, str]
    cwd: str | None
    timeout_ms: int | None
    retry: Retry
    check: bool
    attached: bool = False


def checked(
    name: str,
    argv: object,
    *,
    input: object,
    env: object,
    cwd: object,
    timeout: Duration | None,
    retry: object,
    check: bool,
) -> Call:
    """The arguments of `ctx.shell`. Raises UsageError for what cannot be meant."""
    if isinstance(argv, str | bytes):
        raise UsageError(
            f"ctx.shell {name!r} takes a list of arguments and no shell line: a value with a space or a quote in it "
            'would become code; write ["git", "clone", url], or ["sh", "-c", "...", "sh", value] where a shell is meant'
        )
    if not isinstance(argv, Sequence) or not argv or not all(isinstance(word, str | os.PathLike) for word in argv):
        raise UsageError(f"ctx.shell {name!r} takes a list of str, program first")
    words = tuple(os.fspath(word) for word in argv)
    if not words[0] or any("\0" in word for word in words):
        raise UsageError(f"ctx.shell {name!r}: a program has a name, and no argument has a NUL in it")
    if input is not None and not isinstance(input, str | bytes):
        raise UsageError(f"ctx.shell {name!r}: input= is str or bytes, not {type(input).__name__}")
    if retry is not None and not isinstance(retry, Retry):
        raise UsageError(f"retry= takes a Retry(...), not {type(retry).__name__}")
    more = dict(env) if isinstance(env, Mapping) else {} if env is None else None
    if more is None or not all(isinstance(word, str) for pair in more.items() for word in pair):
        raise UsageError(f"ctx.shell {name!r}: env= is a dict of str, added to the environment of this process")
    return Call(
        name=name,
        argv=words,
        input=input.encode("utf-8", "surrogateescape") if isinstance(input, str) else input,
        env=more,
        cwd=None if cwd is None else os.path.abspath(os.fspath(cwd)),  # type: ignore[call-overload]
        timeout_ms=parse_timeout(timeout),
        retry=retry or Retry(),
        check=check,
    )


async def shell(operations: Operations, call: Call) -> ShellResult:
    """Run a command as a step. Raises ShellFailed where it fails for good."""

    def attempt() -> dict[str, Any]:
        return _Attempt(operations, call).execute()

    # The timeout is the command's: it is killed, where a function that takes too long is only left alone.
    options = StepOptions(kind="shell", retry=call.retry)
    return ShellResult(**await operations.step(call.name, attempt, (), {}, options))


class _Tail:
    """The last bytes of a stream."""

    def __init__(self) -> None:
        self._text = ""
        self.truncated = False

    def add(self, text: str) -> None:
        self._text += text
        if len(self._text) > 2 * KEPT:
            self._cut()

    def _cut(self) -> None:
        data = self._text.encode("utf-8", "replace")
        if len(data) > KEPT:
            self.truncated = True
            self._text = data[-KEPT:].decode("utf-8", "ignore")

    def text(self) -> str:
        self._cut()
        return self._text


class _Attempt:
    """One attempt of one command."""

    def __init__(self, operations: Operations, call: Call) -> None:
        self._operations = operations
        self._call = call
        self._source = Source(operations.branch, operations.asked, operations.attempt(), call.name)
        self._pass_on = is_foreground()
        self._tails = {"stdout": _Tail(), "stderr": _Tail()}
        self._lock = threading.Lock()

    def execute(self) -> dict[str, Any]:
        """Run the command; the result as JSON. Raises ShellFailed, StepTimeout, and what leaves the run."""
        from durable_cli import processes  # late: few workflows run commands

        call, operations = self._call, self._operations
        command = processes.Command(
            argv=call.argv,
            cwd=call.cwd,
            env={**os.environ, **call.env, **self._told()},
            input=call.input,
            attached=call.attached and is_foreground(),
        )
        timeout_s = None if call.timeout_ms is None else call.timeout_ms / 1000
        try:
            ended = processes.run(
                command, output=self._output, check=self._check, stop=operations.execution.stop, timeout_s=timeout_s
            )
        except OSError as error:
            raise self._not_begun(error) from None
        if ended.interrupted:
            raise operations.leave(Stop())
        if ended.timed_out:
            assert call.timeout_ms is not None
            raise StepTimeout(f"the command took longer than {format_duration(call.timeout_ms)} and was killed")
        if ended.exit_code is None and ended.signal is None:
            raise self._failed(
                "ended, and how is lost: this process ignores SIGCHLD or waits for all children", None, None
            )
        if call.check and ended.exit_code != 0:
            how = f"was killed by signal {ended.signal}" if ended.signal else f"exited with {ended.exit_code}"
            raise self._failed(how, ended.exit_code, ended.signal)
        tails = self._tails
        return {
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "stdout": tails["stdout"].text(),
            "stderr": tails["stderr"].text(),
            "truncated": tails["stdout"].truncated or tails["stderr"].truncated,
        }

    def _told(self) -> dict[str, str]:
        """What the command may want to know of us."""
        operations = self._operations
        return {
            "DURABLE_RUN_ID": operations.execution.run.id,
            "DURABLE_STEP": self._call.name,
            "DURABLE_ATTEMPT": str(self._source.attempt),
            "DURABLE_IDEMPOTENCY_KEY": operations.idempotency_key(),
        }

    def _output(self, stream: str, text: str, data: bytes) -> None:
        self._operations.execution.log.add(self._source, stream, text)
        self._tails[stream].add(text)
        if self._pass_on and data:
            pass_on(stream, data)

    def _check(self) -> None:
        """Is the step still wanted? Raises what leaves it."""
        try:
            self._operations.heartbeat()
        except Stop:
            pass  # the command has got the signal, and has its time
        except DurableError:
            pass  # the file cannot be read just now; if it never can, the record of the step will say so

    def _not_begun(self, error: OSError) -> ShellFailed:
        program, cwd = self._call.argv[0], self._call.cwd
        if cwd is not None and not os.path.isdir(cwd):
            return self._failed(f"was not run: there is no directory {cwd}", None, None)
        if isinstance(error, FileNotFoundError):
            return self._failed(f"was not run: there is no program {program!r}", 127, None)
        return self._failed(f"was not run: {error.strerror or error}", 126, None)

    def _failed(self, how: str, exit_code: int | None, signal: int | None) -> ShellFailed:
        call = self._call
        text = self._tails["stderr"].text().strip() or self._tails["stdout"].text().strip()
        lines = [line.rpartition("\r")[2] for line in text.splitlines()[-_LAST_LINES:]]
        message = f"{os.path.basename(call.argv[0])} {how}" + (f": {lines[-1][:300]}" if lines else "")
        error = ShellFailed(
            call.name, error_type="ShellFailed", error_message=message, attempts=self._source.attempt or 1
        )
        error.exit_code, error.signal, error.output = exit_code, signal, "\n".join(lines)[-2048:] or None
        return error
