"""What a worker or a tick does besides executing: keys held too long, a clock that jumped, and what is older than the
retention."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from durable_cli import settling, timekeeping
from durable_cli.engine import Engine
from durable_cli.errors import ClockSuspect, DurableError
from durable_cli.model import Run
from durable_cli.pruning import Pruned, batches
from durable_cli.store import clock, runs
from durable_cli.store.database import Tx

_EVERY_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_COMPLAIN_EVERY_MS: Final = 86_400_000
_BATCH: Final = 100

log = logging.getLogger("durable.worker")


class Housekeeping:
    """Looks once a minute; once an hour it looks at the clock, and prunes. `retention_ms`: None: nothing is ever pruned by itself.

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
            if self.retention_ms is not None and self._over_since(clock.PRUNED, now, _HOUR_MS):
                self._pruning, self._pruned = batches(self.engine, older_than_ms=self.retention_ms), Pruned()
            else:
                self._look_at_clock(now)
        if self._pruning is not None:
            self._prune_on(self._pruning, now)
        return self._pruning is not None

    def _look_at_clock(self, now: int) -> None:
        """So that a jump is seen where nobody prunes, and the first prune has a mark to judge by."""
        seen = timekeeping.mark_now(self.engine, now)

        def has_news(tx: Tx) -> bool:
            believed = clock.mark(tx, clock.BELIEVED)
            if not _over(None if believed is None else believed.wall, now, _HOUR_MS):
                return False
            return timekeeping.doubt(tx, seen) is None or not timekeeping.recorded(tx, seen)

        if self.engine.database.read(has_news):
            self.engine.database.write(lambda tx: timekeeping.look(tx, seen))

    def _over_since(self, what: str, now: int, every_ms: int) -> bool:
        return _over(self.engine.database.read(lambda tx: clock.moment(tx, what)), now, every_ms)

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
            if self._over_since(clock.COMPLAINED, now, _COMPLAIN_EVERY_MS):
                self.engine.database.write(lambda tx: clock.note_moment(tx, clock.COMPLAINED, now))
                log.warning("%s; %s", error, error.hint)
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
