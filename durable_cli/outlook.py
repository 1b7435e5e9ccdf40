"""What there is to do in a file at a moment: what `durable tick --dry-run` tells.

Orphans are reaped and overdue runs ended as a tick would do it, which decides what else is due; then it is rolled back.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable_cli import settling
from durable_cli.engine import Engine
from durable_cli.store import runs, schedules
from durable_cli.store.database import Tx


@dataclass(frozen=True, slots=True)
class Due:
    """What there is to do at a moment, by the ids of the runs, each of them once: `due` are the others."""

    orphans: tuple[str, ...]
    overdue: tuple[str, ...]
    due: tuple[str, ...]
    schedules: tuple[str, ...] = ()  # by name


def look(engine: Engine) -> Due:
    """What a tick would look after and execute now. Writes nothing."""

    def rehearsed(tx: Tx, _: int) -> Due:
        now = engine.now()
        dead = [one for one in runs.claims(tx) if not engine.alive(one.owner_id)]
        for one in dead:
            settling.reap(tx, runs.get(tx, one.row_id), now=now, alive=engine.alive)
        late = runs.overdue(tx, now, -1)
        for run in late:
            settling.end_overdue(tx, run, now=now)
        overdue = [run.id for run in late]
        orphans = [one.run_id for one in dead if one.run_id not in overdue]
        told = {*overdue, *orphans}
        due = [run.id for run in runs.due(tx, now, -1) if run.id not in told]
        fires = [one.name for one in schedules.due(tx, now)]
        return Due(tuple(orphans), tuple(overdue), tuple(due), tuple(fires))

    return engine.rehearse(rehearsed)
