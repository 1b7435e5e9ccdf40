"""Many processes and one key, through the command line: one run, and every process gets an answer that holds."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from crashkit import Child, Ended, Gate, Log, durable, nursling, quick, spawn, until

from durable_cli import Durable, Status

PROCESSES = 20


@contextlib.contextmanager
def all_at_once(db: Path, calls: list[list[str]], **env: str) -> Iterator[list[Child]]:
    """Begin all these calls, none waiting for another."""
    with ExitStack() as stack:
        yield [stack.enter_context(spawn(db, *call, **env)) for call in calls]


def run_all(db: Path, calls: list[list[str]], **env: str) -> list[Ended]:
    """Begin all these calls at once, and wait for all."""
    with all_at_once(db, calls, **env) as children:
        return [child.end() for child in children]


def test_twenty_backups_of_one_folder(tmp_path: Path) -> None:
    """20 processes run examples/backup.py with one key at once; the holder is busy until the other 19 have answered.
    One run, one archive, 19 duplicates in the activity, and every answer names the same run, which can be read at
    once (A14) by another process."""
    db, gate = tmp_path / "durable.db", Gate(tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    for n in range(50):
        (source / f"{n}.txt").write_text("text " * n)
    job = json.dumps({"source": str(source), "target": str(tmp_path / "target")})
    call = ["run", "busy_backup:backup", "--key", "backup:source", "--input", job, "--json"]
    with (
        Durable(tmp_path / "durable.db") as reader,
        all_at_once(db, [call] * PROCESSES, BACKUP_GATE=str(gate.path)) as children,
    ):
        seen: dict[int, str] = {}

        def answered() -> int:
            for n, child in enumerate(children):
                if n not in seen and child.over():
                    seen[n] = child.end().ok().json["run_id"]
                    assert reader.run(seen[n]).status is Status.RUNNING
            return len(seen)

        until(lambda: answered() == PROCESSES - 1, "19 answers")
        gate.open()
        answers = [child.end().ok().json for child in children]
    gate.close()
    assert len({answer["run_id"] for answer in answers}) == 1
    assert sorted(answer["outcome"] for answer in answers) == ["created"] + ["existing"] * (PROCESSES - 1)
    assert len([name for name in os.listdir(tmp_path / "target") if name.endswith(".tar.gz")]) == 1
    activity = durable(db, "activity", "--json").ok().json
    assert [row["kind"] for row in activity] == ["key_duplicate"] * (PROCESSES - 1)
    assert {row["run_id"] for row in activity} == {answers[0]["run_id"]}
    assert {row["details"]["input_changed"] for row in activity} == {False}
    assert durable(db, "db", "check").code == 0


def test_twenty_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    """L02: in an empty directory, 20 processes start at once: all succeed, the schema was made once, in WAL mode."""
    db = tmp_path / "durable.db"
    argument = ["--input", json.dumps(str(tmp_path / "trace")), "--json"]
    answers = run_all(db, [["start", "jobs:job", "--key", f"k{n}", *argument] for n in range(PROCESSES)])
    ids = {answer.ok().json["run_id"] for answer in answers}
    assert len(ids) == PROCESSES
    assert all(answer.err == "" for answer in answers)
    with Durable(db, create=False) as it:
        assert it.check() == []
        assert {run.id for run in it.runs()} == ids
        assert it._engine.database.read(lambda tx: tx.value("PRAGMA journal_mode")) == "wal"
    assert (db.stat().st_mode & 0o777) == 0o600


def test_two_processes_retry_one_failed_run(tmp_path: Path) -> None:
    """H02: one takes it up, the other gets a clear refusal, and the body runs once."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    start = ["run", "jobs:again", "--key", "k", "--input", json.dumps(str(log.path)), "--json"]
    failed = quick(db, *start, JOBS_ACT="fail:two:boom")
    assert failed.code == 1
    run_id = failed.json["run_id"]
    call = ["retry", run_id, "--foreground", "--json"]
    with all_at_once(db, [call, call], JOBS_ACT=f"hold:three:{gate.path}") as children:
        until(lambda: any(child.over() for child in children), "the refusal")
        gate.open()
        answers = sorted((child.end() for child in children), key=lambda ended: ended.code)
    gate.close()
    assert [answer.code for answer in answers] == [0, 4], answers
    assert (answers[0].json["run_id"], answers[0].json["status"]) == (run_id, "completed")
    assert answers[1].json["error"]["code"] in ("not_retryable", "not_resumable")
    assert run_id in answers[1].json["error"]["message"]
    assert log.steps() == ["one", "two", "two", "three"]
    with Durable(db, create=False) as it:
        assert it.check() == []
        assert len(it.runs()) == 1


def test_a_burst_of_replacements_leaves_the_last(tmp_path: Path) -> None:
    """30 starts with cancel_existing and the inputs 1 to 30, from 6 processes at a time: each gets a run, the last
    commit's run is the unfinished one with its input, and each replaced run names the one that replaced it."""
    db = tmp_path / "durable.db"
    with ExitStack() as stack:
        waiting = list(range(1, 31))
        running: list[tuple[int, object]] = []
        inputs: dict[str, int] = {}

        def turn() -> bool:
            while waiting and len(running) < 6:
                n = waiting.pop()
                call = ["start", "jobs:number", "--key", "k", "--input", str(n), "--json"]
                running.append((n, stack.enter_context(nursling(db, *call, "--on-duplicate", "cancel_existing"))))
            n, child = running.pop(0)
            answer = child.end().ok().json  # type: ignore[attr-defined]
            assert answer["outcome"] in ("created", "replaced")
            assert (answer["outcome"] == "created") == (answer["replaced_id"] is None)
            inputs[answer["run_id"]] = n
            return not running and not waiting

        while not turn():
            pass
    assert sorted(inputs.values()) == list(range(1, 31))
    with Durable(db, create=False) as it:
        assert it.check() == []
        chain = it.runs()[::-1]  # in the order of their commits
        assert {run.id: int(run.input) for run in chain} == inputs
        assert [run.status for run in chain] == [Status.CANCELLED] * 29 + [Status.PENDING]
        for run, replacer in itertools.pairwise(chain):
            assert run.error is not None
            assert replacer.id in run.error.message
        [key] = it.keys()
        assert (key.holder_id, key.status) == (chain[-1].id, Status.PENDING)
        hand_offs = it.activity(kinds=["key_handed_off"])[::-1]
        assert [(row.details["from"], row.details["to"]) for row in hand_offs] == [
            (run.id, replacer.id) for run, replacer in itertools.pairwise(chain)
        ]


def test_cancel_and_start_without_anybody_to_execute(tmp_path: Path) -> None:
    """C07: cancel, start, and a start that replaces, while no process executes anything: the next `durable run`
    executes the last one, the others are cancelled, and nothing is left behind."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    call = ["jobs:again", "--key", "k", "--input", json.dumps(str(log.path)), "--json"]
    first = quick(db, "start", *call).ok().json["run_id"]
    assert quick(db, "cancel", "--key", "k", "--json").ok().json == {
        "cancelled": 1,
        "run_id": first,
        "status": "cancelled",
    }
    second = quick(db, "start", *call).ok().json["run_id"]
    third = quick(db, "start", *call, "--on-duplicate", "cancel_existing").ok().json
    assert (third["outcome"], third["replaced_id"]) == ("replaced", second)
    executed = quick(db, "run", *call).ok().json
    assert (executed["run_id"], executed["outcome"]) == (third["run_id"], "resumed")
    with Durable(db, create=False) as it:
        assert it.check() == []
        assert [str(run.status) for run in it.runs()] == ["completed", "cancelled", "cancelled"]
    assert {line[0] for line in log.lines()} == {third["run_id"]}


@pytest.mark.parametrize("policy", ["use_existing", "run_again", "cancel_existing"])
def test_processes_that_execute_at_once(tmp_path: Path, policy: str) -> None:
    """Eight processes `durable run` one key at once with each policy: every run is over afterwards, each was executed
    by one process, and each process says how its own ended (replaced: exit 5)."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    call = ["run", "jobs:again", "--key", "k", "--input", json.dumps(str(log.path)), "--json"]
    answers = run_all(db, [[*call, "--on-duplicate", policy]] * 8)
    with Durable(db, create=False) as it:
        assert it.check() == []
        assert it.runs(unfinished=True) == []
        for answer in answers:
            document = answer.json
            run = it.run(document["run_id"])
            assert answer.code in ((0, 5) if policy == "cancel_existing" else (0,)), answer
            if answer.code == 5:
                assert run.status is Status.CANCELLED
                assert run.error is not None
                assert run.error.type == "Replaced"
        executed = {(line[0], line[1]): line[3] for line in log.lines()}
        assert len(executed) == len(log.lines())  # no step of a run twice
        for run in it.runs():
            pids = {pid for (run_id, _), pid in executed.items() if run_id == run.id}
            assert len(pids) == 1 or run.status is Status.CANCELLED
