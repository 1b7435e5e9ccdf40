"""What SPEC section 3 says about keys, once more and on purpose: plain dicts, and nothing of the engine's.

The machine in `keymachine` does each thing to the real engine and to this model, and compares. A rule that is wrong in
both places was misread twice; to make that unlikely the tables are written here as the specification prints them, and
everything that ends a run goes through one function, as it says it has to.

`Model.seen` counts which branches were taken, so that a run of the machine can prove that it has been everywhere.
"""

from __future__ import annotations

from keyruns import Run, Runs, unfinished


class Model(Runs):
    """Starts by the tables of SPEC 3.3 and 3.4."""

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(
        self,
        new: str,
        workflow: str,
        key: str | None,
        value: int,
        policy: str,
        *,
        by: str | None = None,
        delay: int | None = None,
    ) -> tuple[str, str, bool]:
        """`new`: the id that a run would get. `by`: who executes what it starts. Gives (outcome or "taken", the run
        it names, whether `by` has a run to execute now)."""
        at = None if delay is None else self.now + delay
        if key is None:
            run = self._make(new, workflow, None, value, at=at)
            return "created", new, self._claim(run, by)
        holder = self.holder(workflow, key)
        if holder is not None and not (policy == "cancel_existing" and self._replaceable(holder)):
            crashed = self._reap(holder)
            if crashed and by is not None and policy in ("use_existing", "error"):
                self.seen["start: the orphan had died too often"] += 1
                self._duplicate(holder, "use_existing", value, holder["input"], lost=value)
                heir = self.holder(workflow, key)
                return "resumed", holder["id"], heir is not None and unfinished(heir) and self._claim(heir, by)
            self._overdue(self.holder(workflow, key))
            holder = self.holder(workflow, key)
        return self._decide(new, workflow, key, value, policy, holder, by, at)

    def _decide(
        self,
        new: str,
        workflow: str,
        key: str,
        value: int,
        policy: str,
        holder: Run | None,
        by: str | None,
        at: int | None,
    ) -> tuple[str, str, bool]:
        if holder is None or not (unfinished(holder) or self.kept(holder)):
            if holder is not None:
                self._drop(holder, new, "start")
                self.seen["start: a finished holder let go"] += 1
            run = self._make(new, workflow, key, value, at=at)
            return "created", new, self._claim(run, by)
        if self._gathers(holder) and self.rules[workflow]["period"] is not None:
            return self._debounce(holder, value, by, at)
        if not unfinished(holder):
            self.seen["start: the key was kept"] += 1
            if policy == "use_existing":
                self._duplicate(holder, "use_existing", value, holder["input"], lost=value)
                return "existing", holder["id"], False
            return self._refuse(holder, value)
        orphan = by is not None and holder["owner"] is None
        if policy in ("use_existing", "error"):
            mine = orphan and self._claim(holder, by)
            if mine:
                self.seen["start: took up an orphan"] += 1
            elif policy == "error":
                return self._refuse(holder, value)
            self._duplicate(holder, "use_existing", value, holder["input"], lost=value)
            return "resumed" if mine else "existing", holder["id"], mine
        if policy == "cancel_existing":
            if holder["status"] == "compensating":
                self.seen["start: compensating, cannot be replaced"] += 1
                return self._refuse(holder, value)
            return self._replace(new, holder, value, by, at)
        if policy == "run_again":
            return self._again(new, holder, value, by, orphan, at)
        self._send(holder)
        self._duplicate(holder, "send_event", value, holder["input"])
        self.seen["start: sent an event"] += 1
        return "event_sent", holder["id"], orphan and self._claim(holder, by)

    def _refuse(self, holder: Run, value: int) -> tuple[str, str, bool]:
        self.seen["start: refused"] += 1
        self._duplicate(holder, "error", value, holder["input"], lost=value)
        return "taken", holder["id"], False

    def _replaceable(self, holder: Run) -> bool:
        """Somebody's: replaced without a look whether he is dead, unless it then is also overdue."""
        if holder["owner"] is None or holder["status"] == "compensating" or self._gathers(holder):
            return False
        over = holder["deadline"] is not None and holder["deadline"] <= self.now and holder["owner"] in self.dead
        if over:
            self.seen["start: an overdue orphan was not replaced"] += 1
        return not over

    def _gathers(self, holder: Run) -> bool:
        return holder["debounced"] and not holder["begun"] and holder["status"] == "pending"

    def _debounce(self, holder: Run, value: int, by: str | None, at: int | None) -> tuple[str, str, bool]:
        rules = self.rules[holder["workflow"]]
        self._duplicate(holder, "debounced", self._newer(holder, value), holder["input"], lost=holder["input"])
        due = self.now + rules["period"]
        if rules["cap"] is not None and holder["created"] + rules["cap"] < due:
            due = max(self.now, holder["created"] + rules["cap"])
            self.seen["debounce: capped"] += 1
        if holder["due"] <= self.now:
            self.seen["debounce: merged although due"] += 1
        self.seen["debounce: merged"] += 1
        holder["input"] = self._newer(holder, value)
        self._due(holder, due if at is None else max(due, at))
        return "merged", holder["id"], holder["owner"] is None and self._claim(holder, by)

    def _replace(self, new: str, holder: Run, value: int, by: str | None, at: int | None) -> tuple[str, str, bool]:
        self._duplicate(holder, "cancel_existing", value, holder["input"], lost=holder["input"])
        waiting = self.waiting(holder)
        self._finish(holder, "cancelled", promote=False)
        holder["error"] = new
        self._drop(holder, new, "replaced")
        run = self._make(new, holder["workflow"], holder["key"], value, at=at)
        self.seen["start: replaced"] += 1
        if waiting is not None:
            waiting["behind"] = new
            self.seen["start: replaced in front of a waiting run"] += 1
        return "replaced", new, self._claim(run, by)

    def _again(
        self, new: str, holder: Run, value: int, by: str | None, orphan: bool, at: int | None
    ) -> tuple[str, str, bool]:
        if not holder["begun"]:
            self._duplicate(holder, "run_again", self._newer(holder, value), holder["input"], lost=holder["input"])
            holder["input"] = self._newer(holder, value)
            if at is not None and holder["due"] < at:
                self._due(holder, at)
            self.seen["run_again: merged into the holder"] += 1
            return "merged", holder["id"], orphan and self._claim(holder, by)
        waiting = self.waiting(holder)
        if waiting is None:
            self._duplicate(holder, "run_again", value, holder["input"], runs_after=new)
            self._make(new, holder["workflow"], holder["key"], value, behind=holder["id"], at=at)
            self.seen["run_again: queued"] += 1
            return "queued", new, orphan and self._claim(holder, by)
        newer, older = self._newer(waiting, value), waiting["input"]
        self._duplicate(holder, "run_again", newer, older, lost=older, runs_after=waiting["id"])
        waiting["input"] = newer
        if at is not None:
            waiting["due"] = max(at, waiting["due"] or 0)
        self.seen["run_again: merged into the waiting run"] += 1
        return "merged", waiting["id"], orphan and self._claim(holder, by)

    def _newer(self, run: Run, value: int) -> int:
        return run["input"] + 1000 + value if self.rules[run["workflow"]]["merge"] else value

    def _claim(self, run: Run, by: str | None) -> bool:
        """Executed by `by` from now on, or (a debounced run that is not due) looked after until it is."""
        if by is None or run["owner"] is not None or run["behind"] is not None:
            return False
        if run["due"] is None or run["due"] > self.now:
            if not self._gathers(run):
                return False
            run["owner"] = by
            self.seen["debounce: stayed by"] += 1
            return True
        self.begin(run, by)
        return True
