"""What a worker or a tick does besides executing: keys held too long, and what is older than the retention."""

from __future__ import annotations

import logging
from typing import Final

from durable_cli import settling
from durable_cli.engine import Engine
from durable_cli.errors import ClockSuspect, DurableError
from durable_cli.pruning import prune
from durable_cli.store import runs

_EVERY_MS: Final = 60_000
_PRUNE_EVERY_MS: Final = 3_600_000
_BATCH: Final = 100

log = logging.getLogger("durable.worker")


class Housekeeping:
    """Looks once a minute, prunes once an hour. `retention_ms`: None: nothing is ever pruned by itself."""

    def __init__(self, engine: Engine, *, retention_ms: int | None = None) -> None:
        self.engine = engine
        self.retention_ms = retention_ms
        self._looked_at: int | None = None
        self._pruned_at: int | None = None

    def look(self) -> None:
        """Do what is due. Raises errors of the file only."""
        now = self.engine.now()
        if self._looked_at is not None and abs(now - self._looked_at) < _EVERY_MS:
            return
        self._looked_at = now
        self._report_long_holds(now)
        if self.retention_ms is not None and (self._pruned_at is None or abs(now - self._pruned_at) >= _PRUNE_EVERY_MS):
            self._pruned_at = now
            self._prune(self.retention_ms)

    def _report_long_holds(self, now: int) -> None:
        for run in self.engine.database.read(lambda tx: runs.held_too_long(tx, now, _BATCH)):
            done = self.engine.write(
                lambda tx, run=run: settling.note_held_long(tx, runs.get(tx, run.row_id), now=now)  # type: ignore[misc]
            )
            if done:
                log.warning("run %s of %s has held its key %r too long", run.id, run.workflow, run.key)

    def _prune(self, retention_ms: int) -> None:
        try:
            done = prune(self.engine, older_than_ms=retention_ms)
        except ClockSuspect as error:
            log.warning("%s", error)
            return
        except DurableError as error:
            log.warning("nothing pruned now: %s", error)
            return
        if done.runs:
            log.info("pruned %d runs that ended before the retention, freeing %d keys", done.runs, done.keys_freed)
