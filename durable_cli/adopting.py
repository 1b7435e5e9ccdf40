"""Who may go on with a run: whether it is due, and whether somebody is there to execute it or what it waits for.

A run that waits for others has no due time of its own. It is due all the same when one of them could go on and nobody
executes that: whoever takes up the run stays by it and executes them. Without this rule a run that a worker put to rest
before it died could be taken up by no `durable run`, and its key would be taken for ever. Only reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from durable_cli.core import lifecycle
from durable_cli.core.lifecycle import Awaited
from durable_cli.model import Run, Status
from durable_cli.owners import Alive
from durable_cli.store import history, runs
from durable_cli.store import owners as owner_rows
from durable_cli.store.database import Tx


def worker_lives(tx: Tx, alive: Alive) -> bool:
    """Is there a live worker, which executes whatever is due?"""
    return any(alive(worker) for worker in owner_rows.workers(tx))


def left_alone(tx: Tx, root: int, *, now: int, alive: Alive, started: bool, besides: Sequence[str] = ()) -> Run | None:
    """Of the runs that have to end before the one in row `root` can, one that could go on now and that nobody executes:
    no worker lives, and its owner, if it has one, is dead. `started`: also of those that it started and does not wait
    for. `besides`: workflows whose runs do not count.
    """
    if worker_lives(tx, alive):
        return None
    for run in runs.owned_needed(tx, root, started=started):
        assert run.owner is not None
        if not alive(run.owner.id) and _decide(run, now=now).yes:
            return run
    return runs.due_needed(tx, root, now, started=started, besides=besides)


def may_claim(tx: Tx, run: Run, *, now: int, alive: Alive) -> lifecycle.Claimable:
    """May somebody claim this run now? A dead owner does not count: it is taken from it first (`settling.reap`)."""
    owned = run.owner is not None and alive(run.owner.id)
    if owned or run.status is not Status.WAITING or not history.calls(tx, run.row_id):
        return _decide(run, now=now, owned=owned)
    left = left_alone(tx, run.row_id, now=now, alive=alive, started=False)
    return _decide(run, now=now, awaited=Awaited.ATTENDED if left is None else Awaited.LEFT_ALONE)


def _decide(run: Run, *, now: int, owned: bool = False, awaited: Awaited = Awaited.NOTHING) -> lifecycle.Claimable:
    behind = run.runs_after_row is not None
    return lifecycle.decide_claim(run.status, behind=behind, owned=owned, due_at=run.due_at, now=now, awaited=awaited)


def how_it_ends(tx: Tx, run: Run, alive: Alive) -> str:
    """The command that comes to the end of an unfinished run: to wait, where somebody is there to execute it; else to
    execute it here (which says why, where it is not due)."""
    attended = worker_lives(tx, alive) or (run.owner is not None and alive(run.owner.id))
    return f"durable {'runs wait' if attended else 'resume'} {run.id}"
