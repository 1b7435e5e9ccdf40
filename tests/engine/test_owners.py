"""A dead owner is known to be dead at once, and a living one is never taken for dead."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_cli import errors, owners
from durable_cli.owners import lock_file_liveness
from durable_cli.store import owners as rows
from durable_cli.store.database import Database, Tx

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "durable.db"
    path.touch(0o600)
    return path


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Pids to be killed at the end, whatever happened."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def child(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    begin = """
        import os, subprocess, sys, time
        from pathlib import Path
        from durable_cli import errors
        from durable_cli.owners import lock_file_liveness
        from durable_cli.store import owners as rows
        from durable_cli.store.database import Database
        a = sys.argv[1:]
        liveness = lock_file_liveness(Path(a[0]))
        def wait():
            print("ready", flush=True); time.sleep(600)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def owner(started: list[int], code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that has said that it is ready."""
    process = child(code, *arguments)
    started.append(process.pid)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", process.communicate()
    return process


def answer(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()


def seen_dead(path: Path, owner_id: int, seconds: float = 5.0) -> bool:
    liveness = lock_file_liveness(path)
    deadline = time.monotonic() + seconds
    while liveness.alive(owner_id):
        if time.monotonic() > deadline:
            return False
    return True


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_an_owner_is_alive_until_it_lets_go(path: Path) -> None:
    """Its own process says so, another process says so with its pid, and both see the release."""
    liveness = lock_file_liveness(path)
    liveness.hold(3)
    code = "print(liveness.alive(3), liveness.pid(3), liveness.alive(4), liveness.pid(4))"
    assert (liveness.alive(3), liveness.pid(3), liveness.alive(4), liveness.pid(4)) == (True, os.getpid(), False, None)
    assert answer(child(code, path)) == f"True {os.getpid()} False None"
    liveness.release(3)
    liveness.release(3)
    assert (liveness.alive(3), liveness.pid(3)) == (False, None)
    assert answer(child(code, path)) == "False None False None"


def test_asking_creates_nothing(path: Path) -> None:
    """Where there is no lock file all owners are dead, and there is none afterwards."""
    liveness = lock_file_liveness(path)
    assert not liveness.alive(1)
    assert liveness.pid(1) is None
    assert liveness.reassert() == []
    liveness.release(1)
    assert [file.name for file in path.parent.iterdir()] == ["durable.db"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_kill_9_is_seen_at_once_also_of_a_zombie(path: Path, started: list[int]) -> None:
    """Owners, killed and not reaped: each is dead although its process is still in the table."""
    process = [owner(started, f"liveness.hold({number}); wait()", path) for number in range(1, 5)]
    liveness = lock_file_liveness(path)
    for number, killed in enumerate(process, 1):
        assert liveness.pid(number) == killed.pid
        os.kill(killed.pid, signal.SIGKILL)
        assert seen_dead(path, number)
        assert state(killed.pid) == "Z"
        killed.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_stopped_owner_is_alive(path: Path, started: list[int]) -> None:
    """SIGSTOP, a debugger, a suspended laptop: paused is not dead."""
    process = owner(started, "liveness.hold(1); wait()", path)
    os.kill(process.pid, signal.SIGSTOP)
    while state(process.pid) != "T":
        time.sleep(0.001)
    assert lock_file_liveness(path).alive(1)
    os.kill(process.pid, signal.SIGKILL)
    assert seen_dead(path, 1)
    process.wait()


@pytest.mark.parametrize(
    "survivor",
    [
        "pid = os.fork()\nif pid == 0: time.sleep(600)",
        "pid = subprocess.Popen(['sleep', '600']).pid",
        "[os.set_inheritable(int(fd), True) for fd in os.listdir('/proc/self/fd') if int(fd) > 2 and"
        " os.path.exists(f'/proc/self/fd/{fd}')]\n"
        "pid = subprocess.Popen(['sleep', '600'], close_fds=False).pid",
    ],
    ids=["forked", "spawned", "with all descriptors"],
)
def test_what_an_owner_leaves_behind_holds_nothing(path: Path, started: list[int], survivor: str) -> None:
    """A child that outlives its owner, even with the descriptor of the lock file, does not keep the owner alive."""
    code = f"liveness.hold(1)\n{survivor}\nprint(pid, flush=True)\nwait()"
    process = child(textwrap.dedent(code), path)
    started.append(process.pid)
    assert process.stdout is not None
    left_behind = int(process.stdout.readline())
    started.append(left_behind)
    process.stdout.readline()
    assert lock_file_liveness(path).pid(1) == process.pid
    os.kill(process.pid, signal.SIGKILL)
    assert seen_dead(path, 1)
    os.kill(left_behind, 0)  # it does live
    process.wait()


def test_the_lock_files_descriptor_is_not_inherited(path: Path) -> None:
    """Close-on-exec: a daemon that a step starts has none of our files."""
    code = """
        liveness.hold(1)
        Database(Path(a[0])).write(lambda tx: None)
        print(subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout)
    """
    assert "durable.db" not in answer(child(code, path))


def test_a_forked_child_is_not_its_parent(path: Path) -> None:
    """The child sees the parent's owner alive by its lock, can be an owner itself, and ends without touching either."""
    code = """
        liveness.hold(1)
        pid = os.fork()
        if pid == 0:
            assert liveness.alive(1) and liveness.pid(1) == os.getppid()
            liveness.release(1)                      # not the child's
            liveness.hold(2)
            assert liveness.pid(2) == os.getpid()
            assert lock_file_liveness(Path(a[0])).reassert() == []
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert not liveness.alive(2)
        print(subprocess.run([sys.executable, "-c",
            "import sys; from pathlib import Path; from durable_cli.owners import lock_file_liveness as l;"
            "print(l(Path(sys.argv[1])).pid(1))", a[0]], capture_output=True, text=True).stdout.strip(), os.getpid())
    """
    seen, pid = answer(child(code, path)).split()
    assert seen == pid


def test_two_objects_in_one_process_know_each_other(path: Path, tmp_path: Path) -> None:
    """One descriptor and one set of owners for a file, by whatever path and from whatever thread."""
    (tmp_path / "other").symlink_to(tmp_path)
    first, second = lock_file_liveness(path), lock_file_liveness(path)
    first.hold(1)
    assert second.alive(1)
    second.hold(2)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(first.alive(2)))
    thread.start()
    thread.join()
    assert seen == [True]
    second.release(2)
    assert answer(child("print(liveness.alive(1), liveness.alive(2))", path)) == "True False"
    del second
    elsewhere = lock_file_liveness(tmp_path / "other" / "durable.db")
    elsewhere.hold(4)
    assert first.alive(4)
    assert elsewhere.alive(1)
    assert answer(child("print(liveness.alive(1), liveness.alive(4))", path)) == "True True"
    first.release(1)
    elsewhere.release(4)


def test_one_owner_cannot_be_two_processes(path: Path, started: list[int]) -> None:
    """A byte that another process holds is refused loudly."""
    process = owner(started, "liveness.hold(1); wait()", path)
    with pytest.raises(errors.InternalError, match="another living process"):
        lock_file_liveness(path).hold(1)
    process.kill()
    process.wait()


def test_locks_that_were_dropped_are_taken_again(path: Path, started: list[int]) -> None:
    """Native code that opened and closed the lock file cost us our locks: `reassert` restores them, or tells."""
    liveness = lock_file_liveness(path)
    liveness.hold(1)
    liveness.hold(2)
    ask = "print(liveness.alive(1), liveness.alive(2))"
    assert answer(child(ask, path)) == "True True"
    descriptor = next(iter(file.descriptor for file in owners._open_files.values() if file.path == f"{path}-lock"))
    os.close(os.dup(descriptor))  # what `open(...).close()` would do if the guard let it
    assert answer(child(ask, path)) == "False False"
    thief = owner(started, "liveness.hold(2); wait()", path)
    assert liveness.reassert() == [2]
    assert answer(child(ask, path)) == "True True"
    thief.kill()
    thief.wait()
    assert answer(child(ask, path)) == "True False"
    assert liveness.alive(1)
    assert not liveness.alive(2)
    liveness.release(1)


def test_a_lock_file_that_was_deleted_is_made_again(path: Path) -> None:
    """Between the deletion and `reassert` others see us dead, which the fence covers; afterwards alive again."""
    liveness = lock_file_liveness(path)
    liveness.hold(1)
    os.unlink(f"{path}-lock")
    ask = "print(liveness.alive(1))"
    assert liveness.alive(1)
    assert answer(child(ask, path)) == "False"
    assert liveness.reassert() == []
    assert answer(child(ask, path)) == "True"
    assert liveness.alive(1)
    liveness.release(1)
    assert answer(child(ask, path)) == "False"


def test_the_lock_file_is_private(path: Path) -> None:
    """0600 whatever the umask, and no symlink is followed."""
    before = os.umask(0)
    try:
        lock_file_liveness(path).hold(1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(f"{path}-lock").st_mode) == 0o600
    lock_file_liveness(path).release(1)
    other = path.with_name("other.db")
    target = path.with_name("target")
    other.with_name("other.db-lock").symlink_to(target)
    with pytest.raises(errors.DatabaseUnusable):
        lock_file_liveness(other).hold(1)
    assert not target.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's file")
def test_roots_lock_file_belongs_to_the_databases_owner(path: Path) -> None:
    """After `sudo durable ...` the user can still be an owner."""
    os.chown(path, 65534, 65534)
    lock_file_liveness(path).hold(1)
    assert os.stat(f"{path}-lock").st_uid == 65534
    lock_file_liveness(path).release(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
def test_who_may_not_look_takes_nobody_for_dead(path: Path) -> None:
    """A user who cannot read the lock file sees all owners alive: a run is never taken on a guess."""
    liveness = lock_file_liveness(path)
    liveness.hold(1)
    for folder in path.parents:
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    code = """
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        print(liveness.alive(1), liveness.alive(2), liveness.pid(1))
        try: liveness.hold(3)
        except errors.DatabaseReadOnly as error: print("refused")
    """
    assert answer(child(code, path)).split() == ["True", "True", "None", "refused"]
    liveness.release(1)


def test_a_file_system_without_byte_locks_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that fail, and locks that succeed and that nobody sees: SQLite would not be safe there either."""

    def fail(*_: object) -> None:
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(owners.fcntl, "lockf", fail)
        with pytest.raises(errors.DatabaseUnusable, match="byte locks"):
            lock_file_liveness(path).hold(1)
    os.unlink(f"{path}-lock")
    with monkeypatch.context() as patched:
        patched.setattr(owners.fcntl, "lockf", lambda *_: None)
        with pytest.raises(errors.DatabaseUnusable, match="do not work"):
            lock_file_liveness(path).hold(1)


def test_elsewhere_a_probe_is_a_try(path: Path, monkeypatch: pytest.MonkeyPatch, started: list[int]) -> None:
    """Where the kernel's struct is not known the answer is the same, without the pid."""
    process = owner(started, "liveness.hold(1); wait()", path)
    monkeypatch.setattr(owners, "_LAYOUT", None)
    liveness = lock_file_liveness(path)
    assert (liveness.alive(1), liveness.pid(1), liveness.alive(2)) == (True, None, False)
    liveness.hold(2)
    assert (liveness.alive(1), liveness.alive(2)) == (True, True)
    process.kill()
    process.wait()
    assert not liveness.alive(1)
    assert answer(child("print(liveness.alive(2))", path)) == "True"
    liveness.release(2)


# -- rows ----------------------------------------------------------------------------------------------------------


def test_ids_are_never_used_twice(path: Path) -> None:
    """A new owner gets a new byte, also after all the others were removed."""
    database = Database(path)

    def work(tx: Tx) -> list[int]:
        ids = [rows.register(tx, pid=7, kind="run", now=5) for _ in range(3)]
        assert [row["id"] for row in rows.every(tx)] == ids
        assert rows.every(tx)[0] == {"id": ids[0], "pid": 7, "kind": "run", "created_at": 5, "runs": 0}
        assert rows.unused(tx) == ids
        assert [rows.remove(tx, owner_id) for owner_id in ids] == [True] * 3
        assert not rows.remove(tx, ids[0])
        return [*ids, rows.register(tx, pid=7, kind="worker", now=6)]

    ids = database.write(work)
    assert ids == [1, 2, 3, 4]
    database.close()


def test_nobody_sees_an_owner_without_its_lock(path: Path) -> None:
    """Row, byte, commit: while four processes register and die, every row that a fifth reads is alive or was killed."""
    code = """
        database = Database(Path(a[0]))
        for _ in range(60):
            def work(tx):
                liveness.hold(rows.register(tx, pid=os.getpid(), kind="run", now=1))
            database.write(work)
        time.sleep(600)
    """
    processes = [child(code, path) for _ in range(4)]
    database = Database(path)
    liveness = lock_file_liveness(path)
    seen = 0
    deadline = time.monotonic() + 30
    while seen < 240 and time.monotonic() < deadline:
        ids = database.read(lambda tx: [row["id"] for row in rows.every(tx)])
        assert all(liveness.alive(owner_id) for owner_id in ids)
        seen = len(ids)
    assert seen == 240
    for process in processes:
        process.kill()
        process.wait()
    assert not any(liveness.alive(owner_id) for owner_id in range(1, 241))
    database.close()


def test_the_probe_reads_the_kernels_answer(path: Path) -> None:
    """The layout of `struct flock` in use here: a lock of a range shows its holder on each byte and nowhere else."""
    path.with_name("plain").touch()
    descriptor = os.open(path.with_name("plain"), os.O_RDWR)
    code = """
        import fcntl
        fd = os.open(a[1], os.O_RDWR); fcntl.lockf(fd, fcntl.LOCK_EX, 2, 5); print("ready", flush=True); input()
    """
    process = child(code, path, path.with_name("plain"), stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert [owners._probe(descriptor, byte) for byte in (4, 5, 6, 7)] == [None, process.pid, process.pid, None]
    assert fcntl.F_GETLK != fcntl.F_SETLK
    process.kill()
    process.wait()
    os.close(descriptor)
