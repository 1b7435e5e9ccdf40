"""Deleting what is old: finished runs by their finish time, and activity that concerns no run any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from durable_cli import settling
from durable_cli.core import clocks
from durable_cli.engine import Engine, wall_clock
from durable_cli.errors import ClockSuspect
from durable_cli.model import Reuse, Status
from durable_cli.store import activity, pruning, runs
from durable_cli.store.database import Tx
from durable_cli.store.pruning import Place

ACTIVITY_MS = 7 * 86_400_000
"""How long activity stays at least; that of a key stays as long as any run has the key."""
_BATCH = 500
_ACTIVITY_BATCH = 2_000

_Done = tuple["Pruned", Place | None]
_Step = Callable[[Place, Tx], _Done]
_Write = Callable[[Callable[[Tx], _Done]], _Done]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, or would be: `keys_freed` had a holder among them, `never_keys_freed` one of a workflow whose
    reuse is never (the same key can run again)."""

    runs: int = 0
    keys_freed: int = 0
    never_keys_freed: int = 0
    activity: int = 0

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(
            self.runs + other.runs,
            self.keys_freed + other.keys_freed,
            self.never_keys_freed + other.never_keys_freed,
            self.activity + other.activity,
        )


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
    wanted = sorted(str(status) for status in statuses)
    if dry_run:
        now = engine.now()
        return engine.database.read(lambda tx: _would(tx, now - older_than_ms, now, workflow, wanted))
    done = batches(engine, older_than_ms=older_than_ms, workflow=workflow, statuses=wanted, trust_clock=trust_clock)
    return sum(done, Pruned())


def batches(
    engine: Engine,
    *,
    older_than_ms: int,
    workflow: str | None = None,
    statuses: list[str] | None = None,
    trust_clock: bool = False,
) -> Iterator[Pruned]:
    """`prune`, a transaction each time it is asked to go on: what each deleted. None goes over what one before saw."""
    now = engine.now()
    before, statuses = now - older_than_ms, statuses or []
    engine.database.write(lambda tx: _check_clock(tx, mark_now(engine, now), trust_clock))
    yield from _to_the_end(engine.write, lambda after, tx: _batch(tx, after, before, workflow, statuses, engine.now()))
    yield from _to_the_end(engine.database.write, lambda after, tx: _activity_batch(tx, after, now - ACTIVITY_MS))


def _to_the_end(write: _Write, step: _Step) -> Iterator[Pruned]:
    after: Place | None = pruning.FIRST
    while after is not None:
        done, after = write(partial(step, after))
        yield done


def _check_clock(tx: Tx, mark: clocks.Mark, trust: bool) -> None:
    why = clocks.suspect(pruning.clock_mark(tx), mark, pruning.newest_moment(tx))
    if why is not None and not trust:
        raise ClockSuspect(
            f"nothing was pruned: the clock may have jumped ({why})",
            hint="check `date`, then: durable prune --trust-clock --older-than ...",
        )
    pruning.leave_clock_mark(tx, mark)


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
    old = pruning.old_runs(tx, pruning.FIRST, before=before, workflow=workflow, statuses=statuses, limit=-1)
    freed, never = _keys(tx, old)
    return Pruned(len(old), freed, never, pruning.count_old_activity(tx, now - ACTIVITY_MS))


def _batch(
    tx: Tx, after: Place, before: int, workflow: str | None, statuses: list[str], now: int
) -> tuple[Pruned, Place | None]:
    """Delete the next runs. Also, where to go on; None: these were the last."""
    old = pruning.old_runs(tx, after, before=before, workflow=workflow, statuses=statuses, limit=_BATCH)
    freed, never = _keys(tx, old)
    rows = [row["id"] for row in old]
    for waiting in runs.waiting_behind_any(tx, rows):
        # Cannot be: a holder's end promotes. A damaged file is mended rather than refused.
        assert waiting.runs_after_row is not None
        ahead = runs.get(tx, waiting.runs_after_row)
        settling.hand_over(tx, from_run=ahead, to_run=waiting, reason="promoted", now=now)
    for row in old:
        if row["holds_key"]:
            activity.pruned(tx, at=now, workflow=row["workflow"], key=row["key"], run_id=row["public_id"])
    pruning.delete_runs(tx, rows)
    last = (old[-1]["finished_at"], old[-1]["id"]) if len(old) == _BATCH else None
    return Pruned(len(old), freed, never), last


def _activity_batch(tx: Tx, after: Place, before: int) -> tuple[Pruned, Place | None]:
    """Look at the next rows of activity, and delete those that concern no key which still has runs."""
    old = pruning.old_activity(tx, after, before=before, limit=_ACTIVITY_BATCH)
    gone = pruning.delete_activity(tx, [row["id"] for row in old if row["goes"]])
    return Pruned(activity=gone), (old[-1]["at"], old[-1]["id"]) if len(old) == _ACTIVITY_BATCH else None


def _keys(tx: Tx, old: list[dict[str, object]]) -> tuple[int, int]:
    holders = [str(row["workflow"]) for row in old if row["holds_key"]]
    reuse = {name: settling.reuse_of(tx, name) for name in set(holders)}
    return len(holders), sum(reuse[name] is Reuse.NEVER for name in holders)
