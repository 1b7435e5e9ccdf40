"""The machine of keys (tests/support/keymachine.py), for as long as you like.

    python tests/engine/key_machine.py --rules 200000     (about 6 minutes on 2 cores)
    python tests/engine/key_machine.py --mutants

Prints one line, `N rules, M violations`; a violation is shrunk and shown on stderr, and the exit code is 1. With
`--mutants` the engine is broken on purpose, in one place at a time, and the machine has to notice each:
`mutants killed N/N`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from keymachine import KeyMachine
from keyworld import SEEN

from durable_cli import settling, starting
from durable_cli.core import arbitration
from durable_cli.model import Policy, Reuse, Status
from durable_cli.store import activity, runs, transitions

SOMETIMES = (
    "answered created",
    "answered existing",
    "answered replaced",
    "answered queued",
    "answered merged",
    "answered event_sent",
    "answered resumed",
    "answered taken",
    "claimed",
    "crash loop",
    "crashed",
    "compensating",
    "debounce: capped",
    "debounce: merged",
    "debounce: merged although due",
    "debounce: stayed by",
    "ended cancelled",
    "ended compensated",
    "ended compensation_failed",
    "ended completed",
    "ended failed",
    "executed what it promoted",
    "an event woke a run",
    "late work came to nothing",
    "promoted after cancelled",
    "promoted after completed",
    "promoted after failed",
    "pruned a holder",
    "reaped",
    "released",
    "rerun",
    "rerun: refused for the key",
    "retry",
    "retry: refused for the key",
    "retry: took the key back",
    "run_again: merged into the holder",
    "run_again: merged into the waiting run",
    "start: a finished holder let go",
    "start: compensating, cannot be replaced",
    "start: replaced",
    "start: replaced in front of a waiting run",
    "start: the key was kept",
    "start: took up an orphan",
    "the waiting run was cancelled: the key is kept",
    "timed out",
    "timed out in its owner's hands",
)
"""What has to happen again and again, or the machine has proved nothing."""
_STEPS = 50


def run(examples: int, number: int, *, shrink: bool) -> None:
    """So many examples from this seed. Raises what is wrong."""
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    options = settings(
        max_examples=examples,
        stateful_step_count=_STEPS,
        deadline=None,
        database=None,
        derandomize=False,
        phases=phases,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    # Hypothesis keeps the seed on the class.
    run_state_machine_as_test(seed(number)(type("Machine", (KeyMachine,), {})), settings=options)


def hardly_seen(at_least: int) -> list[str]:
    """Branches that were taken less often."""
    return [name for name in SOMETIMES if SEEN[name] < at_least]


def soak(rules: int, number: int) -> tuple[int, int]:
    """Rules and violations."""
    violations = 0
    while SEEN["rules"] < rules and violations < 5:
        try:
            run(100, number, shrink=True)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            violations += 1
            traceback.print_exception(error, limit=-3)
        number += 1
    return SEEN["rules"], violations


# -- mutants -------------------------------------------------------------------------------------------------------


def _table(table: dict[Any, Any], key: Any, value: Any) -> Any:
    return mock.patch.dict(table, {key: value})


def _instead(module: Any, name: str, made: Callable[[Any], Any]) -> Any:
    return mock.patch.object(module, name, made(getattr(module, name)))


def _with(**changed: Any) -> Callable[[Any], Any]:
    """The same function, called with other arguments."""
    return lambda real: lambda *args, **kwargs: real(*args, **(kwargs | changed))


def _nothing(_: Any) -> Any:
    return lambda *args, **kwargs: None


def _always(answer: Any) -> Callable[[Any], Any]:
    return lambda _: lambda *args, **kwargs: answer


MUTANTS: dict[str, Callable[[], Any]] = {
    "after_failure lets a completed holder go": lambda: _table(
        arbitration._LETS_GO, Reuse.AFTER_FAILURE, arbitration._LETS_GO[Reuse.AFTER_CLOSE]
    ),
    "never lets a failed holder go": lambda: _table(arbitration._LETS_GO, Reuse.NEVER, frozenset({Status.FAILED})),
    "use_existing is refused": lambda: _table(
        arbitration._DUPLICATE, (arbitration.Hold.UNFINISHED, Policy.USE_EXISTING), arbitration.Action.REFUSE
    ),
    "cancel_existing replaces a finished holder that keeps its key": lambda: _table(
        arbitration._DUPLICATE, (arbitration.Hold.KEPT, Policy.CANCEL_EXISTING), arbitration.Action.CREATE
    ),
    "the waiting run is promoted although the key is kept": lambda: _instead(
        arbitration, "decide_succession", _always(arbitration.Succession.PROMOTE)
    ),
    "a retry takes the key from a newer holder": lambda: _instead(
        arbitration, "decide_retry", lambda real: lambda status, **facts: real(status, **(facts | {"newer": None}))
    ),
    "a release lets nothing go": lambda: _instead(transitions, "drop_key", _nothing),
    "a replaced holder's waiting run is forgotten": lambda: _instead(transitions, "wait_behind", _nothing),
    "the newer input is dropped": lambda: _instead(transitions, "set_input", _nothing),
    "a debounced run's due time does not move": lambda: _instead(
        transitions,
        "postpone",
        lambda real: lambda tx, row, input, due: transitions.set_input(tx, row, input),
    ),
    "the cap of a debounce is ignored": lambda: _instead(starting, "debounce_due", _with(timeout_ms=None)),
    "a debounced run gathers starts after it has begun": lambda: _instead(
        starting, "_is_debounced", lambda _: lambda holder: holder.debounced and not holder.finished
    ),
    "a rerun is debounced": lambda: _instead(
        starting, "_create", lambda real: lambda it, holder, may_wait=True: real(it, holder)
    ),
    "orphans are not taken up": lambda: _instead(
        arbitration,
        "decide_start",
        lambda real: lambda holder, **facts: real(holder, **(facts | {"executing": False})),
    ),
    "a dead owner is taken for alive": lambda: _instead(
        settling, "reap", lambda _: lambda tx, run, **_: settling.Reaped(run)
    ),
    "a living owner is taken for dead": lambda: _instead(settling, "reap", _with(alive=lambda _: False)),
    "crashes are not counted": lambda: _instead(transitions, "give_back", _with(crash=False)),
    "a late owner's work is accepted": lambda: _instead(runs, "ours", _always(True)),
    "an overdue run is never ended": lambda: _instead(
        settling, "end_overdue", lambda _: lambda tx, run, **_: settling.Reaped(run)
    ),
    "the wrong input is told": lambda: _instead(activity, "duplicate", _with(input=None)),
    "a hand-over is not told": lambda: _instead(activity, "handed_off", _nothing),
    "a duplicate is not told": lambda: _instead(activity, "duplicate", _nothing),
    "an event wakes nobody": lambda: _instead(transitions, "wake", _nothing),
    "a compensating run is cancelled": lambda: _instead(
        arbitration, "decide_cancel", _always(arbitration.Cancel.CANCEL)
    ),
}


def killed(name: str, rules: int) -> bool:
    """Does the machine notice this mutant within so many rules?"""
    before = SEEN.copy()
    SEEN.clear()
    with MUTANTS[name]():
        try:
            number = 1
            while SEEN["rules"] < rules:
                run(50, number, shrink=False)
                number += 1
        except Exception:
            return True
        finally:
            SEEN.clear()
            SEEN.update(before)
    return False


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="the state machine of keys")
    parser.add_argument("--rules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--mutants", action="store_true")
    options = parser.parse_args(argv)
    began = time.monotonic()
    if options.mutants:
        left = [name for name in MUTANTS if not killed(name, options.rules)]
        for name in left:
            print(f"alive: {name}", file=sys.stderr)
        print(f"mutants killed {len(MUTANTS) - len(left)}/{len(MUTANTS)} ({time.monotonic() - began:.0f} s)")
        return 1 if left else 0
    rules, violations = soak(options.rules, options.seed)
    for name in hardly_seen(max(1, rules // 50_000)):
        violations += 1
        print(f"hardly ever: {name} ({SEEN[name]})", file=sys.stderr)
    figures = f"{SEEN['examples']} examples, {SEEN['starts']} starts, {SEEN['turns']} turns, seed {options.seed}"
    print(f"{rules} rules, {violations} violations ({figures}, {time.monotonic() - began:.0f} s)")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
