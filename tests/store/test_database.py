"""Transactions on the file: all or nothing, one at a time, and no failure that is not named."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from durable_cli import errors
from durable_cli.store import failures, library
from durable_cli.store.database import Database, Notice, Tx

ROOT = Path(__file__).parents[2]


def put(tx: Tx, name: str = "x") -> int:
    return tx.insert("INSERT INTO durable_meta (name, value) VALUES (:name, 'v') RETURNING 1", name=name)


def names(tx: Tx) -> list[str]:
    return [row["name"] for row in tx.rows("SELECT name FROM durable_meta WHERE value = 'v' ORDER BY name")]


def child(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A process of its own that runs `code`, with `Database`, `put`, `names` and its arguments at hand."""
    begin = """
        import os, sys, time
        from pathlib import Path
        from durable_cli import errors
        from durable_cli.store.database import Database
        a = sys.argv[1:]
        def put(tx, name): tx.change("INSERT INTO durable_meta (name, value) VALUES (:n, 'v')", n=name)
        def names(tx): return [r["name"] for r in tx.rows("SELECT name FROM durable_meta WHERE value = 'v'")]
    """
    text = textwrap.dedent(begin) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the write lock, until it is given a line."""
    code = """
        def hold(tx): print("in", flush=True); sys.stdin.readline()
        Database(Path(a[0])).write(hold)
    """
    with child(code, path) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "in\n"
        yield other
        other.kill()


def let_go(other: subprocess.Popen[str]) -> None:
    """And it is over when this returns."""
    other.communicate("\n", timeout=60)


def answer(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()


def in_new_process(path: Path) -> tuple[list[str], str]:
    """What a process that comes later finds: the names, and SQLite's word on the file."""
    code = "import json; d = Database(Path(a[0]));"
    code += "print(json.dumps(d.read(lambda t: [sorted(names(t)), t.value('PRAGMA integrity_check')])))"
    import json

    found, sound = json.loads(answer(child(code, path)))
    return found, sound


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "durable.db"


@pytest.fixture
def db(path: Path) -> Iterator[Database]:
    database = Database(path)
    yield database
    database.close()


# -- Tx ------------------------------------------------------------------------------------------------------------


def test_tx_answers_with_rows_values_and_counts(db: Database) -> None:
    """Bindings go in by name; rows come out as dicts, counts and ids as numbers, and nothing as None or []."""

    def work(tx: Tx) -> None:
        first = tx.insert("INSERT INTO durable_owners (pid, kind, created_at) VALUES (:p, :k, :c)", p=1, k="run", c=5)
        second = tx.insert("INSERT INTO durable_owners (pid, kind, created_at) VALUES (2, 'worker', 6)")
        assert second == first + 1
        assert tx.rows("SELECT id, pid AS p FROM durable_owners ORDER BY id") == [
            {"id": first, "p": 1},
            {"id": second, "p": 2},
        ]
        assert tx.row("SELECT pid FROM durable_owners WHERE id = :id", id=second) == {"pid": 2}
        assert tx.value("SELECT count(*) FROM durable_owners") == 2
        assert tx.change("UPDATE durable_owners SET pid = 3") == 2
        assert tx.change("UPDATE durable_owners SET pid = 3 WHERE id = -1") == 0
        assert tx.rows("SELECT id FROM durable_owners WHERE id = -1") == []
        assert tx.row("SELECT id FROM durable_owners WHERE id = -1") is None
        assert tx.value("SELECT id FROM durable_owners WHERE id = -1") is None
        with pytest.raises(KeyError):
            tx.value("SELECT :absent", other=1)

    db.write(work)


def test_a_savepoint_undoes_its_block_and_no_more(db: Database) -> None:
    """What raises inside a savepoint leaves the rest of the transaction as it was, and nobody is told of it."""
    told: list[str] = []
    db.on_commit = lambda notices: told.extend(one.event for one in notices)

    def work(tx: Tx) -> None:
        put(tx, "before")
        tx.notices.append(Notice("before", {}))
        with pytest.raises(ValueError), tx.savepoint():
            put(tx, "undone")
            tx.notices.append(Notice("undone", {}))
            with tx.savepoint():
                put(tx, "undone too")
            raise ValueError
        with tx.savepoint():
            put(tx, "kept")
            tx.notices.append(Notice("kept", {}))

    db.write(work)
    assert db.read(names) == told == ["before", "kept"]


def test_what_the_callback_raises_rolls_back_and_comes_out_unchanged(db: Database) -> None:
    """Any exception, BaseException too, is the caller's own, and nothing was written."""
    for raised in (ValueError("mine"), KeyboardInterrupt()):

        def work(tx: Tx, raised: BaseException = raised) -> None:
            put(tx)
            raise raised

        with pytest.raises(type(raised)) as caught:
            db.write(work)
        assert caught.value is raised
    assert db.read(names) == []


def test_sql_that_sqlite_refuses_is_our_bug_and_never_a_raw_error(db: Database) -> None:
    """A broken constraint or statement is `InternalError` with SQLite's words."""
    with pytest.raises(errors.InternalError, match="owner_kind_is_known"):
        db.write(lambda tx: tx.insert("INSERT INTO durable_owners (pid, kind, created_at) VALUES (1, 'x', 1)"))
    with pytest.raises(errors.InternalError, match="no such table"):
        db.read(lambda tx: tx.rows("SELECT * FROM durable_nothing"))


def test_transactions_do_not_nest(db: Database, path: Path) -> None:
    """A transaction inside another on the same file is a bug that is named at once, not a wait of 30 s."""
    other = Database(path)
    for inner in (db.write, db.read, other.write):
        for outer in (db.write, db.read):
            with pytest.raises(errors.InternalError, match="open in this thread"):
                outer(lambda tx, inner=inner: inner(names))
    assert db.read(names) == []


def test_a_read_that_writes_is_refused(db: Database) -> None:
    """`read` never changes the file."""
    with pytest.raises(errors.InternalError, match="read transaction wrote"):
        db.read(put)
    assert db.read(names) == []


# -- the file ------------------------------------------------------------------------------------------------------


def test_settings(db: Database) -> None:
    """Full durability, checked keys, and no trust in what a schema from elsewhere says."""
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "trusted_schema": 0, "cell_size_check": 1}
    for pragma, value in wanted.items():
        assert db.read(lambda tx, pragma=pragma: tx.value(f"PRAGMA {pragma}")) == value, pragma
    with pytest.raises(errors.InternalError):  # DEFENSIVE
        db.write(lambda tx: tx.change("PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = ''"))
    with pytest.raises(errors.InternalError, match="no such column"):  # "text" is a name, never a string
        db.read(lambda tx: tx.value('SELECT "text"'))


def test_all_files_are_private(db: Database, path: Path) -> None:
    """The database and the files beside it are 0600, a directory that we make 0700, whatever the umask."""
    before = os.umask(0)
    try:
        inner = Database(path.parent / "made" / "durable.db")
        inner.write(put)
    finally:
        os.umask(before)
    assert stat.S_IMODE(inner.path.parent.stat().st_mode) == 0o700
    files = list(inner.path.parent.iterdir())
    assert {file.name for file in files} == {"durable.db", "durable.db-wal", "durable.db-shm"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    inner.close()


def test_without_create_nothing_is_created(tmp_path: Path) -> None:
    """A reader of a missing file, an empty file or somebody else's database finds no database, and leaves no trace."""
    with pytest.raises(errors.DatabaseNotFound):
        Database(tmp_path / "a" / "x.db", create=False).read(names)
    with pytest.raises(errors.DatabaseNotFound):
        Database(tmp_path / "x.db", create=False).read(names)
    assert list(tmp_path.iterdir()) == []
    empty = tmp_path / "empty.db"
    empty.touch(0o600)
    with pytest.raises(errors.DatabaseNotFound):
        Database(empty, create=False).read(names)
    assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [("empty.db", 0)]


def test_the_path_is_resolved_once(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path and a symlink mean the file they meant when the object was made."""
    (tmp_path / "link.db").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    relative, linked = Database(Path("durable.db")), Database(tmp_path / "link.db")
    monkeypatch.chdir("/")
    (tmp_path / "link.db").unlink()
    relative.write(put)
    assert linked.read(names) == ["x"]
    assert relative.path == linked.path == path
    relative.close()
    linked.close()


@pytest.mark.parametrize(
    ("prepare", "error", "words"),
    [
        (lambda p: p.mkdir(), errors.DatabaseUnusable, "is a directory"),
        (lambda p: p.write_bytes(b"this is a text, not a database " * 40), errors.DatabaseCorrupt, "not an SQLite"),
        (lambda p: os.mkfifo(p), errors.DatabaseUnusable, "not a regular file"),
        (lambda p: (p.touch(0o600), os.link(p, str(p) + "2")), errors.DatabaseUnusable, "2 names"),
        (lambda p: (p.touch(), p.chmod(0o666)), errors.DatabaseUnusable, "others may write"),
        (lambda p: p.parent.chmod(0o777), errors.DatabaseUnusable, "others may write"),
        (lambda p: p.symlink_to(p), errors.DatabaseUnusable, "symbolic links"),
    ],
)
def test_a_path_that_cannot_be_used_is_diagnosed(
    path: Path, prepare: Callable[[Path], object], error: type[Exception], words: str
) -> None:
    """Each of them has its own message with the path, where SQLite has one for all."""
    prepare(path)
    with pytest.raises(error, match=words) as caught:
        Database(path).read(names)
    assert str(path.parent) in str(caught.value)


def test_a_long_missing_path_is_a_slip(tmp_path: Path) -> None:
    """One missing directory is made, two are refused with the remedy; a file in place of a directory too."""
    with pytest.raises(errors.DatabaseUnusable, match="does not exist") as caught:
        Database(tmp_path / "a" / "b" / "x.db").read(names)
    assert caught.value.hint is not None
    assert "mkdir -p" in caught.value.hint
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    with pytest.raises(errors.DatabaseUnusable, match="is not a directory"):
        Database(tmp_path / "file" / "x.db").read(names)
    with pytest.raises(errors.DatabaseUnusable, match="not a path"):
        Database(Path("a\0b"))


def test_below_home_all_directories_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default place works on a machine that has no ~/.local yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".local" / "share" / "durable" / "durable.db"
    db = Database(path)
    db.write(put)
    db.close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((0o755, 0o600), "DatabaseUnusable no permission to read"),
        ((0o700, 0o600), "DatabaseUnusable cannot open"),
        ((0o755, 0o644), "DatabaseReadOnly cannot write the database"),
    ],
)
def test_what_another_user_may_not_is_named_with_the_owner(path: Path, modes: tuple[int, int], expected: str) -> None:
    """A user without rights reads which file or directory bars the way and whose it is."""
    db = Database(path)
    db.write(put)
    db.close()
    for folder in path.parents:
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    path.parent.chmod(modes[0])
    path.chmod(modes[1])
    code = """
        d = Database(Path(a[0]), create=False)
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        try: d.write(lambda tx: put(tx, "y")); print("written")
        except errors.DurableError as error: print(type(error).__name__, error.message, *error.facts)
    """
    said = answer(child(code, path))
    assert said.startswith(expected)
    assert "belongs to root" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
def test_a_directory_that_cannot_be_written_is_named(path: Path) -> None:
    """SQLite must make files beside the database; where it cannot, the directory and its owner are said."""
    db = Database(path)
    db.write(put)
    db.close()
    os.chown(path, 65534, 65534)
    for folder in path.parents:
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    code = """
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        try: Database(Path(a[0])).write(lambda tx: put(tx, "y")); print("written")
        except errors.DurableError as error: print(type(error).__name__, error.message, *error.facts)
    """
    said = answer(child(code, path))
    assert said.startswith("DatabaseReadOnly cannot write in the directory")
    assert "belongs to root" in said


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.52.0", "3.44.5", "3.50.6"])
def test_an_sqlite_that_corrupts_is_refused(version: str) -> None:
    """Versions with the WAL-reset bug, checked at run time: the wheel in use need not be the one that was asked for."""
    with pytest.raises(errors.DatabaseUnusable, match=version):
        library.check(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.53.0", "3.54.1", "3.44.6", "3.50.7", "4.0.0"])
def test_a_mended_sqlite_is_accepted(version: str) -> None:
    """Mended versions and the lines the mending was brought back to."""
    library.check(version)


# -- several at once -----------------------------------------------------------------------------------------------


def test_eight_threads(db: Database) -> None:
    """Eight threads on one object: every commit is there, once, and no error."""

    def work(number: int) -> None:
        for turn in range(40):
            name = f"{number}-{turn:02}"
            db.write(lambda tx, name=name: put(tx, name))
            assert name in db.read(names)

    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(db.read(names)) == 320


def test_a_lock_that_is_never_given_back(path: Path, db: Database) -> None:
    """After 30 s of waiting (slept in random small steps) it is `DatabaseLocked`, and nothing was written."""
    db.write(put)
    pauses: list[float] = []
    dice = iter([0.0, 1.0] * 20_000)
    waiting = Database(path, sleep=pauses.append, dice=lambda: next(dice))
    with held(path) as other:
        with pytest.raises(errors.DatabaseLocked, match="30 s") as locked:
            waiting.write(lambda tx: put(tx, "y"))
        assert locked.value.facts == ()
        assert sum(pauses) == pytest.approx(30.0, abs=0.01)
        assert (min(pauses), max(pauses)) == pytest.approx((0.0002, 0.003))
        assert waiting.read(names) == ["x"]  # readers do not wait
        let_go(other)
    waiting.write(lambda tx: put(tx, "y"))
    waiting.close()


def test_a_lock_of_another_thread_of_this_process(path: Path, db: Database) -> None:
    """It may be given back, so it is waited for; the error says where the lock is."""
    db.write(put)
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    waiting = Database(path, sleep=lambda _: None, dice=lambda: 1.0)
    found: list[BaseException] = []

    def write() -> None:
        try:
            waiting.write(lambda tx: put(tx, "y"))
        except errors.DurableError as error:
            found.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(60)
    assert [type(error) for error in found] == [errors.DatabaseLocked]
    assert "connection of this process" in found[0].facts[0]  # type: ignore[attr-defined]
    holder.execute("ROLLBACK")
    waiting.close()


def test_a_lock_of_our_own_is_not_waited_for(path: Path, db: Database) -> None:
    """Where there is no other thread that could give it back: a connection that never took part in anything."""
    db.write(put)
    code = """
        import apsw
        db = Database(Path(a[0]))
        holder = apsw.Connection(a[0])
        holder.execute("BEGIN IMMEDIATE")
        try:
            db.write(lambda tx: put(tx, "y"))
        except errors.UsageError as error:
            print(error)
        print(db.read(names))
        holder.execute("ROLLBACK")
        db.write(lambda tx: put(tx, "y"))
    """
    said = answer(child(code, path))
    assert "this thread holds a write transaction" in said
    assert "['x']" in said
    assert db.read(names) == ["x", "y"]


def test_ctrl_c_ends_the_wait_for_a_lock(path: Path, db: Database) -> None:
    """What is raised while waiting comes out unchanged, and the object can be used afterwards."""
    db.write(put)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    waiting = Database(path, sleep=interrupt)
    with held(path) as other:
        with pytest.raises(KeyboardInterrupt):
            waiting.write(lambda tx: put(tx, "y"))
        let_go(other)
    waiting.write(lambda tx: put(tx, "z"))
    assert db.read(names) == ["x", "z"]
    waiting.close()


@pytest.mark.parametrize("where", ["begun", "written", "committing", "closing"])
def test_a_handler_that_raises_leaves_no_transaction_behind(path: Path, db: Database, where: str) -> None:
    """Ctrl-C, or an alarm: between any two lines, those that end the transaction too. Nobody is locked out."""
    db.write(put)
    places = {"begun": "_check_identity", "written": "stand", "committing": "_commit", "closing": "_roll_back"}
    left = [places[where]]

    def trace(frame: Any, event: str, _: object) -> None:
        if event == "call" and left and frame.f_code.co_name == left[0]:
            left.clear()
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            db.write(lambda tx: put(tx, "y"))
            db.read(names)
    finally:
        sys.settrace(before)
    other = Database(path, sleep=lambda _: pytest.fail("it is locked"))
    other.write(lambda tx: put(tx, "z"))
    assert {"x", "z"} <= set(db.read(names))
    db.write(lambda tx: put(tx, "zz"))
    other.close()


def test_another_process_is_waited_for(path: Path, db: Database) -> None:
    """A write begins when the other process's has ended, and sees what it wrote."""
    code = """
        def slow(tx):
            put(tx, "theirs"); print("in", flush=True); sys.stdin.readline()
        Database(Path(a[0])).write(slow)
    """
    other = child(code, path)
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "in\n"
    told = False

    def sleep(seconds: float) -> None:
        nonlocal told
        if not told:
            told = True
            other.stdin.write("go on\n")
            other.stdin.flush()
        threading.Event().wait(seconds)

    waiting = Database(path, sleep=sleep)
    assert waiting.write(lambda tx: (names(tx), put(tx, "ours"))[0]) == ["theirs"]
    assert told
    answer(other)
    waiting.close()


def test_a_forked_child_has_its_own_connection(path: Path) -> None:
    """The child reads and writes, ends normally, and the parent, whose thread never stopped, has lost nothing."""
    code = """
        import threading
        d = Database(Path(a[0]))
        d.write(lambda tx: put(tx, "first"))
        stop = threading.Event(); done = []
        def busy():
            while not stop.is_set():
                d.write(lambda tx: put(tx, f"thread-{len(done)}")); done.append(1)
        thread = threading.Thread(target=busy); thread.start()
        children = []
        for number in range(15):
            pid = os.fork()
            if pid == 0:
                d.write(lambda tx: put(tx, f"child-{number}"))
                sys.exit(0 if "first" in d.read(names) else 3)   # a whole interpreter's end, destructors and all
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        stop.set(); thread.join()
        d.write(lambda tx: put(tx, "last"))
        assert codes == [0] * 15, codes
        print(len(done))
    """
    commits = int(answer(child(code, path)))
    found, sound = in_new_process(path)
    assert sound == "ok"
    assert {"first", "last", *(f"child-{number}" for number in range(15))} <= set(found)
    assert sum(name.startswith("thread-") for name in found) == commits


def test_a_forked_child_never_closes_its_parents_connection(path: Path) -> None:
    """Not when it forgets it, nor when it opens its own, nor when its interpreter ends."""
    code = """
        import apsw
        class V(apsw.VFS):
            def xOpen(self, name, flags): return F(name, flags)
        class F(apsw.VFSFile):
            def __init__(self, name, flags):
                self.opened_by = os.getpid(); super().__init__("", name, flags)
            def xClose(self):
                os.write(2, b"" if self.opened_by == os.getpid() else b"closed by a child")
                super().xClose()
        vfs = V("watched", "")
        d = Database(Path(a[0]), vfs="watched")
        d.write(lambda tx: put(tx, "x"))
        pid = os.fork()
        if pid == 0:
            d.write(lambda tx: put(tx, "y")); d.close(); del d
            import gc; gc.collect()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        d.close()
    """
    process = child(code, path)
    assert process.communicate(timeout=60) == ("", "")
    assert in_new_process(path) == (["x", "y"], "ok")


def test_a_fork_inside_a_transaction(path: Path) -> None:
    """The child can neither commit nor roll back its parent's transaction; it is told, and may begin its own."""
    code = """
        d = Database(Path(a[0]))
        def work(tx):
            put(tx, "parent")
            pid = os.fork()
            if pid == 0:
                try: put(tx, "stolen"); os._exit(3)
                except errors.InternalError: pass
                return None
            assert os.waitpid(pid, 0)[1] == 0
            put(tx, "parent too")
            return pid
        try:
            d.write(work)
        except errors.InternalError as error:
            assert "forked" in error.message and d.read(names) == []
            sys.exit(0)
    """
    answer(child(code, path))
    assert in_new_process(path) == (["parent", "parent too"], "ok")


# -- deleted and replaced ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_deleted_file_is_noticed_before_a_commit(path: Path, db: Database, suffix: str) -> None:
    """SQLite would go on committing into a file without a name; we refuse, reads too, until it is opened anew."""
    db.write(put)
    os.unlink(f"{path}{suffix}")
    with pytest.raises(errors.DatabaseReplaced, match="deleted or replaced"):
        db.write(lambda tx: put(tx, "y"))
    with pytest.raises(errors.DatabaseReplaced):
        db.read(names)


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_deletion_inside_the_transaction_is_noticed(path: Path, db: Database, suffix: str) -> None:
    """Looked at again right before COMMIT."""

    def work(tx: Tx) -> None:
        put(tx)
        os.unlink(f"{path}{suffix}")

    with pytest.raises(errors.DatabaseReplaced):
        db.write(work)


def test_a_replaced_file_is_noticed(path: Path, db: Database, tmp_path: Path) -> None:
    """A backup that is moved over the live file stops us, and its content stays what it was."""
    db.write(put)
    db.write(lambda tx: None)
    other = tmp_path / "backup.db"
    db.read(lambda tx: None)
    answer(child("import apsw; apsw.Connection(a[0]).execute('VACUUM INTO ?', (a[1],))", path, other))
    db.write(lambda tx: put(tx, "later"))
    os.replace(other, path)
    for suffix in ("-wal", "-shm"):
        os.unlink(f"{path}{suffix}")
    with pytest.raises(errors.DatabaseReplaced):
        db.write(lambda tx: put(tx, "y"))
    assert in_new_process(path) == (["x"], "ok")


# -- failing disks -------------------------------------------------------------------------------------------------


class Faults:
    """What the failing disk still has to fail: `kind` ('sync' or 'write') of WAL files, `left` times, with `code`."""

    kind = "sync"
    left = 0
    code = apsw.SQLITE_IOERR_FSYNC

    def point(self, kind: str, name: str) -> None:
        if kind == self.kind and name.endswith("-wal") and self.left > 0:
            self.left -= 1
            raise apsw.exception_for(self.code)


class FaultyVFS(apsw.VFS):
    def __init__(self, name: str, faults: Faults) -> None:
        self.faults = faults
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return FaultyFile(self.faults, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, faults: Faults, name: Any, flags: list[int]) -> None:
        self.faults = faults
        self.name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:
        self.faults.point("sync", self.name)
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.faults.point("write", self.name)
        super().xWrite(data, offset)


@pytest.fixture
def faults() -> Iterator[Faults]:
    found = Faults()
    vfs = FaultyVFS("faulty", found)
    yield found
    vfs.unregister()


@pytest.fixture
def faulty(path: Path, faults: Faults) -> Iterator[Database]:
    database = Database(path, vfs="faulty")
    database.write(lambda tx: put(tx, "before"))
    yield database
    faults.left = 0
    database.close()


def landed(tx: Tx) -> str | None:
    return "found" if "x" in names(tx) else None


def work_once(tx: Tx) -> str:
    put(tx)
    return "done"


def test_an_unknown_commit_that_is_not_there(faulty: Database, faults: Faults) -> None:
    """fsync fails in COMMIT, the new connection does not see the row and a commit takes its place: surely nothing."""
    faults.left = 1
    with pytest.raises(errors.DiskError):
        faulty.write(work_once, landed=landed)
    assert faults.left == 0
    assert faulty.read(names) == ["before"]
    faulty.write(work_once)
    assert in_new_process(faulty.path) == (["before", "x"], "ok")


def test_an_unknown_commit_that_is_there(faulty: Database, faults: Faults) -> None:
    """fsync fails in COMMIT, and once more at the closing: recovery brings the row back, and the write succeeded."""
    faults.left = 2
    assert faulty.write(work_once, landed=landed) == "found"
    assert faults.left == 0
    assert faulty.read(names) == ["before", "x"]
    assert in_new_process(faulty.path) == (["before", "x"], "ok")


def test_an_unknown_commit_that_nobody_can_look_up(faulty: Database, faults: Faults) -> None:
    """Without `landed`, or with a disk that goes on failing, the answer is `OutcomeUnknown` and never "failed"."""
    faults.left = 1
    with pytest.raises(errors.OutcomeUnknown, match="cannot be told"):
        faulty.write(work_once)
    faults.left = 1_000
    with pytest.raises(errors.OutcomeUnknown):
        faulty.write(lambda tx: put(tx, "y"), landed=landed)
    faults.left = 0
    assert in_new_process(faulty.path)[1] == "ok"


@pytest.mark.parametrize("code", [apsw.SQLITE_FULL, apsw.SQLITE_IOERR_WRITE])
@pytest.mark.parametrize("often", [1, 1_000])
def test_a_full_disk(faulty: Database, faults: Faults, code: int, often: int) -> None:
    """`DiskFull`; what was acknowledged is intact, and work goes on by itself once there is space."""
    faults.kind, faults.code, faults.left = "write", code, often
    with pytest.raises(errors.DiskFull, match="no space"):
        faulty.write(work_once, landed=landed)
    faults.left = 0
    assert faulty.read(names) == ["before"]
    assert faulty.write(work_once) == "done"
    assert in_new_process(faulty.path) == (["before", "x"], "ok")


def test_a_transaction_that_fell_takes_nothing_more(faulty: Database, faults: Faults) -> None:
    """A full disk in mid-transaction rolls it back; the callback that goes on regardless commits nothing singly."""
    faults.kind, faults.code, faults.left = "write", apsw.SQLITE_FULL, 1

    def work(tx: Tx) -> None:
        put(tx)
        with pytest.raises(errors.DiskFull):  # larger than the page cache, so it is written before the COMMIT
            tx.change("INSERT INTO durable_meta (name, value) VALUES ('big', hex(randomblob(5000000)))")
        with pytest.raises(errors.DiskFull):
            put(tx, "alone")

    with pytest.raises(errors.DiskFull):
        faulty.write(work)
    assert faulty.read(names) == ["before"]


def test_a_limit_on_the_size_of_files(path: Path) -> None:
    """`ulimit -f` is a full disk too, and every acknowledged row is there afterwards."""
    code = """
        import resource
        d = Database(Path(a[0])); d.write(lambda tx: put(tx, "0000"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
        number = 0
        try:
            while number < 5000:
                number += 1; d.write(lambda tx: put(tx, f"{number:04}"))
        except errors.DiskFull as error: print(number - 1, "ulimit -f" in " ".join(error.facts))
    """
    acknowledged, named = answer(child(code, path)).split()
    assert named == "True"
    assert 10 < int(acknowledged) < 5000
    found, sound = in_new_process(path)
    assert sound == "ok"
    assert found == [f"{number:04}" for number in range(int(acknowledged) + 1)]


@pytest.mark.parametrize(
    ("code", "number", "expected"),
    [
        (apsw.SQLITE_BUSY_SNAPSHOT, 0, errors.DatabaseLocked),
        (apsw.SQLITE_IOERR_SHMSIZE, 0, errors.DiskFull),
        (apsw.SQLITE_IOERR_WRITE, 5, errors.DiskError),
        (apsw.SQLITE_IOERR_FSYNC, 28, errors.DiskFull),
        (apsw.SQLITE_IOERR_READ, 0, errors.DiskError),
        (apsw.SQLITE_IOERR_CORRUPTFS, 0, errors.DatabaseCorrupt),
        (apsw.SQLITE_CORRUPT, 0, errors.DatabaseCorrupt),
        (apsw.SQLITE_NOTADB, 0, errors.DatabaseCorrupt),
        (apsw.SQLITE_READONLY_DBMOVED, 0, errors.DatabaseReplaced),
        (apsw.SQLITE_READONLY, 0, errors.DatabaseReadOnly),
        (apsw.SQLITE_CANTOPEN, 24, errors.DatabaseUnusable),
        (apsw.SQLITE_CONSTRAINT_CHECK, 0, errors.InternalError),
        (apsw.SQLITE_TOOBIG, 0, errors.InternalError),
    ],
)
def test_every_error_of_sqlite_is_one_of_ours(
    tmp_path: Path, code: int, number: int, expected: type[errors.DurableError]
) -> None:
    """By SQLite's extended code and the system's number behind it."""
    path = tmp_path / "x.db"
    path.touch()
    found = failures.translate(apsw.exception_for(code), path, number)
    assert type(found) is expected
    assert str(path) in found.message


def test_kill_in_a_write_leaves_all_or_nothing(path: Path, db: Database) -> None:
    """A process killed in mid-transaction wrote nothing, and the next writer gets in at once."""
    db.write(put)
    code = """
        def work(tx):
            put(tx, "half"); print("in", flush=True); time.sleep(60)
        Database(Path(a[0])).write(work)
    """
    other = child(code, path)
    assert other.stdout is not None
    assert other.stdout.readline() == "in\n"
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    db.write(lambda tx: put(tx, "y"))
    assert db.read(names) == ["x", "y"]
