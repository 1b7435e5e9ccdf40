"""Real workers: killed, stopped, busy in C, signalled; and what their processes leave behind."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from crashkit import Child, Gate, Log, durable, spawn, until
from workerhunt import hunt

from durable_cli import Durable, Status


def worker(db: Path, *args: str, **env: str) -> Child:
    """A worker that says what it does."""
    child = spawn(db, "worker", "-v", *args, **env)
    child.wait_said("runs at once")
    return child


def started(db: Path, log: Log, target: str = "jobs:again", *args: str) -> str:
    return durable(db, "start", target, "--input", json.dumps(str(log.path)), *args).ok().out.strip()


def ended(db: Path, run_id: str, status: Status = Status.COMPLETED) -> None:
    """Wait for the end of a run."""
    with Durable(db, create=False) as it:
        until(lambda: it.run(run_id).finished, f"the end of run {run_id}")
        assert it.run(run_id).status is status
        assert it.check() == []


def test_workers_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """G17: kill -9 of a random worker of three each second; every keyed run leaves its key, no recorded step runs
    again, and the file is sound. The long version: `python tests/support/workerhunt.py`."""
    report = hunt(tmp_path, runs=80, over_s=5, workers=3, every_s=0.7, seed=int(time.time()))
    assert report.violations == []
    assert report.kills >= 5
    assert report.recorded == 160


@pytest.mark.parametrize("target", ["jobs:again", "jobs:job_async"])
def test_a_worker_does_not_come_between_a_retry_in_the_foreground_and_its_run(tmp_path: Path, target: str) -> None:
    """What every failure report advises works beside a worker: revived (or made anew) and claimed in one transaction."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    with worker(db, JOBS_ACT="fail:two:boom") as it:
        run_id = started(db, log, target, "--key", "k")
        ended(db, run_id, Status.FAILED)
        for command in ("retry", "rerun"):
            done = durable(db, command, run_id, "--foreground", "--json").ok().json
            assert (done["status"], done["outcome"]) == ("completed", {"retry": "resumed", "rerun": "created"}[command])
            assert (done["run_id"] == run_id) == (command == "retry")
        it.send(signal.SIGTERM)
        assert it.end().code == 0


@pytest.mark.parametrize("target", ["jobs:again", "jobs:job_async"])
def test_the_first_signal_drains(tmp_path: Path, target: str) -> None:
    """The running step ends and is recorded, no other begins, the rest is given back: exit 0."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    with worker(db, JOBS_ACT=f"hold:two:{gate.path}") as it:
        run_id = started(db, log, target)
        gate.wait_arrived(it)
        it.send(signal.SIGTERM)
        it.wait_said("may end")
        later = started(db, log, target)
        gate.open()
        end = it.end()
    gate.close()
    assert end.code == 0, end
    assert log.steps() == ["one", "two"]
    with Durable(db, create=False) as client:
        assert (client.run(run_id).status, client.run(run_id).owner) == (Status.PENDING, None)
        assert client.run(later).status is Status.PENDING
    assert durable(db, "tick", "--json").ok().json["runs"] == {"completed": 2}
    assert log.steps()[2] == "three" or "three" in log.steps()
    assert not list(tmp_path.glob("*-worker-*"))


@pytest.mark.parametrize("how", ["second signal", "grace"])
@pytest.mark.parametrize("target", ["jobs:again", "jobs:job_async"])
def test_a_step_that_does_not_end_keeps_no_worker(tmp_path: Path, target: str, how: str) -> None:
    """The second signal, or the end of the grace, ends the process although the step hangs in a thread; its run is
    nobody's, and is executed by the next process."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    grace = "60s" if how == "second signal" else "200ms"
    with worker(db, "--grace", grace, JOBS_ACT=f"hold:one:{gate.path}") as it:
        run_id = started(db, log, target)
        gate.wait_arrived(it)
        it.send(signal.SIGTERM)
        if how == "second signal":
            it.wait_said("may end")
            it.send(signal.SIGINT)
        began = time.monotonic()
        end = it.end()
        assert time.monotonic() - began < 15
    gate.close()
    assert end.code == 128 + (signal.SIGINT if how == "second signal" else signal.SIGTERM), end
    with Durable(db, create=False) as client:
        run = client.run(run_id)
        assert (run.status, run.owner, run.crashes) == (Status.PENDING, None, 0)
    durable(db, "tick").ok()
    ended(db, run_id)


@pytest.mark.parametrize("how", ["stopped", "busy in C"])
def test_a_worker_that_is_silent_is_alive(tmp_path: Path, how: str) -> None:
    """G07: a worker that is stopped, or whose step holds Python's lock in a C call, says nothing for seconds: another
    one takes nothing from it, and its step is executed once."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    gate = Gate(tmp_path)
    act = f"hold:one:{gate.path}" if how == "stopped" else f"compute:one:{tmp_path}/busy"
    with worker(db, JOBS_ACT=act) as a:
        run_id = started(db, log)
        if how == "stopped":
            gate.wait_arrived(a)
            a.stop()
        else:
            until((tmp_path / "busy").exists, "a step that computes")
        with worker(db) as b:
            other = started(db, log)
            ended(db, other)  # B is at work, and has swept
            time.sleep(1.2)  # two sweeps more: the subject is what does not happen
            with Durable(db, create=False) as client:
                assert (client.run(run_id).status, client.run(run_id).epoch) == (Status.RUNNING, 1)
            if how == "stopped":
                a.go_on()
                gate.open()
            else:
                (tmp_path / "busy.enough").touch()
            ended(db, run_id)
            b.send(signal.SIGTERM)
            assert b.end().code == 0
    gate.close()
    assert [line[1] for line in log.lines() if line[0] == run_id] == ["one", "two", "three"]


def test_a_worker_that_is_killed_is_replaced_at_once(tmp_path: Path) -> None:
    """The run of a killed worker is adopted at the other's next sweep and goes on behind its last record."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    with worker(db, JOBS_ACT=f"hold:two:{gate.path}") as a:
        run_id = started(db, log)
        gate.wait_arrived(a)
        with worker(db) as b:
            a.kill()
            killed = time.monotonic()
            ended(db, run_id)
            assert time.monotonic() - killed < 20
            b.send(signal.SIGTERM)
            assert b.end().code == 0
    gate.close()
    assert log.steps() == ["one", "two", "two", "three"]


def test_a_module_that_fails_is_an_error(tmp_path: Path) -> None:
    """MODULEs are imported at the start: one that raises, or is not there, ends the worker before it begins."""
    (tmp_path / "bad.py").write_text("1 / 0\n")
    db = tmp_path / "durable.db"
    for module, code, says in (("bad", 1, "division"), ("missing", 3, "missing"), ("bad:flow", 2, "module")):
        end = durable(db, "worker", module, app_dir=tmp_path)
        assert end.code == code, end
        assert says in end.err
    good = tmp_path / "good.py"
    good.write_text("print('imported')\n")
    with spawn(db, "worker", "-v", str(good)) as it:
        it.wait_said("runs at once")
        it.send(signal.SIGINT)
        assert it.end().code == 0


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_file_that_is_gone_ends_the_worker(tmp_path: Path, how: str) -> None:
    """One message, and an exit code that says configuration; nothing is executed any more."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    other = tmp_path / "other.db"
    started(other, log)
    with worker(db) as it:
        ended(db, started(db, log))
        if how == "replaced":
            os.replace(other, db)
        else:
            db.unlink()
        end = it.end()
    assert end.code == 78, end
    assert end.err.count("error:") == 1, end.err
    assert "Traceback" not in end.err


def test_a_tick_answers_with_counts(tmp_path: Path) -> None:
    """Exit 0 with counts; `-n` tells and does nothing; 1 where something due could not be executed."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    assert durable(db, "tick", "--json").ok().json["claimed"] == 0
    run_id = started(db, log)
    told = durable(db, "tick", "-n", "--json").ok().json
    assert (told["due"], told["run_ids"]) == (1, [run_id])
    assert log.steps() == []
    assert durable(db, "tick", "--json").ok().json["runs"] == {"completed": 1}
    (tmp_path / "gone.py").write_text("from durable_cli import workflow\n\n@workflow\ndef gone(ctx): ...\n")
    run_id = durable(db, "start", "gone:gone", app_dir=tmp_path).ok().out.strip()
    (tmp_path / "gone.py").unlink()
    end = durable(db, "tick")
    assert end.code == 1, end
    assert "gone" in end.err
    assert "is gone" in durable(db, "runs", "show", run_id).ok().out
