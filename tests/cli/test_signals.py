"""INT, TERM and HUP during a run. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest


def start_slow(cli, wait_for, *argv, **options):
    process = cli.process("run", "flows:slow", "--key", "k", *argv, **options)
    wait_for((cli.dir / "began").exists)
    return process


def the_run(cli):
    return cli("runs", "show", "--key", "k", "--json").document


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_lets_the_step_end(cli, wait_for, name):
    """Its result is recorded, no other step begins, the run can go on; exit 128+n and the last line says how (M15)."""
    number = getattr(signal, name)
    process = start_slow(cli, wait_for)
    process.send_signal(number)
    time.sleep(0.2)
    assert process.poll() is None
    (cli.dir / "go").touch()
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (128 + number, b"")
    run = the_run(cli)
    assert run["status"] == "pending"
    assert run["owner"] is None
    assert [step["name"] for step in run["steps"]] == ["one"]
    assert err.decode() == f"{name}: run {run['id']} is pending and can go on: durable resume {run['id']}\n"
    assert cli("resume", run["id"]).out == '"over"\n'


def test_signals_reach_a_process_with_many_open_files(cli, crowded, wait_for):
    """More than 1,024 of them: both the first and the second signal."""
    process = crowded("run", "flows:slow", "--key", "k")
    wait_for((cli.dir / "began").exists)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, the_run(cli)["status"]) == (143, "pending")
    assert b"Traceback" not in err


def test_the_second_signal_stops_at_once(cli, wait_for):
    """The run is handed back (no live owner, due), though the step never ended."""
    process = start_slow(cli, wait_for, "--json")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    run = the_run(cli)
    assert (run["status"], run["owner"], run["steps"]) == ("pending", None, [])
    assert f"durable resume {run['id']}".encode() in err
    assert b'"code": "interrupted"' in out
    assert out.count(b"\n") == 1


def test_the_grace_ends_a_step_that_goes_on(cli, wait_for):
    """`--grace 0.3s`: then as if a second signal had come; a step in a long C call cannot stop that."""
    (cli.dir / "deaf.py").write_text(
        "import ctypes\nfrom durable_cli import workflow\n\n@workflow\ndef deaf(ctx):\n"
        "    def wait():\n        open('began', 'w').close()\n"
        "        try:\n            while True: ctypes.PyDLL(None).usleep(100000)\n"
        "        except Exception: pass\n"
        "    ctx.run('wait', wait)\n"
    )
    process = cli.process("run", "deaf:deaf", "--key", "k", "--grace", "0.3s")
    wait_for((cli.dir / "began").exists)
    began = time.monotonic()
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert 0.2 < time.monotonic() - began < 6
    assert the_run(cli)["owner"] is None


def test_a_hup_that_was_ignored_stays_ignored(cli, wait_for):
    """nohup durable run."""
    process = start_slow(cli, wait_for, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    (cli.dir / "go").touch()
    assert process.communicate(timeout=20)[0] == b'"over"\n'
    assert process.returncode == 0


def test_user_code_cannot_swallow_a_signal(cli, wait_for):
    """`except Exception` and `except BaseException` around the steps: no further step begins."""
    (cli.dir / "greedy.py").write_text(
        "import os, time\nfrom durable_cli import workflow\n\ndef wait():\n    open('began', 'w').close()\n"
        "    while not os.path.exists('go'): time.sleep(0.02)\n\n"
        "@workflow\ndef greedy(ctx):\n    for n in range(3):\n        try:\n            ctx.run(f's{n}', wait)\n"
        "        except BaseException:\n            pass\n"
    )
    process = cli.process("run", "greedy:greedy", "--key", "k")
    wait_for((cli.dir / "began").exists)
    process.terminate()
    time.sleep(0.2)
    (cli.dir / "go").touch()
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert [step["name"] for step in the_run(cli)["steps"]] == ["s0"]


def test_a_forked_child_of_a_step_dies_of_a_signal_as_usual(cli):
    """multiprocessing's terminate() works, and the parent does not take it for a signal of its own."""
    (cli.dir / "forks.py").write_text(
        "import os, signal, time\nfrom durable_cli import workflow\n\n@workflow\ndef forks(ctx):\n"
        "    def fork():\n        pid = os.fork()\n"
        "        if pid == 0:\n            time.sleep(30)\n            os._exit(0)\n"
        "        time.sleep(0.2)\n        os.kill(pid, signal.SIGTERM)\n"
        "        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "    ctx.run('fork', fork)\n    return ctx.run('after', lambda: 'went on')\n"
    )
    result = cli.real("run", "forks:forks", "--key", "k")
    assert (result.code, result.out) == (0, '"went on"\n')
    assert the_run(cli)["steps"][0]["result"] == -signal.SIGTERM


def test_a_resting_run_is_left_at_once(cli, wait_for):
    """A run that waits for its next attempt does not keep the process for the grace."""
    process = cli.process("run", "flows:flaky", "--key", "k")
    wait_for(lambda: cli.db.exists() and b"waiting" in cli("runs", "list", "--format", "tsv").out.encode())
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - began < 5
    run = the_run(cli)
    assert (run["status"], run["owner"]) == ("waiting", None)


def test_reading_commands_die_of_ctrl_c_as_usual(cli, wait_for):
    """`runs wait`: 130, no traceback, the run untouched."""
    run_id = cli("start", "flows:quiet", "--key", "k").out.strip()
    ready = cli.dir / "ready"
    code = "import sys, durable_cli.client as c, pathlib\nold = c.Durable.wait\n"
    code += f"def wait(*a, **k):\n    pathlib.Path({str(ready)!r}).touch()\n    return old(*a, **k)\n"
    code += "c.Durable.wait = wait\n"
    code += (
        "from durable_cli.__main__ import main\nsys.argv = ['durable', 'runs', 'wait', sys.argv[1]]\nsys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, run_id],
        cwd=cli.dir,
        env=cli.full_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(ready.exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert the_run(cli)["status"] == "pending"
    assert os.path.exists(cli.db)
