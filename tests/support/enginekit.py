"""For the tests of the engine: runs in any state, owners that are dead or alive, and processes that really die.

States are reached by real operations wherever the library has one. What no operation of a test can reach and hold
still (a run that is just being executed by somebody else) is written into its row; the constraints of the schema and
`Durable.check` judge whether such a row could be.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, Literal, NoReturn

from durable_cli import Durable, Run, Status, workflow
from durable_cli.definition import WorkflowFunction
from durable_cli.model import Activity, Claim
from durable_cli.store import transitions

UNFINISHED: Final = ("pending", "running", "waiting", "compensating")
FINISHED: Final = ("completed", "failed", "cancelled", "compensated", "compensation_failed")
Ownership = Literal["none", "alive", "dead"]


class Boom(Exception):
    """What a step of a test raises."""


def define_job(
    reuse: Any = "after_close", on_duplicate: str = "use_existing", name: str = "job"
) -> WorkflowFunction[..., Any]:
    """A workflow of one step, "work", that gives its input back; it fails for an input `{"fail": ...}`.

    All of them are one workflow to the file (same place), so defining it again is editing its policies.
    """

    @workflow(name=name, reuse=reuse, on_duplicate=on_duplicate)
    def job(ctx: Any, what: Any = None) -> Any:
        return ctx.run("work", work, what)

    return job


def work(what: Any) -> Any:
    """The step of `define_job`."""
    if isinstance(what, dict) and "fail" in what:
        raise Boom(str(what["fail"]))
    return what


def change(durable: Durable, sql: str, **bindings: object) -> int:
    """Change rows of a test's file by hand."""
    return durable._engine.database.write(lambda tx: tx.change(sql, **bindings))


def dead_owner(durable: Durable) -> int:
    """An owner that holds no lock: its process is gone."""
    return durable._engine.database.write(
        lambda tx: tx.insert("INSERT INTO durable_owners (pid, kind, created_at) VALUES (4194304, 'run', 0)")
    )


def live_owner(durable: Durable) -> int:
    """The owner that `durable` is."""
    return durable._engine.write_as_owner(lambda tx, owner_id: owner_id)


def own(durable: Durable, run_id: str, owner_id: int | None) -> None:
    """The run was claimed once, and belongs to that owner now."""
    change(
        durable,
        "UPDATE durable_runs SET owner_id = :owner, epoch = epoch + 1, started_at = coalesce(started_at, created_at)"
        " WHERE public_id = :id",
        owner=owner_id,
        id=run_id,
    )


def claim(durable: Durable, run_id: str) -> Claim:
    """Make `durable` the owner of a run that has none."""
    row, engine = durable.run(run_id).row_id, durable._engine

    def write(tx: Any, owner_id: int) -> Claim:
        epoch = transitions.claim(tx, row, owner_id, engine.now())
        assert epoch is not None
        return Claim(row, run_id, owner_id, epoch)

    return engine.write_as_owner(write)


def put(
    durable: Durable,
    job: WorkflowFunction[..., Any],
    status: str,
    *,
    key: str | None,
    input: Any = None,
    owner: int | None = None,
    due_in_ms: int | None = None,
) -> str:
    """A run of `job` with that status; an unfinished one belongs to `owner`. Returns its id.

    `pending` without an owner was never started; other unfinished ones were, and a `running` one has a dead owner at
    least.
    """
    if status in ("failed", "compensated", "compensation_failed"):
        run_id = durable.execute(job, {"fail": input}, key=key).run.id
        change(durable, "UPDATE durable_runs SET status = :status WHERE public_id = :id", status=status, id=run_id)
        return run_id
    if status == "completed":
        return durable.execute(job, input, key=key).run.id
    run_id = durable.start(job, input, key=key).run_id
    if status == "cancelled":
        durable.cancel(run_id)
    elif status != "pending" or owner is not None:
        own(durable, run_id, dead_owner(durable) if owner is None and status == "running" else owner)
        due = durable._engine.now() + (60_000 if due_in_ms is None else due_in_ms)
        change(
            durable,
            "UPDATE durable_runs SET status = :status, error = :error, due_at = :due WHERE public_id = :id",
            status=status,
            error='{"type":"Boom","message":"x"}' if status == "compensating" else None,
            due={"waiting": due, "pending": durable._engine.now()}.get(status),
            id=run_id,
        )
    assert durable.run(run_id).status == status
    return run_id


def told(durable: Durable, key: str, kind: str | None = None) -> list[Activity]:
    """What happened to a key, oldest first."""
    return durable.activity(key=key, kinds=[kind] if kind else ())[::-1]


def duplicates(durable: Durable, key: str) -> list[dict[str, Any]]:
    """The details of the duplicates of a key, oldest first."""
    return [one.details for one in told(durable, key, "key_duplicate")]


def snapshot(durable: Durable) -> list[dict[str, Any]]:
    """Every run with its steps as plain values: to show that something changed nothing."""
    return [asdict(durable.run(run.id)) for run in durable.runs()]


def statuses(durable: Durable, key: str) -> list[tuple[Status, bool]]:
    """(status, holds the key) of every run of a key, oldest first."""
    return [(run.status, run.holds_key) for run in durable.runs(key=key)][::-1]


def holder(durable: Durable, key: str, workflow: str = "job") -> Run | None:
    """The run that holds the key."""
    return durable.key(workflow, key).holder


def in_child(function: Callable[[], object]) -> int:
    """Call `function` in a forked process and wait for its end. Returns its exit status (0: it returned).

    The child leaves by `os._exit`, as a killed process does: nothing is given back, no `finally` runs.
    """
    pid = os.fork()
    if pid == 0:
        _be_the_child(function)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _be_the_child(function: Callable[[], object]) -> NoReturn:
    code = 70
    try:
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


CRASHED: Final = 42


def die() -> NoReturn:
    """End this process here and now, as kill -9 would."""
    os._exit(CRASHED)
