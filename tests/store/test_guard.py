"""Nobody opens the database a second time in a process that has it open, however the file is named."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from durable_cli.errors import EngineFileOpened
from durable_cli.owners import lock_file_liveness
from durable_cli.store import guard
from durable_cli.store.database import Database

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def standard() -> ModuleType:
    """The standard library's SQLite, which is what users have at hand (durable itself never imports it)."""
    return pytest.importorskip("sqlite3")


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    database = Database(folder / "durable.db")
    database.write(lambda tx: None)
    liveness = lock_file_liveness(database.path)
    liveness.hold(1)
    monkeypatch.chdir(folder)
    (tmp_path / "soft").symlink_to(database.path)
    yield database.path
    liveness.release(1)
    database.close()


NAMES: dict[str, Callable[[Path], object]] = {
    "path": str,
    "pathlib": lambda path: path,
    "bytes": os.fsencode,
    "relative": lambda path: "durable.db",
    "dotted": lambda path: "../data/./durable.db",
    "symlink": lambda path: path.parent.parent / "soft",
    "hard link": lambda path: path.parent.parent / "hard",
    "wal": lambda path: f"{path}-wal",
    "shm": lambda path: f"{path}-shm",
    "lock": lambda path: f"{path}-lock",
}


@pytest.mark.parametrize("name", NAMES)
def test_no_name_opens_it(db: Path, standard: ModuleType, name: str) -> None:
    """`open`, `os.open` and the standard library's SQLite are refused under every name of every file."""
    if name == "hard link":
        os.link(db, db.parent.parent / "hard")
    named = NAMES[name](db)
    for opening in (
        lambda: open(named, "rb"),  # noqa: SIM115
        lambda: os.open(named, os.O_RDONLY),
        lambda: standard.connect(named),
        lambda: shutil.copy(named, db.with_name("copy")),
    ):
        with pytest.raises(EngineFileOpened) as caught:
            opening()
        assert caught.value.errno == errno.EACCES
        assert "durable db backup" in str(caught.value)
    assert not db.with_name("copy").exists()


@pytest.mark.parametrize(
    "uri",
    [
        "file:{path}",
        "file://{path}",
        "file://localhost{path}?mode=ro",
        "file:durable.db?mode=ro&cache=shared",
        "file:d%75rable.db#x",
    ],
)
def test_no_uri_opens_it(db: Path, standard: ModuleType, uri: str) -> None:
    """URIs in all their spellings, read-only ones too: their close drops the locks as any other."""
    with pytest.raises(EngineFileOpened):
        standard.connect(uri.format(path=db), uri=True)


def test_walkers_can_skip_it(db: Path, tmp_path: Path) -> None:
    """It is a `PermissionError`: copytree copies the rest and says what it left out, a tar of the rest goes on."""
    (db.parent / "other.txt").write_text("mine")
    with pytest.raises(shutil.Error) as caught:
        shutil.copytree(db.parent, tmp_path / "copy")
    assert len(caught.value.args[0]) == 4
    assert [file.name for file in (tmp_path / "copy").iterdir()] == ["other.txt"]
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for file in sorted(db.parent.iterdir()):
            try:
                archive.add(file)
            except PermissionError:
                continue
    with pytest.raises(PermissionError):
        db.read_bytes()


def test_the_locks_and_the_wal_outlive_what_was_refused(tmp_path: Path, standard: ModuleType) -> None:
    """After a refused open another process still cannot write into our transaction."""
    database = Database(tmp_path / "durable.db")
    code = (
        "import apsw, sys; c = apsw.Connection(sys.argv[1]);\n"
        "try: c.execute('BEGIN IMMEDIATE'); print('in')\n"
        "except apsw.BusyError: print('busy')"
    )

    def work(tx: object) -> str:
        for opening in (open, standard.connect):
            with pytest.raises(PermissionError):
                opening(database.path)
        return subprocess.run(
            [sys.executable, "-c", code, database.path], capture_output=True, text=True
        ).stdout.strip()

    assert database.write(work) == "busy"
    database.close()


def test_other_files_are_let_be(db: Path, standard: ModuleType, tmp_path: Path) -> None:
    """A neighbour, a copy under the same name elsewhere, a descriptor, a missing file: all as ever."""
    (tmp_path / "durable.db").write_text("another")
    assert (tmp_path / "durable.db").read_text() == "another"
    standard.connect(tmp_path / "mine.db").close()
    standard.connect(":memory:").close()
    reading, writing = os.pipe()
    with open(reading), open(writing, "w"):
        pass
    with pytest.raises(FileNotFoundError):
        db.with_name("missing").read_bytes()


def test_it_ends_with_the_last_connection(tmp_path: Path, standard: ModuleType) -> None:
    """Two objects on one file: allowed again after both are closed; the next opening guards again."""
    path = tmp_path / "durable.db"
    first, second = Database(path), Database(path)
    first.read(lambda tx: None)
    second.read(lambda tx: None)
    first.close()
    first.close()
    with pytest.raises(EngineFileOpened):
        standard.connect(path)
    second.close()
    standard.connect(path).close()
    path.read_bytes()
    first.read(lambda tx: None)
    with pytest.raises(EngineFileOpened):
        path.read_bytes()
    first.close()


def test_it_ends_with_an_object_that_nobody_closed(tmp_path: Path) -> None:
    """Dropped and collected: its connection is closed, and another one's guard stays."""
    path = tmp_path / "durable.db"
    dropped, kept = Database(path), Database(path)
    dropped.read(lambda tx: None)
    kept.read(lambda tx: None)
    del dropped
    gc.collect()
    with pytest.raises(EngineFileOpened):
        path.read_bytes()
    del kept
    gc.collect()
    path.read_bytes()


def test_an_inode_that_was_used_again_is_nobodys(tmp_path: Path) -> None:
    """When a guarded file is gone and its number went to another file, that one can be opened."""
    guarded, other = tmp_path / "a", tmp_path / "b"
    guarded.touch()
    guard.protect_file(str(guarded))
    with pytest.raises(EngineFileOpened):
        guarded.read_bytes()
    guarded.rename(other)  # the same inode under another name, as if it had been given out anew
    assert other.read_bytes() == b""


def test_another_thread_is_refused_too(db: Path) -> None:
    """Locks belong to the process, so every thread is meant."""
    seen: list[BaseException] = []

    def work() -> None:
        try:
            db.read_bytes()
        except BaseException as error:
            seen.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [type(error) for error in seen] == [EngineFileOpened]


def test_a_forked_child_may_look(tmp_path: Path) -> None:
    """The parent's locks are not the child's to lose, so a child that has not opened the database may read it."""
    code = """
import os, sys
from pathlib import Path
from durable_cli.store.database import Database
d = Database(Path(sys.argv[1])); d.write(lambda tx: None)
pid = os.fork()
if pid == 0:
    open(sys.argv[1], "rb").close()
    d.read(lambda tx: None)
    try: open(sys.argv[1], "rb")
    except PermissionError: os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
try: open(sys.argv[1], "rb")
except PermissionError: print("guarded")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.db"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout, done.stderr) == ("guarded\n", "")
