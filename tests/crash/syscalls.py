"""kill -9 at every system call: a real process, killed by strace at its N-th write, sync, lock, open..., for every N.

    python tests/crash/syscalls.py [--points N]      (all of them take about 2 minutes on 2 cores)

After each kill a healthy process looks: the file is sound, nothing that was acknowledged is lost, and the same run is
finished without a recorded step being executed again. Prints one line, `N checks, M violations`; exit code 1 if there
was any, 77 where strace does not work.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from crashkit import SUPPORT, Log, each_on_its_own, environment, recorded_steps

sys.path.insert(0, str(SUPPORT / "flows"))
import jobs

from durable_cli import Durable, Status

CALLS = (
    "pwrite64", "write", "fdatasync", "fsync", "ftruncate", "unlink", "fcntl", "mmap", "munmap", "openat", "fchmod",
    "close", "rename",
)  # fmt: skip
STEPS = list(jobs.NAMES)
Point = tuple[str, int]  # the n-th call of this name


def strace_works() -> bool:
    """Is there an strace that may trace?"""
    try:
        return (
            subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode
            == 0
        )
    except FileNotFoundError:
        return False


def trace(options: list[str], folder: Path) -> int:
    """Run the victim in a folder under strace; its exit code."""
    folder.mkdir()
    argv = ["strace", "-f", "-qq", *options, sys.executable, str(SUPPORT / "victim.py")]
    argv += [str(folder / name) for name in ("durable.db", "trace", "acks")]
    return subprocess.run(argv, capture_output=True, env=environment(), check=False).returncode


def points(folder: Path) -> list[Point]:
    """Every call from the first one that names the database."""
    trace(["-o", "/dev/null"], folder / "warm")  # writes what bytecode there is to write
    listing = folder / "listing"
    assert trace(["-e", f"trace={','.join(CALLS)}", "-o", str(listing)], folder / "learn") == 0
    counted: collections.Counter[str] = collections.Counter()
    found: list[Point] = []
    database = str(folder / "learn" / "durable.db")
    for line in listing.read_text(errors="replace").splitlines():
        match = re.match(r"\d+\s+(\w+)\(", line)
        if match:
            counted[match[1]] += 1
            if found or database in line:
                found.append((match[1], counted[match[1]]))
    return found


def kill(folder: Path, point: Point) -> tuple[bool, int, list[str]]:
    """Kill a victim there and look at what it left. Was it killed, the number of checks, and what is wrong."""
    name, n = point
    place = folder / f"{name}-{n}"
    code = trace(["-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={n}", "-o", "/dev/null"], place)
    try:
        checks, wrong = look(place)
    except Exception as error:
        checks, wrong = 1, [f"{type(error).__name__}: {error}"]
    return code in (-9, 137), checks, [f"killed at {name} number {n}: {what}" for what in wrong]


def look(place: Path) -> tuple[int, list[str]]:
    """Hold what was acknowledged against the file, then finish the run."""
    checks, log = 0, Log(place / "trace")
    acks = (place / "acks").read_text().splitlines() if (place / "acks").exists() else []
    with Durable(place / "durable.db") as it:
        wrong = it.check()
        runs = {run.id: it.run(run.id) for run in it.runs()}
        recorded = {name: recorded_steps(run) for name, run in runs.items()}
        for kind, run_id, *step in (line.split() for line in acks):
            checks += 1
            run = runs.get(run_id)
            if run is None:
                wrong.append(f"lost: run {run_id}")
            elif kind == "step" and step[0] not in recorded[run_id]:
                wrong.append(f"lost: step {step[0]}")
            elif kind == "done" and run.status is not Status.COMPLETED:
                wrong.append(f"lost: the end, it is {run.status}")
        first = next((run for run in runs.values() if run.workflow == "job"), None)
        executed = len(log.steps())
        execution = it.execute(jobs.job, str(log.path), key="k")
        checks += 4
        if first is not None and execution.run.id != first.id:
            wrong.append(f"run {first.id} was not taken up, but run {execution.run.id}")
        if execution.run.status is not Status.COMPLETED:
            wrong.append(f"the run ended {execution.run.status}")
        again = [step for step in STEPS if first is None or step not in recorded[first.id]]
        if log.steps()[executed:] != again:
            wrong.append(f"executed {log.steps()[executed:]}, but without a record were {again}")
        wrong += it.check()
    return checks, wrong


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="kill durable at every system call")
    parser.add_argument("--points", type=int, help="only so many, evenly chosen")
    options = parser.parse_args(argv)
    if not strace_works():
        print("skipped: strace is missing, or may not trace here")
        return 77
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="durable-syscalls-") as name:
        folder = Path(name)
        every = points(folder)
        count = min(options.points or len(every), len(every))
        chosen = [every[n * len(every) // count] for n in range(count)]
        results = each_on_its_own(lambda point: kill(folder, point), chosen)
    wrong = [what for _, _, more in results for what in more]
    killed = sum(1 for was_killed, _, _ in results if was_killed)
    if killed < len(chosen) * 0.8:
        wrong.append(f"only {killed} of {len(chosen)} were killed: the rig does not hit")
    for what in wrong[:20]:
        print(what, file=sys.stderr)
    figures = f"{killed} kills at {len(chosen)} of {len(every)} system calls, {time.monotonic() - began:.0f} s"
    print(f"{sum(checks for _, checks, _ in results)} checks, {len(wrong)} violations ({figures})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
