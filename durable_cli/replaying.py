"""Starting an input again, on purpose, that a key had dropped or superseded."""

from __future__ import annotations

import shlex

from durable_cli import foreground, starting
from durable_cli.definition import Definition
from durable_cli.engine import Engine
from durable_cli.errors import AlreadyReplayed
from durable_cli.model import Outcome
from durable_cli.request import Request, merging
from durable_cli.store import activity
from durable_cli.store.database import Tx


def refuse_again(key: str, row: int, run_id: str | None) -> None:
    """Raises AlreadyReplayed: the newest input that was lost may be meant once, not each time a command is repeated.
    `run_id`: the run that it went to when it was started again."""
    if run_id is not None:
        raise AlreadyReplayed(
            f"the newest dropped input of key {key!r} was started again before, in run {run_id}",
            run_id=run_id,
            hint=f"durable keys replay {shlex.quote(key)} {row}   # starts it once more",
        )


def replay(engine: Engine, definition: Definition, request: Request, *, key: str, row: int | None) -> starting.Started:
    """The start of `request`, whose input is the one of that row of activity (None: of the newest), by the ordinary
    rules of its key, with a record of what it brings again; dropped once more, the record is that duplicate's.
    """

    def attempt(request: Request) -> starting.Started:
        def write(tx: Tx) -> starting.Started:
            told = request.replayed
            assert told is not None
            if row is None:
                refuse_again(key, told, activity.replayed_as(tx, workflow=request.workflow, key=key, row=told))
            now = engine.now()
            started = starting.start(tx, request, now=now, alive=engine.alive, owner_id=None)
            if started.result is not None and started.result.outcome is not Outcome.EXISTING:
                activity.replayed(
                    tx,
                    at=now,
                    workflow=request.workflow,
                    key=key,
                    run_id=started.result.run_id,
                    row=told,
                    did=str(started.result.outcome),
                )
            return started

        return engine.write(write, landed=lambda tx: foreground.landed_start(tx, request, engine))

    return merging(definition, request, attempt)
