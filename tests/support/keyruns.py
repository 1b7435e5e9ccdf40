"""The part of the model (see `keymodel`) that is about runs that exist: executing, ending, what people do to them."""

from __future__ import annotations

from collections import Counter
from typing import Any

Run = dict[str, Any]
UNFINISHED = ("pending", "running", "waiting", "compensating")
KEEPS_THE_KEY = {  # SPEC 3.2: the statuses of a finished holder that keep the key
    "after_close": (),
    "after_failure": ("completed",),
    "never": ("completed", "failed", "cancelled", "compensated", "compensation_failed"),
}
MAX_CRASHES = 3  # the machine sets the engine to the same, so that it happens
UNDO_AGAIN_MS = 10_000
NAP_MS = 20_000
WEEK_MS = 7 * 86_400_000


def unfinished(run: Run) -> bool:
    return run["status"] in UNFINISHED


class Runs:
    """`rules`: by workflow, its `reuse`, `period` and `cap` (debounce, ms), `timeout` (ms) and `merge` (a flag)."""

    def __init__(self, rules: dict[str, dict[str, Any]], now: int) -> None:
        self.rules = rules
        self.now = now
        self.runs: dict[str, Run] = {}  # by id, in the order of their creation
        self.told: list[dict[str, Any]] = []
        self.dead: set[str] = set()
        self.workers: set[str] = set()
        self.seen: Counter[str] = Counter()

    # -- looking -----------------------------------------------------------------------------------------------------

    def holder(self, workflow: str, key: str) -> Run | None:
        found = [run for run in self._of(workflow, key) if run["holds"]]
        return found[0] if found else None

    def waiting(self, run: Run) -> Run | None:
        found = [one for one in self.runs.values() if one["behind"] == run["id"]]
        return found[0] if found else None

    def _of(self, workflow: str, key: str | None) -> list[Run]:
        return [run for run in self.runs.values() if (run["workflow"], run["key"]) == (workflow, key)]

    def kept(self, run: Run) -> bool:
        return run["status"] in KEEPS_THE_KEY[self.rules[run["workflow"]]["reuse"]]

    def claimable(self) -> set[str]:
        """Runs that a worker would take now, whoever is dead having been looked after."""
        return {
            run["id"]
            for run in self.runs.values()
            if unfinished(run)
            and run["owner"] is None
            and run["behind"] is None
            and run["due"] is not None
            and run["due"] <= self.now
        }

    # -- executing ---------------------------------------------------------------------------------------------------

    def begin(self, run: Run, by: str) -> None:
        run.update(owner=by, begun=True, due=None)
        run["status"] = "compensating" if run["status"] == "compensating" else "running"

    def look_after(self, run: Run) -> None:
        """What everybody does who meets an unfinished run: its owner may be dead, its time over."""
        if not self._reap(run):
            self._overdue(run)

    def _reap(self, run: Run) -> bool:
        """Take the run from a dead owner. True: it had killed its owners too often, and has failed."""
        if not unfinished(run) or run["owner"] not in self.dead:
            return False
        self.seen["reaped"] += 1
        run["owner"] = None
        if run["due"] is not None or run["status"] not in ("running", "compensating"):
            return False
        run["crashes"] += 1
        run["due"] = self.now
        run["status"] = "compensating" if run["status"] == "compensating" else "pending"
        if run["crashes"] < MAX_CRASHES:
            return False
        self.seen["crash loop"] += 1
        self.fail(run)
        return not unfinished(run)

    def _overdue(self, run: Run | None) -> None:
        if run is None or not unfinished(run) or run["owner"] is not None or run["status"] == "compensating":
            return
        if run["deadline"] is not None and run["deadline"] <= self.now:
            self.seen["timed out"] += 1
            self.fail(run)

    def fail(self, run: Run) -> None:
        if run["status"] == "compensating":
            self._finish(run, "compensation_failed")
        elif run["undo"]:
            self.seen["compensating"] += 1
            run.update(status="compensating", deadline=None, crashes=0)
            if run["owner"] is None:
                run["due"] = self.now
        else:
            self._finish(run, "failed")

    def turn(self, run: Run, act: str, *, undo: bool, stays: bool) -> str | None:
        """The owner executes: the function does `act`; should it undo, that succeeds if `undo`. Gives the id of the
        run that the owner has to execute next, having been left it."""
        if run["status"] == "compensating":
            return self._undo(run, undo, stays)
        if run["deadline"] is not None and run["deadline"] <= self.now:
            self.seen["timed out in its owner's hands"] += 1
            return self._failed(run, undo, stays)
        if not (self._still_naps(run) or self._still_listens(run)):
            if act == "fail":
                return self._failed(run, undo, stays)
            run.update(crashes=0, nap=None, listens=False)
            if act == "complete":
                return self._ended(run, "completed")
            run["undo"] = run["undo"] or act == "undoable"
            run["listens"] = act == "event" and not run["events"]
            run["nap"] = None if run["listens"] else self.now + NAP_MS
        until = [moment for moment in (run["nap"], run["deadline"]) if moment is not None]
        self._rest(run, min(until, default=None), stays)
        return None

    def _still_naps(self, run: Run) -> bool:
        return run["nap"] is not None and run["nap"] > self.now

    def _still_listens(self, run: Run) -> bool:
        return run["listens"] and not run["events"]

    def _rest(self, run: Run, due: int | None, stays: bool) -> None:
        run["due"] = due
        run["owner"] = run["owner"] if stays else None
        run["status"] = "compensating" if run["status"] == "compensating" else "waiting"

    def _failed(self, run: Run, undo: bool, stays: bool) -> str | None:
        if not run["undo"]:
            return self._ended(run, "failed")
        self.fail(run)
        return self._undo(run, undo, stays)

    def _undo(self, run: Run, undo: bool, stays: bool) -> str | None:
        run["crashes"] = 0
        if undo:
            return self._ended(run, "compensated")
        run["undo_failed"] += 1
        if run["undo_failed"] == 2:
            return self._ended(run, "compensation_failed")
        self._rest(run, self.now + UNDO_AGAIN_MS, stays)
        return None

    def _ended(self, run: Run, status: str) -> str | None:
        owner = run["owner"]
        return self.inherit(self._finish(run, status), owner)

    def inherit(self, heir: Run | None, by: str) -> str | None:
        """Who ends a run executes the one that takes its key, if nobody else would: a worker that lives."""
        if heir is None or (self.workers - self.dead) or heir["due"] > self.now:
            return None
        self.begin(heir, by)
        self.seen["executed what it promoted"] += 1
        return str(heir["id"])

    def go_on(self, run: Run) -> bool:
        """The owner that stayed by a resting run goes on with it, if it is due (or, being told, whenever it likes)."""
        if not run["begun"] and run["due"] > self.now:
            return False
        self.begin(run, run["owner"])
        return True

    # -- beginning ----------------------------------------------------------------------------------------------------

    def _make(
        self,
        new: str,
        workflow: str,
        key: str | None,
        value: int,
        *,
        at: int | None = None,
        behind: str | None = None,
        again: bool = False,
    ) -> Run:
        rules = self.rules[workflow]
        gathers = rules["period"] is not None and key is not None and behind is None and not again
        run = {
            "id": new,
            "workflow": workflow,
            "key": key,
            "holds": key is not None and behind is None,
            "behind": behind,
            "status": "pending",
            "input": value,
            "due": None,
            "deadline": None,
            "owner": None,
            "begun": False,
            "debounced": gathers,
            "created": self.now,
            "finished": None,
            "crashes": 0,
            "events": 0,
            "nap": None,  # until when it sleeps
            "listens": False,  # its function has got to where it waits for an event
            "undo": False,
            "undo_failed": 0,
            "error": None,
        }
        self.runs[new] = run
        if behind is None:
            self._due(run, max(self.now + (rules["period"] if gathers else 0), at or 0))
        else:
            run["due"] = at
        return run

    def _due(self, run: Run, due: int) -> None:
        timeout = self.rules[run["workflow"]]["timeout"]
        run["due"], run["deadline"] = due, None if timeout is None else due + timeout

    # -- ending and moving keys --------------------------------------------------------------------------------------

    def _finish(self, run: Run, status: str, *, promote: bool = True) -> Run | None:
        """SPEC 3.3: however it ends, the run that waits behind it takes the key, unless `reuse` keeps it."""
        run.update(status=status, owner=None, due=None, deadline=None, behind=None, finished=self.now)
        self.seen[f"ended {status}"] += 1
        waiting = self.waiting(run)
        if waiting is None or not promote:
            return None
        if self.kept(run):
            self.seen["the waiting run was cancelled: the key is kept"] += 1
            self._finish(waiting, "cancelled")
            return None
        self.seen[f"promoted after {status}"] += 1
        self._drop(run, waiting["id"], "promoted")
        waiting.update(holds=True, behind=None)
        self._due(waiting, max(self.now, waiting["due"] or 0))
        return waiting

    def _drop(self, run: Run, to: str, reason: str) -> None:
        run["holds"] = False
        details = {"from": run["id"], "to": to, "reason": reason}
        self._tell("key_handed_off", run["workflow"], run["key"], to, details)

    def cancel(self, run: Run) -> bool:
        if run["status"] == "compensating" or not unfinished(run):
            return False
        if run["behind"] is not None:
            self.seen["cancelled a waiting run"] += 1
        self._finish(run, "cancelled")
        return True

    def retry(self, run: Run) -> str:
        """ "ok", "status" (refused for its status) or the id of the run that has the key."""
        if run["status"] not in ("failed", "cancelled"):
            return "status"
        if run["key"] is not None and not run["holds"]:
            newer = self.holder(run["workflow"], run["key"])
            if newer is not None and (unfinished(newer) or self.kept(newer)):
                self.seen["retry: refused for the key"] += 1
                return str(newer["id"])
            if newer is not None:
                newer["holds"] = False
            self.seen["retry: took the key back"] += 1
            self._tell("key_retaken", run["workflow"], run["key"], run["id"], {"from": newer["id"] if newer else None})
            run["holds"] = True
        run.update(status="pending", finished=None, crashes=0, debounced=False, error=None)
        self._due(run, self.now)
        self.seen["retry"] += 1
        return "ok"

    def rerun(self, new: str, run: Run) -> tuple[str, str]:
        holder = None if run["key"] is None else self.holder(run["workflow"], run["key"])
        if holder is not None:
            self.look_after(holder)
            holder = self.holder(run["workflow"], run["key"])
        if unfinished(run):
            return "unfinished", run["id"]
        if holder is not None and (unfinished(holder) or self.kept(holder)):
            self.seen["rerun: refused for the key"] += 1
            self._duplicate(holder, "error", run["input"], holder["input"], lost=run["input"])
            return "taken", holder["id"]
        if holder is not None:
            self._drop(holder, new, "start")
        self._make(new, run["workflow"], run["key"], run["input"], again=True)
        self.seen["rerun"] += 1
        return "created", new

    def release(self, run: Run) -> str:
        if unfinished(run):
            return "unfinished"
        if not run["holds"]:
            return "no key"
        run["holds"] = False
        self._tell("key_released", run["workflow"], run["key"], run["id"], {"by": "me"})
        self.seen["released"] += 1
        return "ok"

    def prune(self, older_than: int) -> tuple[int, int, int]:
        """How many runs went, how many keys that freed, how many of those under `never`."""
        old = [run for run in self.runs.values() if run["finished"] is not None]
        old = [run for run in old if run["finished"] < self.now - older_than]
        holders = [run for run in old if run["holds"]]
        for run in sorted(old, key=lambda run: run["finished"]):
            del self.runs[run["id"]]
            if run["holds"]:
                self._tell("key_pruned", run["workflow"], run["key"], run["id"], {})
                self.seen["pruned a holder"] += 1
        alive = {(run["workflow"], run["key"]) for run in self.runs.values()}
        self.told = [
            row for row in self.told if row["at"] >= self.now - WEEK_MS or (row["workflow"], row["key"]) in alive
        ]
        return len(old), len(holders), sum(self.rules[run["workflow"]]["reuse"] == "never" for run in holders)

    # -- events ------------------------------------------------------------------------------------------------------

    def _send(self, run: Run) -> None:
        run["events"] += 1
        if run["listens"] and run["status"] == "waiting":
            self.seen["an event woke a run"] += 1
            if run["due"] is None or run["due"] > self.now:
                run["due"] = self.now

    def send_event(self, run: Run) -> bool:
        if not unfinished(run):
            return False
        self._send(run)
        return True

    # -- activity ----------------------------------------------------------------------------------------------------

    def _duplicate(
        self,
        holder: Run,
        outcome: str,
        value: int,
        other: int,
        *,
        lost: int | None = None,
        runs_after: str | None = None,
    ) -> None:
        changed = value != other
        details: dict[str, Any] = {"outcome": outcome, "input_changed": changed}
        if changed and lost is not None:
            details["input"] = lost
        if runs_after is not None:
            details["runs_after"] = runs_after
        self._tell("key_duplicate", holder["workflow"], holder["key"], holder["id"], details)

    def _tell(self, kind: str, workflow: str, key: str, run: str, details: dict[str, Any]) -> None:
        row = {"at": self.now, "kind": kind, "workflow": workflow, "key": key, "run": run, "details": details}
        self.told.append(row)
