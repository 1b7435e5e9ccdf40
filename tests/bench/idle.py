"""What an idle worker costs, and how soon a start from another process is picked up.

    python tests/bench/idle.py [--seconds 20] [--sleeping 10000] [--starts 200]

Idle: CPU time and voluntary context switches of a real `durable worker`, on an empty file and with runs that sleep.
Promised: at most two wake-ups a second and under 0.2 % of a core. Pick-up: from the call of `start` in this process to
the first line of the run's step in the worker's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support"), str(Path(__file__).resolve().parents[2])]

from crashkit import FLOWS, Child, spawn  # noqa: E402

from durable_cli import Durable  # noqa: E402

sys.path.insert(0, str(FLOWS))
import resting  # noqa: E402


def spent(pid: int) -> tuple[float, int]:
    """CPU seconds (to the nanosecond) and voluntary context switches of the threads that a process has (Linux)."""
    nanoseconds = switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            nanoseconds += int((task / "schedstat").read_text().split()[0])
            switches += int(field(task / "status", "voluntary_ctxt_switches"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return nanoseconds / 1e9, switches


def resident_mb(pid: int) -> float:
    """The resident memory of a process."""
    return int(field(Path(f"/proc/{pid}/status"), "VmRSS").split()[0]) / 1024


def field(file: Path, name: str) -> str:
    return next(line.partition(":")[2].strip() for line in file.read_text().splitlines() if line.startswith(name))


def idle(worker: Child, seconds: float, what: str) -> None:
    """Measure a worker that has nothing to do."""
    time.sleep(2)
    cpu, switches = spent(worker.pid)
    time.sleep(seconds)
    cpu_after, switches_after = spent(worker.pid)
    print(
        f"idle, {what}: {100 * (cpu_after - cpu) / seconds:.3f} % of a core, "
        f"{(switches_after - switches) / seconds:.1f} wake-ups a second, {resident_mb(worker.pid):.0f} MB resident"
    )


def pick_up(it: Durable, starts: int) -> None:
    """Start runs one after another in this process, each when the one before is over."""
    took = []
    for _ in range(starts):
        began = time.time_ns() // 1_000
        run = it.start(resting.stamp)
        done = it.wait(run.run_id, timeout=30)
        took.append((int(done.result or 0) - began) / 1000)
    took.sort()
    print(
        f"picked up, {starts} starts: median {statistics.median(took):.1f} ms, "
        f"p95 {took[int(0.95 * len(took))]:.1f} ms, worst {took[-1]:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--sleeping", type=int, default=10_000)
    parser.add_argument("--starts", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "durable.db"
        with spawn(db, "worker", "-v") as worker, Durable(db) as it:
            worker.wait_said("runs at once")
            idle(worker, args.seconds, "no runs")
            pick_up(it, args.starts)
            later = resting.moment() + 3_600_000
            for _ in range(0, args.sleeping, 500):
                it.start_many(resting.sleeper, [{"input": later + n} for n in range(500)])
            while any(run.status != "waiting" for run in it.runs(unfinished=True)):
                time.sleep(1)
            idle(worker, args.seconds, f"{args.sleeping} runs asleep")
            pick_up(it, args.starts)


if __name__ == "__main__":
    main()
