"""Deleting what is old: finished runs by their finish time, and activity that concerns no run any more."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from durable_cli import settling
from durable_cli.core import clocks
from durable_cli.engine import Engine, wall_clock
from durable_cli.errors import ClockSuspect
from durable_cli.model import Reuse, Status
from durable_cli.store import activity, pruning, runs
from durable_cli.store.database import Tx

ACTIVITY_MS = 7 * 86_400_000
"""How long activity stays at least; that of a key stays as long as any run has the key."""
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, or would be: `keys_freed` had a holder among them, `never_keys_freed` one of a workflow whose
    reuse is never (the same key can run again)."""

    runs: int = 0
    keys_freed: int = 0
    never_keys_freed: int = 0
    activity: int = 0


def prune(
    engine: Engine,
    *,
    older_than_ms: int,
    workflow: str | None = None,
    statuses: Iterable[Status] = (),
    dry_run: bool = False,
    trust_clock: bool = False,
) -> Pruned:
    """Delete finished runs that ended more than so long ago. Raises ClockSuspect where the clock seems to have jumped.

    In batches, each a transaction of its own, so that nobody waits long; stopped in between, the rest is left.
    """
    now = engine.now()
    wanted = sorted(str(status) for status in statuses)
    before = now - older_than_ms
    mark = mark_now(engine, now)
    if dry_run:

        def would(tx: Tx) -> Pruned:
            _check_clock(tx, mark, trust_clock)
            return _would(tx, before, now, workflow, wanted)

        return engine.database.read(would)

    def check_and_mark(tx: Tx) -> None:
        _check_clock(tx, mark, trust_clock)
        pruning.leave_clock_mark(tx, mark)

    engine.database.write(check_and_mark)
    total = Pruned()
    while True:
        done = engine.write(lambda tx: _batch(tx, before, workflow, wanted, now))
        total = Pruned(
            total.runs + done.runs,
            total.keys_freed + done.keys_freed,
            total.never_keys_freed + done.never_keys_freed,
        )
        if done.runs < _BATCH:
            break
    rows = engine.database.write(lambda tx: pruning.delete_old_activity(tx, now - ACTIVITY_MS))
    return Pruned(total.runs, total.keys_freed, total.never_keys_freed, rows)


def _check_clock(tx: Tx, mark: clocks.Mark, trust: bool) -> None:
    why = clocks.suspect(pruning.clock_mark(tx), mark, pruning.newest_moment(tx))
    if why is not None and not trust:
        raise ClockSuspect(
            f"nothing was pruned: the clock may have jumped ({why})",
            hint="check `date`, then: durable prune --trust-clock --older-than ...",
        )


def mark_now(engine: Engine, now: int) -> clocks.Mark:
    """This moment by both clocks; by the wall clock alone where that is injected or the other unknown."""
    if engine.now is not wall_clock:
        return clocks.Mark(now, None, None)
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return clocks.Mark(now, boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)
    except (OSError, AttributeError):
        return clocks.Mark(now, None, None)


def _would(tx: Tx, before: int, now: int, workflow: str | None, statuses: list[str]) -> Pruned:
    old = pruning.old_runs(tx, before=before, workflow=workflow, statuses=statuses, limit=-1)
    freed, never = _keys(tx, old)
    rows = pruning.count_old_activity(tx, now - ACTIVITY_MS, without=[row["id"] for row in old])
    return Pruned(len(old), freed, never, rows)


def _batch(tx: Tx, before: int, workflow: str | None, statuses: list[str], now: int) -> Pruned:
    old = pruning.old_runs(tx, before=before, workflow=workflow, statuses=statuses, limit=_BATCH)
    freed, never = _keys(tx, old)
    for row in old:
        waiting = runs.waiting_behind(tx, row["id"])
        if waiting is not None:  # cannot be: a holder's end promotes; a damaged file is mended rather than refused
            settling.hand_over(tx, from_run=runs.get(tx, row["id"]), to_run=waiting, reason="promoted", now=now)
        if row["holds_key"]:
            activity.pruned(tx, at=now, workflow=row["workflow"], key=row["key"], run_id=row["public_id"])
    pruning.delete_runs(tx, [row["id"] for row in old])
    return Pruned(len(old), freed, never)


def _keys(tx: Tx, old: list[dict[str, object]]) -> tuple[int, int]:
    holders = [str(row["workflow"]) for row in old if row["holds_key"]]
    reuse = {name: settling.reuse_of(tx, name) for name in set(holders)}
    return len(holders), sum(reuse[name] is Reuse.NEVER for name in holders)
