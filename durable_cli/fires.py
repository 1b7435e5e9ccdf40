"""A worker's part in firing schedules: what is due by its clock, fired with code that its loader has, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from durable_cli.codeload import CodeLoader
from durable_cli.definition import Definition
from durable_cli.engine import Engine
from durable_cli.model import Schedule, Workflow
from durable_cli.store import schedules
from durable_cli.store.database import Tx

if TYPE_CHECKING:
    from durable_cli.worker import Counts


class Fires:
    """`until`: fire nothing that comes due later (a tick leaves it to the next). `awaits_code`: something stays due
    until its code is loaded. `say` is told (what about, what) failed.
    """

    def __init__(self, engine: Engine, code: CodeLoader, counts: Counts, say: Callable[[str, str], None]) -> None:
        self.until: int | None = None
        self.awaits_code = False
        self._engine = engine
        self._code = code
        self._counts = counts
        self._say = say

    def due(self, tx: Tx, now: int) -> list[Schedule]:
        """The schedules that somebody has to look at."""
        return schedules.due(tx, now if self.until is None else min(now, self.until))

    def fire(self, due: list[Schedule]) -> bool:
        """Fire them, each on its own. Did one start something?"""
        self.awaits_code = False
        if not due:
            return False
        from durable_cli.firing import fire  # late: it needs croniter, and most sweeps have nothing to fire

        started = False
        for seen in due:
            fired = fire(self._engine, seen, load=self._load)
            if fired is None:
                continue
            self._counts.missed += fired.missed
            if fired.outcome == "failed":
                self._counts.errors += 1
                self._say(f"schedule {seen.name}", f"schedule {seen.name}: {fired.reason}")
            elif fired.outcome != "missed":
                self._counts.fired += 1
                self._counts.skipped += fired.outcome in schedules.SKIPPED
                started = True
        return started

    def _load(self, known: Workflow) -> Definition | None:
        found = self._code.get(known)
        self.awaits_code |= found is None
        return found
