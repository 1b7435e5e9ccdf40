"""What is going on in a file at a moment: what `durable top` shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from durable_cli.engine import Engine
from durable_cli.model import Activity, Run, Status, Step
from durable_cli.store import history, overview, reports
from durable_cli.store import owners as owner_rows
from durable_cli.store.database import Tx

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Overview:
    """One moment. `finished_1h`: runs that ended in the last hour, by status; `runs`: unfinished ones; `waits` and
    `last_steps` by the id of a run: its operations that wait, and the one recorded last. `processes`: the live ones,
    each with `pid`, `kind` ("worker" or "run"), `created_at` and `runs`, how many it has. `activity`: newest first."""

    at: int
    unfinished: dict[str, int]
    finished_1h: dict[str, int]
    keys_held: int
    runs: list[Run]
    waits: dict[str, list[Step]]
    last_steps: dict[str, str]
    processes: list[dict[str, Any]]
    activity: list[Activity]


def look(engine: Engine, *, limit: int | None, activity: int) -> Overview:
    """One read snapshot: at most `limit` runs and so many rows of activity."""

    def read(tx: Tx) -> Overview:
        now = engine.now()
        found = [_seen(engine, run) for run in overview.runs(tx, limit)]
        names = {run.row_id: run.id for run in found}
        waiting = history.waiting_of(tx, [run.row_id for run in found if run.status is Status.WAITING])
        return Overview(
            at=now,
            unfinished=overview.unfinished(tx),
            finished_1h=overview.finished(tx, now - HOUR_MS),
            keys_held=overview.keys_held(tx),
            runs=found,
            waits={names[row]: steps for row, steps in waiting.items()},
            last_steps={names[row]: name for row, name in overview.last_steps(tx, list(names)).items()},
            processes=[one for one in owner_rows.every(tx) if engine.alive(one["id"])],
            activity=reports.activity(tx, limit=activity),
        )

    return engine.database.read(read)


def _seen(engine: Engine, run: Run) -> Run:
    if run.owner is None:
        return run
    return replace(run, owner=replace(run.owner, alive=engine.alive(run.owner.id)))
