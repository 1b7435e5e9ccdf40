"""Ten thousand runs that wait in one worker: memory, and whether they are woken on time.

    python tests/bench/waiting.py [--runs 10000] [--lead 120] [--window 120]

Half of them sleep until a moment, half wait for an event. When `lead` seconds are over they are woken, evenly over
`window` seconds: the sleepers by their due time, the others by events that this process sends. Late is the moment
the next step begins, against the moment that was due or sent. Promised: under 200 MB resident, all complete.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support"), str(Path(__file__).resolve().parents[2])]

from crashkit import FLOWS, spawn  # noqa: E402
from idle import resident_mb  # noqa: E402

from durable_cli import Durable  # noqa: E402

sys.path.insert(0, str(FLOWS))
import resting  # noqa: E402


def start_all(it: Durable, count: int, due: list[int]) -> list[str]:
    """Start the sleepers and the listeners; the ids of the listeners."""
    listeners = []
    for at in range(0, count, 500):
        it.start_many(resting.sleeper, [{"input": moment} for moment in due[at : at + 500]])
        listeners += [one.run_id for one in it.start_many(resting.listener, [{}] * len(due[at : at + 500]))]
    return listeners


def lateness(it: Durable) -> tuple[list[int], list[int]]:
    """How late the sleepers and the listeners went on, in ms, sorted."""
    slept, heard = [], []
    for run in it.runs(status=["completed"]):
        if run.workflow == "sleeper":
            slept.append(int(run.result or 0) - int(run.input))
        else:
            sent, woke = map(int, (run.result or "[0,0]").strip("[]").split(","))
            heard.append(woke - sent)
    return sorted(slept), sorted(heard)


def told(what: str, late: list[int]) -> str:
    if not late:
        return f"{what}: none"
    return (
        f"{what}: {len(late)} woken, late by median {late[len(late) // 2]} ms, "
        f"p99 {late[int(0.99 * len(late))]} ms, worst {late[-1]} ms, earliest {late[0]} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--lead", type=float, default=120)
    parser.add_argument("--window", type=float, default=120)
    args = parser.parse_args()
    half = args.runs // 2
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "durable.db"
        with spawn(db, "worker", "-v") as worker, Durable(db) as it:
            worker.wait_said("runs at once")
            began = time.time()
            first = began + args.lead
            due = [round((first + n * args.window / half) * 1000) for n in range(half)]
            listeners = start_all(it, half, due)
            print(f"{args.runs} runs started in {time.time() - began:.1f} s")
            while it.stats().runs.get("waiting", 0) < args.runs and time.time() < first:
                time.sleep(0.5)
            most = resident_mb(worker.pid)
            waiting = it.stats().runs.get("waiting", 0)
            print(f"{waiting} of them wait after {time.time() - began:.1f} s; the worker has {most:.0f} MB")
            for n, run_id in enumerate(listeners):
                time.sleep(max(0.0, due[n] / 1000 - time.time()))
                it.send_event(run_id, "go", resting.moment())
                if n % 100 == 0:
                    most = max(most, resident_mb(worker.pid))
            while it.stats().runs.get("completed", 0) < args.runs and time.time() < first + 3 * args.window + 60:
                time.sleep(0.5)
            most = max(most, resident_mb(worker.pid))
            print(f"after {time.time() - began:.1f} s: {it.stats().runs}")
            print(f"the worker had at most {most:.0f} MB")
            slept, heard = lateness(it)
            print(told("sleepers", slept))
            print(told("listeners", heard))
            print("db check:", it.check() or "clean")


if __name__ == "__main__":
    main()
