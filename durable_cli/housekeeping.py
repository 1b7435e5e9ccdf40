"""What a worker or a tick does besides executing: keys held too long, and what is older than the retention."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from durable_cli import settling
from durable_cli.engine import Engine
from durable_cli.errors import ClockSuspect, DurableError
from durable_cli.model import Run
from durable_cli.pruning import Pruned, batches
from durable_cli.store import pruning, runs

_EVERY_MS: Final = 60_000
_PRUNE_EVERY_MS: Final = 3_600_000
_COMPLAIN_EVERY_MS: Final = 86_400_000
_BATCH: Final = 100

log = logging.getLogger("durable.worker")


class Housekeeping:
    """Looks once a minute, prunes once an hour. `retention_ms`: None: nothing is ever pruned by itself.

    The hour, and the day between two complaints of the clock, are counted in the file: a tick that cron starts every
    minute begins anew each time.
    """

    def __init__(self, engine: Engine, *, retention_ms: int | None = None) -> None:
        self.engine = engine
        self.retention_ms = retention_ms
        self._looked_at: int | None = None
        self._pruning: Iterator[Pruned] | None = None
        self._pruned = Pruned()

    def look(self) -> bool:
        """Do what is due, and of a long piece of work only a part. True: there is more to do now. Raises errors of the
        file only."""
        now = self.engine.now()
        if self._pruning is None and _over(self._looked_at, now, _EVERY_MS):
            self._looked_at = now
            for run in self.engine.database.read(lambda tx: runs.held_too_long(tx, now, _BATCH)):
                self._report_long_hold(run, now)
            if self.retention_ms is not None:
                mark = self.engine.database.read(pruning.clock_mark)
                if _over(None if mark is None else mark.wall, now, _PRUNE_EVERY_MS):
                    self._pruning, self._pruned = batches(self.engine, older_than_ms=self.retention_ms), Pruned()
        if self._pruning is not None:
            self._prune_on(self._pruning, now)
        return self._pruning is not None

    def _report_long_hold(self, run: Run, now: int) -> None:
        try:
            done = self.engine.write(lambda tx: settling.note_held_long(tx, runs.again(tx, run), now=now))
        except DurableError as error:  # a run that cannot be written is in no other's way; the file's errors come again
            log.warning("run %s has held its key too long: %s", run.id, error)
            return
        if done:
            log.warning("run %s of %s has held its key %r too long", run.id, run.workflow, run.key)

    def _prune_on(self, pruning_now: Iterator[Pruned], now: int) -> None:
        """One batch more: what is due must not wait until years of runs are deleted, nor must a request to stop."""
        try:
            done = next(pruning_now, None)
        except ClockSuspect as error:
            self._pruning = None
            if _over(self.engine.database.read(pruning.complained_at), now, _COMPLAIN_EVERY_MS):
                self.engine.database.write(lambda tx: pruning.note_complaint(tx, now))
                log.warning("%s", error)
        except DurableError as error:
            self._pruning = None
            log.warning("nothing more pruned now: %s", error)
        else:
            if done is not None:
                self._pruned += done
                return
            self._pruning = None
            if self._pruned.runs:
                runs, keys = self._pruned.runs, self._pruned.keys_freed
                log.info("pruned %d runs that ended before the retention, freeing %d keys", runs, keys)


def _over(last: int | None, now: int, every_ms: int) -> bool:
    """Is it so long ago, or was the clock set back?"""
    return last is None or abs(now - last) >= every_ms
