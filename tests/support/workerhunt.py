"""Workers that are killed at random while keyed runs append their keys to a file.

    python tests/support/workerhunt.py [--runs 500] [--over 60] [--workers 3] [--every 1.0] [--seed 1]

The long version of `crash/test_workers.py`: starts `runs` runs over so many seconds, kills -9 a random worker each
`every` seconds and starts another, and at the end looks for what must not be: a run that is lost or not completed, a
step that ran after it was recorded, a file that is not sound.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from crashkit import FLOWS, Child, spawn  # noqa: E402

from durable_cli import Durable  # noqa: E402

if str(FLOWS) not in sys.path:
    sys.path.insert(0, str(FLOWS))


@dataclass
class Report:
    """What was found. `executions`: of steps, of which `recorded` are recorded."""

    runs: int
    kills: int = 0
    executions: int = 0
    recorded: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.kills} kills of workers, {self.executions} executions of {self.recorded} "
            f"recorded steps in {self.seconds:.0f} s: {len(self.violations)} violations"
        )


def hunt(folder: Path, *, runs: int, over_s: float, workers: int, every_s: float, seed: int) -> Report:
    """Do it, in a folder of its own. Ends when all runs are over, or ten minutes after the last start."""
    import resting

    db, log, dice = folder / "durable.db", folder / "log", random.Random(seed)
    report, began = Report(runs), time.monotonic()
    started: list[str] = []
    with Durable(db) as it:
        living: list[Child] = [_worker(db) for _ in range(workers)]
        next_kill = began + every_s
        try:
            while len(started) < runs or it.runs(unfinished=True, limit=1):
                now = time.monotonic()
                while len(started) < min(runs, 1 + int((now - began) * runs / over_s)):
                    key = f"key-{len(started)}"
                    started.append(it.start(resting.appender, str(log), key=key).run_id)
                if now >= next_kill:
                    next_kill += every_s
                    living.append(_worker(db))
                    dice.choice(living[:-1]).kill()
                    living = [one for one in living if not one.over()]
                    report.kills += 1
                if now - began > over_s + 600:
                    report.violations.append("runs are stuck")
                    break
                time.sleep(0.01)
        finally:
            for one in living:
                one.kill()
        report.seconds = time.monotonic() - began
        _check(it, log, started, report)
    return report


def _worker(db: Path) -> Child:
    return spawn(db, "worker", "--concurrency", "4")


def _check(it: Durable, log: Path, started: list[str], report: Report) -> None:
    lines = Counter(log.read_text().splitlines())
    report.executions = sum(lines.values())
    for run_id in started:
        run = it.run(run_id)
        if run.status != "completed" or json.loads(run.result or "null") != run.key:
            report.violations.append(f"run {run_id} ({run.key}) is {run.status}: {run.error}")
        for step in run.steps or ():
            if step.kind != "run":
                continue
            report.recorded += 1
            times = lines[f"{run.key} {step.name}"]
            if not 1 <= times <= step.attempts:
                report.violations.append(f"step {step.name} of {run.key} ran {times} times in {step.attempts} attempts")
    report.violations += it.check()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--over", type=float, default=60)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = hunt(
            Path(folder), runs=args.runs, over_s=args.over, workers=args.workers, every_s=args.every, seed=args.seed
        )
    print("\n".join([*report.violations, str(report)]))
    return int(bool(report.violations))


if __name__ == "__main__":
    sys.exit(main())
