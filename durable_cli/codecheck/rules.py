"""The rules of `durable check`: what replay cannot forgive, and what would be right. `docs/replay.md` shows each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """`severity`: "error" (replay, or the engine, goes wrong by it) or "warning" (seldom what was meant)."""

    id: str
    severity: str
    right: str


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One place in the code. `line` and `column` count from 1; `workflow`: whose code it is ("": the file's)."""

    file: str
    line: int
    column: int
    rule: str
    severity: str
    message: str
    right: str
    workflow: str


RULES: Final = {
    rule.id: rule
    for rule in (
        Rule("clock", "error", "ctx.now() is recorded; or read the clock inside a step"),
        Rule("random", "error", "ctx.random() and ctx.uuid() are recorded; or draw it inside a step"),
        Rule("environment", "warning", "read it inside a step, or make it part of the input"),
        Rule("effect", "error", 'do it inside a step: ctx.run("name", function, ...)'),
        Rule("input", "error", "ctx.wait_for_input(...) asks a person and holds no process"),
        Rule("sleep", "error", 'ctx.sleep("name", duration) survives a reboot and holds no thread'),
        Rule("step-name", "error", "a name that is the same on every replay: a constant, or made of the input"),
        Rule("nested", "error", "use the operation in the workflow function, and give the step its result"),
        Rule("closure", "error", "return the value from the step: x = ctx.run(...)"),
        Rule("branch-state", "warning", "return the value from the branch: ctx.parallel gives all of them by name"),
        Rule("global", "error", "keep it in a variable of the function, or in a step's result"),
        Rule("swallow", "error", "catch StepFailed, or raise again: a bare `raise` at the end of the handler"),
        Rule("broad-except", "warning", "catch StepFailed: that is what a step which failed raises"),
        Rule("unordered", "error", "sorted(...) has the same order on every replay"),
        Rule(
            "concurrency",
            "error",
            "ctx.parallel, ctx.map and ctx.race; each branch uses its own context",
        ),
        Rule("await", "error", "await it: without that it never happens"),
        Rule("no-steps", "warning", 'put the work into steps: ctx.run("name", function, ...)'),
        Rule("suppression", "warning", "# durable: ok RULE, with the id of a rule"),
    )
}
