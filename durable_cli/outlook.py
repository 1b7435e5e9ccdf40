"""What there is to do in a file at a moment: what `durable tick --dry-run` tells."""

from __future__ import annotations

from dataclasses import dataclass

from durable_cli.engine import Engine
from durable_cli.store import runs, schedules
from durable_cli.store.database import Tx


@dataclass(frozen=True, slots=True)
class Due:
    """What there is to do at a moment, by the ids of the runs."""

    orphans: tuple[str, ...]
    overdue: tuple[str, ...]
    due: tuple[str, ...]
    schedules: tuple[str, ...] = ()  # by name


def look(engine: Engine) -> Due:
    """What a tick would look after and execute now. Writes nothing."""

    def read(tx: Tx) -> Due:
        now = engine.now()
        orphans = [one.run_id for one in runs.claims(tx) if not engine.alive(one.owner_id)]
        overdue = [run.id for run in runs.overdue(tx, now, -1)]
        due = [run.id for run in runs.due(tx, now, -1) if run.id not in overdue]
        fires = [one.name for one in schedules.due(tx, now)]
        return Due(tuple(orphans), tuple(overdue), tuple(due), tuple(fires))

    return engine.database.read(read)
