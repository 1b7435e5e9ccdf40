"""`durable exec`: any command under the policies of a workflow, in real processes."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SLEEPER = 'trap "" TERM INT HUP; echo $$ > pid; while :; do sleep 0.2; done'
Wait = Callable[[Callable[[], bool]], None]


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def pid_in(cli: Any, wait_for: Wait, name: str = "pid") -> int:
    file = cli.dir / name
    wait_for(lambda: file.exists() and file.read_text().strip() != "")
    return int(file.read_text())


# -- exit codes, output, records -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_becomes_ours(cli: Any, script: str, code: int) -> None:
    """128 and the number for a signal, as shells have it."""
    assert cli("exec", "--", "sh", "-c", script).code == code


def test_the_exit_code_under_a_parent_that_ignores_its_children(cli: Any) -> None:
    """SIGCHLD ignored is inherited, and would lose every exit code."""
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-c", code, *cli.argv("exec", "--", "sh", "-c", "exit 7")]
    assert subprocess.run(argv, cwd=cli.dir, env=cli.full_env(), capture_output=True, check=False).returncode == 7


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_run(cli: Any, program: str, code: int) -> None:
    """As in a shell."""
    result = cli("exec", "--", program)
    assert (result.code, result.out) == (code, "")
    assert "was not run" in result.err


def test_output_passes_through_and_is_kept(cli: Any) -> None:
    """Each stream to its own; nothing of ours on success; what follows -- is the command's, `--json` too."""
    result = cli("exec", "--name", "job", "--", "sh", "-c", 'echo out "$@"; echo err >&2', "sh", "--json", "-q", "--")
    assert (result.code, result.out, result.err) == (0, "out --json -q --\n", "err\n")
    assert sorted(cli("logs", "last").out.splitlines()) == ["err", "out --json -q --"]


def test_standard_input_is_the_commands(cli: Any) -> None:
    """As with env: `producer | durable exec -- consumer`."""
    assert cli("exec", "--", "cat", stdin=b"fed\n").out == "fed\n"


def test_without_the_two_dashes(cli: Any) -> None:
    """The first word that is no option begins the command."""
    assert cli("exec", "--key", "k", "sh", "-c", "echo hi").out == "hi\n"


def test_one_json_document(cli: Any) -> None:
    """Under --json the command's output goes to stderr."""
    result = cli("exec", "--json", "--", "sh", "-c", "echo noise; exit 3")
    assert (result.code, result.document["workflow"], result.document["status"]) == (3, "sh", "failed")
    assert result.document["error"]["message"] == "sh exited with 3: noise"
    assert "noise" in result.err


def test_what_is_stored(cli: Any) -> None:
    """Arguments and directory; no environment."""
    cli("exec", "--", "true", "a b", env={"SECRET": "s3cret"})
    run = cli("runs", "show", "last", "--json").document
    assert run["input"] == {"argv": ["true", "a b"], "cwd": str(cli.dir)}
    assert [(step["name"], step["kind"]) for step in run["steps"]] == [("command", "shell")]
    assert b"s3cret" not in cli.db.read_bytes()


def test_quiet_as_for_cron(cli: Any) -> None:
    """Nothing on success; on failure the whole report, with the end of what the command printed."""
    assert cli("exec", "-q", "--", "sh", "-c", "echo noise; echo more >&2").__dict__ == {
        "code": 0,
        "out": "",
        "err": "",
    }
    result = cli("exec", "-q", "--key", "k", "--", "sh", "-c", "seq 1 100; exit 3")
    lines = result.err.splitlines()
    assert (result.code, result.out) == (3, "")
    assert len(lines) <= 40
    assert lines[0] == "error: sh failed in step command (attempt 1): ShellFailed: sh exited with 3: 100"
    assert "    100" in lines
    assert lines[-1].startswith("hint: durable retry ")


# -- policies ------------------------------------------------------------------------------------------------------


def test_names(cli: Any) -> None:
    """The program's name, else --name; one that cannot be a name, or is a Python workflow's, is refused."""
    cli("exec", "--", "/bin/true")
    assert cli("runs", "show", "last", "--json").document["workflow"] == "true"
    cli("exec", "--name", "nightly", "--", "/bin/true")
    assert cli("runs", "show", "last", "--json").document["workflow"] == "nightly"
    bad = cli("exec", "--", "./my script.sh")
    assert (bad.code, "--name N" in bad.err) == (2, True)
    cli("run", "flows:sync")
    taken = cli("exec", "--name", "sync", "--", "true")
    assert (taken.code, "flows.py:sync" in taken.err) == (2, True)
    moved = cli("run", "-n", "flows:quiet")
    assert moved.code == 0
    cli("exec", "--name", "quiet", "--", "true")
    assert cli("run", "flows:quiet").code == 2


def test_reuse_is_stored(cli: Any) -> None:
    """For the workflow, until another value is given, which is told."""
    echo = ("exec", "--key", "k", "--", "echo", "ran")
    assert cli("exec", "--key", "k", "--reuse", "never", "--", "echo", "ran").out == "ran\n"
    kept = cli(*echo)
    assert (kept.code, kept.out) == (0, "")
    assert cli("exec", "--key", "k", "--on-duplicate", "error", "--", "echo", "ran").code == 6
    assert cli("exec", "--key", "k", "-E", "9", "--", "echo", "ran").code == 9
    changed = cli("exec", "--key", "k", "--reuse", "after_close", "--", "echo", "ran")
    assert (changed.out, changed.err) == ("ran\n", "reuse of workflow echo is after_close from now on; it was never\n")
    assert cli(*echo).out == "ran\n"
    assert cli("exec", "--reuse", "sometimes", "--", "true").code == 2


def test_dry_run_writes_nothing(cli: Any) -> None:
    """It tells what would happen."""
    result = cli("exec", "-n", "--key", "k", "--", "touch", "file")
    assert (result.code, cli.db.exists(), (cli.dir / "file").exists()) == (0, False, False)
    assert "a new run would start" in result.out


def test_the_second_copy_starts_nothing(cli: Any, wait_for: Wait) -> None:
    """While the first one runs: exit 0 and nothing executed, 75 for `error`, or the code asked for."""
    with cli.process(
        "exec", "--key", "k", "--", "sh", "-c", 'echo $$ > pid; read x; echo "$x"', stdin=subprocess.PIPE
    ) as first:
        pid_in(cli, wait_for)
        again = ("exec", "--key", "k", "--name", "sh", "--")
        assert cli(*again, "touch", "file").code == 0
        assert cli("exec", "--key", "k", "--on-duplicate", "error", "--name", "sh", "--", "touch", "file").code == 75
        assert cli("exec", "--key", "k", "-E", "9", "--name", "sh", "--", "touch", "file").code == 9
        out, _ = first.communicate(b"go\n", timeout=15)
    assert (first.returncode, out, (cli.dir / "file").exists()) == (0, b"go\n", False)


def test_timeout_kills_the_command(cli: Any, wait_for: Wait) -> None:
    """The run has failed; nothing of the command is left."""
    result = cli.real("exec", "--timeout", "1s", "--", "sh", "-c", SLEEPER)
    assert (result.code, "Timeout" in result.err) == (1, True)
    pid = pid_in(cli, wait_for)
    wait_for(lambda: not alive(pid))


def test_another_process_goes_on_with_it(cli: Any, wait_for: Wait) -> None:
    """M17, C06: kill -9 of the owner kills the command; whoever adopts the run has the stored arguments and directory,
    whatever its own are."""
    script = 'echo run >> log; if [ -e second ]; then echo "done in $PWD"; else echo $$ > pid; exec sleep 60; fi'
    owner = cli.process("exec", "--key", "k", "--", "sh", "-c", script)
    command = pid_in(cli, wait_for)
    assert os.getpgid(command) != os.getpgid(owner.pid)
    owner.kill()
    owner.communicate()
    wait_for(lambda: not alive(command))
    (cli.dir / "second").touch()
    elsewhere = cli.dir / "elsewhere"
    elsewhere.mkdir()
    argv = cli.argv("exec", "--key", "k", "--", "sh", "-c", "echo other")
    result = subprocess.run(argv, cwd=elsewhere, env=cli.full_env(), capture_output=True, text=True, timeout=20)
    assert (result.returncode, result.stdout) == (0, f"done in {cli.dir}\n")
    assert (cli.dir / "log").read_text() == "run\nrun\n"


def test_a_worker_executes_it_too(cli: Any) -> None:
    """`retry` makes it pending; a tick has the code, wherever that is, and keeps the output in the log."""
    assert cli("exec", "--key", "k", "--", "sh", "-c", "test -e file && pwd").code == 1
    (cli.dir / "file").touch()
    run_id = cli("retry", "last", "--json").document["id"]
    assert cli.real("tick").code == 0
    assert cli("runs", "show", run_id, "--json").document["status"] == "completed"
    assert cli("logs", run_id).out == f"{cli.dir}\n"


# -- signals and descriptors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_reaches_the_command(cli: Any, wait_for: Wait, number: signal.Signals) -> None:
    """M15: it gets the same one; the run stays resumable and is nobody's."""
    script = 'for s in INT TERM HUP; do trap "echo $s; exit 1" $s; done; echo $$ > pid; while :; do sleep 0.05; done'
    owner = cli.process("exec", "--key", "k", "--", "sh", "-c", script)
    command = pid_in(cli, wait_for)
    owner.send_signal(number)
    out, err = owner.communicate(timeout=15)
    assert (owner.returncode, out.decode()) == (128 + number, f"{number.name.removeprefix('SIG')}\n")
    assert not alive(command)
    run = cli("runs", "show", "--key", "k", "--json").document
    assert (run["status"], run["owner"], f"durable resume {run['id']}" in err.decode()) == ("pending", None, True)


def test_the_second_signal_forces(cli: Any, wait_for: Wait) -> None:
    """M15: a command that ignores all signals is killed, and we leave at once."""
    owner = cli.process("exec", "-v", "--key", "k", "--", "sh", "-c", SLEEPER)
    command = pid_in(cli, wait_for)
    owner.send_signal(signal.SIGINT)
    assert owner.stderr is not None
    while b"may end" not in owner.stderr.readline():
        pass
    owner.send_signal(signal.SIGINT)
    owner.communicate(timeout=15)
    assert owner.returncode == 130
    wait_for(lambda: not alive(command))
    assert cli("runs", "show", "--key", "k", "--json").document["status"] == "pending"


def test_a_daemon_holds_nothing(cli: Any, wait_for: Wait) -> None:
    """M17: `out=$(durable exec ...)` returns while the daemon lives; of ours it has only its standard descriptors, and
    the next copy starts at once."""
    script = "setsid sh -c 'echo $$ > pid; exec sleep 60' & while [ ! -s pid ]; do sleep 0.02; done; echo started"
    began = time.monotonic()
    result = cli.real("exec", "--key", "k", "--", "sh", "-c", script)
    daemon = pid_in(cli, wait_for)
    try:
        assert (result.code, result.out, time.monotonic() - began < 10) == (0, "started\n", True)
        assert alive(daemon)
        assert cli("exec", "--key", "k", "--name", "sh", "--", "echo", "next").out == "next\n"
        if os.path.isdir("/proc/self/fd"):
            held = {name: os.readlink(f"/proc/{daemon}/fd/{name}") for name in os.listdir(f"/proc/{daemon}/fd")}
            assert set(held) == {"0", "1", "2"}
            assert not [place for place in held.values() if "test.db" in place]
    finally:
        os.kill(daemon, signal.SIGKILL)


class Tty:
    """A process on a terminal of its own, as its session's leader: what a shell's job is."""

    def __init__(self, cli: Any, *argv: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cli.dir)
            os.execve(sys.executable, cli.argv(*argv), cli.full_env({"TERM": "dumb"}))
        self.said = b""

    def read_until(self, text: str) -> None:
        end = time.monotonic() + 15
        while text.encode() not in self.said:
            assert time.monotonic() < end, self.said
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self.fd, 4096)
                except OSError:  # it is over
                    break
        assert text.encode() in self.said, self.said

    def type(self, data: bytes) -> None:
        os.write(self.fd, data)

    def end(self) -> int:
        end = time.monotonic() + 15
        while True:
            assert time.monotonic() < end, self.said
            if select.select([self.fd], [], [], 0.02)[0]:
                try:
                    self.said += os.read(self.fd, 4096)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def tty(cli: Any) -> Iterator[Callable[..., Tty]]:
    made: list[Tty] = []

    def make(*argv: str) -> Tty:
        made.append(Tty(cli, *argv))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_command_has_our_terminal(cli: Any, tty: Callable[..., Tty]) -> None:
    """It may read from it, and both its streams are it: interactive programs work."""
    it = tty(
        "exec", "--", "sh", "-c", 'test -t 0 && test -t 1 && test -t 2 && printf "name? " && read n && echo "hi $n"'
    )
    it.read_until("name? ")
    it.type(b"you\n")
    assert it.end() == 0
    assert b"hi you" in it.said


def test_ctrl_c_reaches_the_command_once(cli: Any, tty: Callable[..., Tty]) -> None:
    """M15: a command that handles it goes on with its work, as under a shell; one that dies of it leaves a resumable
    run and exit 130."""
    script = 'trap "echo got" INT; echo ready; read a; read b; echo "read $b"'
    it = tty("exec", "--", "sh", "-c", script)
    it.read_until("ready")
    it.type(b"\x03")
    it.read_until("got")
    it.type(b"one\ntwo\n")
    assert it.end() == 0
    assert it.said.count(b"got") == 1
    it = tty("exec", "--key", "k", "--", "sh", "-c", "echo ready; exec sleep 60")
    it.read_until("ready")
    it.type(b"\x03")
    assert it.end() == 130
    run = cli("runs", "show", "--key", "k", "--json").document
    assert (run["status"], f"durable resume {run['id']}" in it.said.decode()) == ("pending", True)


def test_ctrl_c_twice_forces(cli: Any, tty: Callable[..., Tty]) -> None:
    """M15: also a command that ignores it."""
    it = tty("exec", "--key", "k", "--", "sh", "-c", 'trap "" INT; echo ready; while :; do sleep 0.1; done')
    it.read_until("ready")
    it.type(b"\x03")
    time.sleep(0.3)  # two bytes at once would be one signal
    it.type(b"\x03")
    assert it.end() == 130
    assert cli("runs", "show", "--key", "k", "--json").document["status"] == "pending"


# -- logs ----------------------------------------------------------------------------------------------------------


def test_following_a_run(cli: Any, wait_for: Wait) -> None:
    """`logs -f` shows what comes while it comes, and ends with the run."""
    script = 'echo first; echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; printf "last"'
    with cli.process("exec", "--key", "k", "--", "sh", "-c", script) as owner:
        pid_in(cli, wait_for)
        with cli.process("logs", "--key", "k", "-f") as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"first\n"
            Path(cli.dir / "go").touch()
            assert follower.communicate(timeout=15)[0] == b"last\n"
        assert owner.wait(15) == 0
    assert follower.returncode == 0


def test_forms_of_logs(cli: Any) -> None:
    """Lines for people, one JSON list for programs, one document a line with -f; controls are shown, not sent."""
    cli("exec", "--", "printf", "a\\033[31mb\\n")
    assert cli("logs", "last").out == "a\\x1b[31mb\n"
    [line] = cli("runs", "logs", "last", "--json").document
    assert {name: line[name] for name in ("step", "seq", "attempt", "stream", "text")} == {
        "step": "command",
        "seq": 1,
        "attempt": 1,
        "stream": "stdout",
        "text": "a\x1b[31mb",
    }
    assert cli("logs", "last", "-f", "--json").document == line
    assert cli("logs", "nope").code == 3
    assert cli("logs").code == 2
