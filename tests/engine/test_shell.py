"""`ctx.shell`: a command as a step, killed with whatever ends the step, and with us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bothways import KINDS, define

from durable_cli import Durable, Retry, Run, Status
from durable_cli.errors import ShellFailed, UsageError
from durable_cli.shell import KEPT, ShellResult

PYTHON = sys.executable
SLEEPER = ["sh", "-c", 'echo $$ > "$0"; exec sleep 60']


def run(durable: Durable, kind: str, argv: Any, **options: Any) -> tuple[Run, list[Any]]:
    """Execute a workflow of one command: the run, and the result or the exception of `ctx.shell`."""
    seen: list[Any] = []

    async def body(ctx: Any) -> None:
        try:
            seen.append(await ctx.shell("command", argv, **options))
        except Exception as error:
            seen.append(error)
            raise

    return durable.execute(define(kind, body)).run, seen


def pid_in(file: Path) -> int:
    """The process id that a command wrote there."""
    end = time.monotonic() + 15
    while not (file.exists() and file.read_text().strip()):
        assert time.monotonic() < end, f"nothing in {file}"
        time.sleep(0.01)
    return int(file.read_text())


def wait_until_gone(pid: int) -> None:
    """Wait until a process is dead (a zombie counts as that)."""
    end = time.monotonic() + 15
    while alive(pid):
        assert time.monotonic() < end, f"process {pid} lives on"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


@pytest.fixture
def real(tmp_path: Path) -> Any:
    """The library with the real clock: commands take real time."""
    with Durable(tmp_path / "real.db") as it:
        yield it


# -- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_is_recorded_and_typed(durable: Durable, kind: str) -> None:
    """Exit code and both streams; input is what the command reads; the record is one step of kind `shell`."""
    done, [result] = run(durable, kind, ["sh", "-c", "cat; echo err >&2"], input="in\n")
    assert result == ShellResult(exit_code=0, signal=None, stdout="in\n", stderr="err\n", truncated=False)
    assert result.ok
    assert [(step.kind, step.name, step.status) for step in done.steps or ()] == [("shell", "command", "completed")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_says_how_the_command_ended(durable: Durable, kind: str) -> None:
    """ShellFailed carries exit code and last lines; the run's error is told in one line."""
    done, [error] = run(durable, kind, ["sh", "-c", "echo one; echo two >&2; exit 3"])
    assert isinstance(error, ShellFailed)
    assert (error.exit_code, error.signal, error.output) == (3, None, "two")
    assert done.error is not None
    assert (done.error.type, done.error.message) == ("ShellFailed", "sh exited with 3: two")


def test_a_failure_is_the_same_on_replay(durable: Durable) -> None:
    """The function sees the same ShellFailed when it is replayed, and the command does not run again."""
    seen: list[tuple[Any, Any]] = []

    async def body(ctx: Any) -> None:
        try:
            await ctx.shell("kill", ["sh", "-c", "kill -9 $$"])
        except ShellFailed as error:
            seen.append((error.exit_code, error.signal))
        await ctx.run("break", lambda: None, retry=None)
        await ctx.sleep("a while", "2s")

    assert durable.execute(define("plain", body)).run.status is Status.COMPLETED
    assert seen == [(None, 9), (None, 9)]


def test_check_false_gives_the_exit_code(durable: Durable) -> None:
    """The caller looks for itself."""
    _, [result] = run(durable, "plain", ["sh", "-c", "exit 3"], check=False)
    assert (result.exit_code, result.ok) == (3, False)


@pytest.mark.parametrize(
    ("argv", "cwd", "code", "message"),
    [
        (["no-such-program"], None, 127, "no-such-program was not run: there is no program 'no-such-program'"),
        (["/etc/passwd"], None, 126, "passwd was not run: Permission denied"),
        (["true"], "/no/such/dir", None, "true was not run: there is no directory /no/such/dir"),
    ],
)
def test_a_command_that_cannot_be_begun(
    durable: Durable, argv: list[str], cwd: str | None, code: int | None, message: str
) -> None:
    """The error says which of program, right and directory is wrong, with a shell's exit codes."""
    _, [error] = run(durable, "plain", argv, cwd=cwd)
    assert (error.exit_code, error.error_message) == (code, message)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", [True, False])
def test_an_end_that_is_lost_is_no_success(durable: Durable, kind: str, check: bool) -> None:
    """In an application that ignores SIGCHLD nobody learns how a command ended: whatever it was, the step failed."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        done, [error] = run(durable, kind, ["sh", "-c", "echo out; exit 7"], check=check)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert isinstance(error, ShellFailed)
    assert (error.exit_code, error.signal, error.output) == (None, None, "out")
    assert "how is lost" in error.error_message
    assert done.status is Status.FAILED


@pytest.mark.parametrize("argv", ["echo hello", b"echo", [], ["a", 1], [""], ["a\0b"]])
def test_a_shell_line_is_refused(durable: Durable, argv: Any) -> None:
    """No command line is ever given to a shell: argv is a list of str. The message says what to write."""
    done, [error] = run(durable, "plain", argv)
    assert isinstance(error, UsageError)
    assert "command" in str(error)
    assert done.steps == ()


def test_words_of_users_are_no_code(durable: Durable) -> None:
    """What a producer chose arrives as it is."""
    word = "$(touch pwned); \"' * \\ \n ü"
    _, [result] = run(durable, "plain", ["printf", "%s", word])
    assert result.stdout == word
    assert not Path("pwned").exists()


def test_long_output_is_bounded(durable: Durable) -> None:
    """The last 64 KiB are in the result, which says that there was more."""
    _, [result] = run(durable, "plain", ["sh", "-c", "seq 1 60000; echo end"])
    assert result.truncated
    assert len(result.stdout) <= KEPT
    assert result.stdout.endswith("60000\nend\n")


def test_the_environment_tells_the_command_of_us(durable: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, `env` added, and DURABLE_RUN_ID, _STEP, _ATTEMPT, _IDEMPOTENCY_KEY."""
    monkeypatch.setenv("OURS", "1")
    names = ["OURS", "MORE", "DURABLE_RUN_ID", "DURABLE_STEP", "DURABLE_ATTEMPT", "DURABLE_IDEMPOTENCY_KEY"]
    script = "import os; print(*[os.environ[name] for name in " + repr(names) + "])"
    done, [result] = run(durable, "plain", [PYTHON, "-c", script], env={"MORE": "2"})
    assert result.stdout.split() == ["1", "2", done.id, "command", "1", f"{done.id}:1"]


def test_a_failed_command_is_tried_again(durable: Durable, tmp_path: Path) -> None:
    """`retry` works as for any step, also by `retry_on=ShellFailed`; attempts are counted in the environment."""
    script = 'echo $DURABLE_ATTEMPT >> "$0"; [ $DURABLE_ATTEMPT = 3 ]'
    log = tmp_path / "log"
    done, _ = run(durable, "plain", ["sh", "-c", script, log], retry=Retry(max_attempts=5, retry_on=ShellFailed))
    assert (done.status, log.read_text().split()) == (Status.COMPLETED, ["1", "2", "3"])


# -- ends that come from outside -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_timeout_kills_the_whole_group(real: Durable, tmp_path: Path, kind: str) -> None:
    """Also the children of the command; the error is a Timeout."""
    child = tmp_path / "child"
    script = 'sh -c \'echo $$ > "$0"; exec sleep 60\' "$0" & wait'
    began = time.monotonic()
    done, [error] = run(real, kind, ["sh", "-c", script, child], timeout=0.5)
    assert done.error is not None
    assert (done.error.type, done.error.message) == ("Timeout", "the command took longer than 500ms and was killed")
    assert isinstance(error, ShellFailed)
    wait_until_gone(pid_in(child))
    assert time.monotonic() - began < 4


def test_a_command_that_ignores_term_is_killed(real: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    """KILL follows TERM."""
    monkeypatch.setattr("durable_cli.processes.KILL_AFTER_S", 0.2)
    done, _ = run(real, "plain", ["sh", "-c", "trap '' TERM; sleep 60 & wait; sleep 60"], timeout=0.3)
    assert done.error is not None
    assert done.error.type == "Timeout"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["cancel", "stop", "deadline"])
def test_the_command_ends_with_its_step(real: Durable, tmp_path: Path, kind: str, how: str) -> None:
    """C06, M15: a run that is cancelled, stopped or overdue takes its command along; a stopped one is resumable."""
    file, stop = tmp_path / "pid", threading.Event()

    async def body(ctx: Any) -> None:
        await ctx.shell("sleep", [*SLEEPER, file])

    options = {"timeout": "1s"} if how == "deadline" else {}
    flow = define(kind, body, **options)

    def act() -> None:
        pid_in(file)
        if how == "cancel":
            real.cancel(real.runs()[0].id)
        elif how == "stop":
            stop.set()

    actor = threading.Thread(target=act)
    actor.start()
    execution = real.execute(flow, stop=stop)
    actor.join()
    wait_until_gone(pid_in(file))
    expected = {"cancel": Status.CANCELLED, "stop": Status.PENDING, "deadline": Status.FAILED}[how]
    assert (execution.run.status, execution.interrupted) == (expected, how == "stop")
    if how == "stop":
        assert execution.run.owner is None
        assert real.run(execution.run.id).steps == ()  # no attempt used


def test_a_command_that_ends_well_after_the_stop_is_recorded(real: Durable, tmp_path: Path) -> None:
    """A stop lets the step end: the result counts, and the next operation is not begun."""
    file, stop = tmp_path / "pid", threading.Event()
    script = 'trap "exit 0" TERM; echo $$ > "$0"; while :; do sleep 0.05; done'

    async def body(ctx: Any) -> None:
        await ctx.shell("first", ["sh", "-c", script, file])
        await ctx.shell("second", ["true"])

    threading.Thread(target=lambda: (pid_in(file), stop.set())).start()
    run = real.execute(define("plain", body), stop=stop).run
    assert [(step.name, step.status) for step in real.run(run.id).steps or ()] == [("first", "completed")]


def in_child(function: Callable[[], object]) -> int:
    """Call a function in a forked process; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    return pid


def test_a_killed_owner_takes_its_commands_along(tmp_path: Path) -> None:
    """kill -9 of the owner: its command is dead before the next process could have gone on with the run."""
    file = tmp_path / "pid"

    async def body(ctx: Any) -> None:
        await ctx.shell("sleep", ["sh", "-c", 'trap "" TERM HUP INT; echo $$ > "$0"; sleep 60; sleep 60', file])

    flow = define("plain", body)

    def own() -> None:
        with Durable(tmp_path / "durable.db") as it:
            it.execute(flow)

    owner = in_child(own)
    command = pid_in(file)
    assert os.getpgid(command) != os.getpgid(owner)
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    wait_until_gone(command)


def test_a_forked_child_of_a_step_does_not_keep_the_command_alive(tmp_path: Path) -> None:
    """The pipe that tells of our death is not inherited by processes that user code forks."""
    file = tmp_path / "pid"

    def body(ctx: Any) -> dict[str, Any]:
        return ctx.parallel({"shell": shell_branch, "fork": fork_branch})

    def shell_branch(ctx: Any) -> None:
        ctx.shell("sleep", [*SLEEPER, file])

    def fork_branch(ctx: Any) -> None:
        def fork() -> None:
            pid_in(file)
            (tmp_path / "forked").write_text(str(in_child(lambda: time.sleep(30))))
            os.kill(os.getpid(), signal.SIGKILL)

        ctx.run("fork", fork)

    from durable_cli import workflow

    flow = workflow(name="forks")(body)

    def own() -> None:
        with Durable(tmp_path / "durable.db") as it:
            it.execute(flow)

    os.waitpid(in_child(own), 0)
    try:
        wait_until_gone(pid_in(file))
    finally:
        os.kill(pid_in(tmp_path / "forked"), signal.SIGKILL)


def test_a_daemon_lives_on_and_holds_nothing(durable: Durable, tmp_path: Path) -> None:
    """M17: what the command leaves behind is not waited for and has no descriptor of the file, the lock or our pipes
    but its own standard ones."""
    file = tmp_path / "pid"
    began = time.monotonic()
    script = f'setsid {" ".join(SLEEPER[:2])} \'echo $$ > "$0"; exec sleep 60\' "$0" & echo left'
    _, [result] = run(durable, "plain", ["sh", "-c", script, file])
    daemon = pid_in(file)
    try:
        assert (result.stdout, time.monotonic() - began < 5) == ("left\n", True)
        assert alive(daemon)
        if os.path.isdir("/proc/self/fd"):
            held = {int(name): os.readlink(f"/proc/{daemon}/fd/{name}") for name in os.listdir(f"/proc/{daemon}/fd")}
            assert set(held) == {0, 1, 2}
            assert not [place for place in held.values() if "durable" in place]
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_nothing_is_left_of_us(durable: Durable) -> None:
    """No watcher, no descriptor, no thread stays after the command."""

    def children() -> set[str]:
        argv = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
        lines = subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
        return {line for line in lines if not line.endswith(" ps")}

    run(durable, "plain", ["true"])
    there = children()  # of other tests in this process
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    for _ in range(3):
        run(durable, "plain", ["true"])
    after = os.listdir("/proc/self/fd") if before else []
    assert len(after) == len(before)
    assert children() <= there


def test_commands_of_branches_run_at_once(real: Durable, tmp_path: Path) -> None:
    """Each of two commands waits for the other one."""

    def body(ctx: Any) -> Any:
        def meet(mine: str, other: str) -> Callable[[Any], str]:
            script = 'touch "$0"; while [ ! -e "$1" ]; do sleep 0.02; done; echo met'
            argv = ["sh", "-c", script, tmp_path / mine, tmp_path / other]
            return lambda inner: inner.shell("meet", argv, timeout="10s").stdout

        return ctx.parallel({"a": meet("a", "b"), "b": meet("b", "a")})

    from durable_cli import workflow

    result = real.execute(workflow(name="meeting")(body)).run.result
    assert json.loads(result or "null") == {"a": "met\n", "b": "met\n"}


# -- attempts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_attempts_are_counted_across_retries_of_the_run(durable: Durable, kind: str, tmp_path: Path) -> None:
    """As for ctx.run: the command is told its number, and the record forgets no attempt; the budget is fresh."""
    told = tmp_path / "told"
    script = f'echo $DURABLE_ATTEMPT >> "{told}"; test $DURABLE_ATTEMPT -ge 5'
    first, _ = run(durable, kind, ["sh", "-c", script], retry=Retry(max_attempts=2, base="1ms", jitter=0))
    assert (first.status, told.read_text().split()) == ("failed", ["1", "2"])
    for expected in ("failed", "completed"):
        durable.retry(first.id)
        assert durable.resume(first.id).run.status == expected
    assert told.read_text().split() == ["1", "2", "3", "4", "5"]
    [step] = durable.run(first.id).steps or ()
    assert (step.attempts, step.failures) == (5, 0)
