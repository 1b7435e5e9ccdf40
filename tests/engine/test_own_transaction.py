"""SPEC 3.5 and A04: starts inside a transaction that the application began on its own connection to the same file."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from enginekit import define_job, duplicates, holder, in_child, live_owner, own, put, snapshot, told

from durable_cli import Debounce, Durable, KeyTaken, workflow
from durable_cli.errors import DatabaseNotFound, DurableError, InternalError, InvalidInput, UsageError
from durable_cli.store import joined
from durable_cli.store.contention import Contention

POLICIES = ("use_existing", "error", "cancel_existing", "run_again", "send_event:poke")


@pytest.fixture
def app(durable: Durable) -> Iterator[apsw.Connection]:
    """The application's connection, and a table of its own in durable's file."""
    durable.start(define_job(name="first"))  # the file is there
    connection = apsw.Connection(str(durable.path))
    connection.set_busy_timeout(10_000)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
    yield connection
    connection.close()


def begin(app: apsw.Connection) -> None:
    app.execute("BEGIN IMMEDIATE")


def order(app: apsw.Connection, what: str) -> None:
    app.execute("INSERT INTO orders (what) VALUES (?)", (what,))


def orders(app: apsw.Connection) -> list[str]:
    return [row[0] for row in app.execute("SELECT what FROM orders ORDER BY id")]


class Heard:
    """What a listener was told, and waiting for it: it is told in a thread of its own, after the commit."""

    def __init__(self, durable: Durable) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        durable.on("*", lambda event, fields: self.events.append((event, fields)))

    def names(self) -> list[str]:
        return [event for event, _ in self.events]

    def wait(self, count: int) -> list[str]:
        end = time.monotonic() + 10
        while len(self.events) < count:
            assert time.monotonic() < end, f"told only {self.events}"
            time.sleep(0.002)
        settled()
        return self.names()


def settled() -> None:
    """Whoever looks after a commit has looked."""
    for thread in threading.enumerate():
        if thread.name == "durable-after-commit":
            thread.join(10)


# -- commit and rollback -------------------------------------------------------------------------------------------


def test_the_run_is_there_with_the_applications_commit(durable: Durable, app: apsw.Connection) -> None:
    """One commit for both: before it nobody sees either, after it both are there, and the run executes."""
    job, heard = define_job(), Heard(durable)
    begin(app)
    order(app, "tea")
    answer = durable.start(job, {"order": 1}, key="k", connection=app)
    assert (answer.outcome, answer.key, answer.status) == ("created", "k", "pending")
    assert durable.runs(workflow="job") == []
    assert heard.names() == []
    app.execute("COMMIT")
    assert heard.wait(1) == ["run.started"]
    assert heard.events[0][1]["run_id"] == answer.run_id
    assert orders(app) == ["tea"]
    assert durable.run(answer.run_id).holds_key
    assert durable.execute(job, {"order": 1}, key="k").run.id == answer.run_id
    assert durable.check() == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("status", [None, "pending", "running", "waiting", "completed"])
def test_rolled_back_nothing_ever_was(durable: Durable, app: apsw.Connection, status: str | None, policy: str) -> None:
    """No run, no key, no activity, no notice, whatever the policy and whatever was there before."""
    job = define_job("after_failure")
    if status is not None:
        put(durable, job, status, key="k", input="old", owner=live_owner(durable) if status == "running" else None)
    before, rows = snapshot(durable), durable.activity()
    heard = Heard(durable)
    begin(app)
    order(app, "tea")
    try:
        durable.start(job, "new", key="k", on_duplicate=policy, connection=app)
    except KeyTaken:
        pass
    app.execute("ROLLBACK")
    settled()
    assert (snapshot(durable), durable.activity(), orders(app)) == (before, rows, [])
    assert heard.names() == []
    assert durable.check() == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("status", [None, "pending", "running", "waiting", "compensating", "completed", "failed"])
def test_a_duplicate_leaves_the_transaction_usable(
    durable: Durable, app: apsw.Connection, status: str | None, policy: str
) -> None:
    """A04: the answer is that of an ordinary start, also KeyTaken; the application's next write is committed."""
    job = define_job("after_failure")

    def prepare(key: str) -> None:
        if status is not None:
            owner = live_owner(durable) if status in ("running", "compensating") else None
            put(durable, job, status, key=key, input="old", owner=owner)

    prepare("alone")
    prepare("joined")

    def outcome(key: str, **more: Any) -> str:
        try:
            return str(durable.start(job, "new", key=key, on_duplicate=policy, **more).outcome)
        except KeyTaken as taken:
            assert durable.run(taken.holder_id).key == key
            return "taken"

    alone = outcome("alone")
    begin(app)
    order(app, "before")
    joined = outcome("joined", connection=app)
    assert app.in_transaction
    order(app, "after")
    app.execute("COMMIT")
    assert joined == alone
    assert orders(app) == ["before", "after"]

    def shape(key: str) -> list[Any]:
        return [(row.kind, row.details.get("outcome"), row.details.get("input")) for row in told(durable, key)]

    assert shape("joined") == shape("alone")
    assert [(run.status, run.holds_key) for run in durable.runs(key="joined")] == [
        (run.status, run.holds_key) for run in durable.runs(key="alone")
    ]
    assert durable.check() == []


def test_an_uncaught_refusal_rolls_the_callers_block_back(durable: Durable, app: apsw.Connection) -> None:
    """As docs/choosing.md warns: `with connection` sees the exception, and the application's own rows are gone."""
    job = define_job()
    put(durable, job, "running", key="k", owner=live_owner(durable))
    with pytest.raises(KeyTaken), app:
        order(app, "tea")
        durable.start(job, key="k", on_duplicate="error", connection=app)
    assert orders(app) == []
    assert duplicates(durable, "k") == [], "the refusal was rolled back too"
    begin(app)
    order(app, "tea")
    with pytest.raises(KeyTaken):
        durable.start(job, key="k", on_duplicate="error", connection=app)
    app.execute("COMMIT")
    assert orders(app) == ["tea"]
    assert [row["outcome"] for row in duplicates(durable, "k")] == ["error"]


def test_many_starts_in_one_transaction(durable: Durable, app: apsw.Connection) -> None:
    """They see one another: the second one of a key is a duplicate of the first."""
    job, heard = define_job(), Heard(durable)
    begin(app)
    first = durable.start(job, 1, key="k", connection=app)
    again = durable.start(job, 2, key="k", connection=app)
    last = durable.start(job, 3, key="k", on_duplicate="cancel_existing", connection=app)
    free = durable.start(job, 4, connection=app)
    assert [one.outcome for one in (first, again, last, free)] == ["created", "existing", "replaced", "created"]
    assert again.run_id == first.run_id
    app.execute("COMMIT")
    told_of = heard.wait(7)
    assert sorted(told_of) == sorted(["run.started"] * 3 + ["key.duplicate"] * 2 + ["run.cancelled", "key.handoff"])
    assert durable.check() == []


# -- savepoints ----------------------------------------------------------------------------------------------------


def test_a_savepoint_that_is_rolled_back_takes_its_start_along(durable: Durable, app: apsw.Connection) -> None:
    """And only that; the rest of the transaction is committed, and the listeners are told of what was."""
    job, heard = define_job(), Heard(durable)
    begin(app)
    kept = durable.start(job, 1, key="kept", connection=app)
    app.execute("SAVEPOINT inner")
    gone = durable.start(job, 2, key="gone", connection=app)
    app.execute("ROLLBACK TO inner")
    app.execute("RELEASE inner")
    settled()
    assert heard.names() == [], "the transaction goes on"
    app.execute("COMMIT")
    heard.wait(1)
    assert [fields["run_id"] for _, fields in heard.events] == [kept.run_id]
    assert holder(durable, "kept") is not None
    assert durable.runs(key="gone") == []
    assert durable.start(job, 2, key="gone").run_id != gone.run_id


def test_a_released_savepoint_announces_nothing_yet(durable: Durable, app: apsw.Connection) -> None:
    """Only the outer commit does, also when the start was inside of nested savepoints."""
    job, heard = define_job(), Heard(durable)
    begin(app)
    app.execute("SAVEPOINT a")
    app.execute("SAVEPOINT b")
    answer = durable.start(job, 1, key="k", connection=app)
    app.execute("RELEASE b")
    app.execute("RELEASE a")
    settled()
    assert heard.names() == []
    app.execute("/* done */ COMMIT TRANSACTION")
    assert heard.wait(1) == ["run.started"]
    assert durable.run(answer.run_id).status == "pending"


def test_apsws_own_context_manager(durable: Durable, app: apsw.Connection) -> None:
    """`with connection:` begins deferred: once the application has written in it, a start may take part."""
    job, heard = define_job(), Heard(durable)
    with app:
        with pytest.raises(UsageError, match="begun for writing"):
            durable.start(job, 1, key="k", connection=app)
        order(app, "tea")
        with app:
            answer = durable.start(job, 1, key="k", connection=app)
        settled()
        assert heard.names() == []
    assert heard.wait(1) == ["run.started"]
    assert durable.run(answer.run_id).holds_key


def test_a_commit_that_fails_announces_nothing_and_the_next_one_does(durable: Durable, app: apsw.Connection) -> None:
    """A deferred constraint refuses the COMMIT, the transaction stays open, and is mended."""
    job, heard = define_job(), Heard(durable)
    app.execute("PRAGMA foreign_keys = 1")
    app.execute("CREATE TABLE lines (o INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)")
    begin(app)
    answer = durable.start(job, 1, key="k", connection=app)
    app.execute("INSERT INTO lines VALUES (99)")
    with pytest.raises(apsw.ConstraintError):
        app.execute("COMMIT")
    settled()
    assert heard.names() == []
    app.execute("DELETE FROM lines")
    app.execute("COMMIT")
    assert heard.wait(1) == ["run.started"]
    assert durable.run(answer.run_id).holds_key


def test_a_transaction_that_sqlite_rolled_back(durable: Durable, app: apsw.Connection) -> None:
    """INSERT OR ROLLBACK ends it: nothing is there, and nothing is told of it by a later commit."""
    job, heard = define_job(), Heard(durable)
    app.execute("CREATE UNIQUE INDEX one ON orders (what)")
    begin(app)
    order(app, "tea")
    durable.start(job, 1, key="k", connection=app)
    with pytest.raises(apsw.ConstraintError):
        app.execute("INSERT OR ROLLBACK INTO orders (what) VALUES ('tea')")
    begin(app)
    order(app, "coffee")
    app.execute("COMMIT")
    settled()
    assert heard.names() == []
    assert durable.runs(key="k") == []


def test_a_connection_that_is_closed_without_a_commit(durable: Durable, app: apsw.Connection) -> None:
    """Nothing was, nothing is told, and the thread may start again."""
    job, heard = define_job(), Heard(durable)
    other = apsw.Connection(str(durable.path))
    other.execute("BEGIN IMMEDIATE")
    durable.start(job, 1, key="k", connection=other)
    other.close()
    settled()
    assert heard.names() == []
    assert durable.start(job, 2, key="k").outcome == "created"


def test_a_process_that_dies_before_its_commit(durable: Durable, app: apsw.Connection) -> None:
    """As if it had never started anything."""
    job = define_job()

    def child() -> None:
        with Durable(durable.path) as it:
            connection = apsw.Connection(str(it.path))
            connection.execute("BEGIN IMMEDIATE")
            it.start(job, 1, key="k", connection=connection)
            import os

            os._exit(0)

    assert in_child(child) == 0
    assert durable.runs(key="k") == []
    assert durable.start(job, 2, key="k").outcome == "created"


# -- what is refused -----------------------------------------------------------------------------------------------


class _Look:
    """Anything that is no connection of apsw's."""


def _deferred(durable: Durable) -> apsw.Connection:
    connection = apsw.Connection(str(durable.path))
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM orders").fetchall()
    return connection


def _foreign(durable: Durable) -> apsw.Connection:
    connection = apsw.Connection(str(durable.path.with_name("other.db")))
    connection.execute("BEGIN IMMEDIATE")
    return connection


def _memory(durable: Durable) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute("BEGIN IMMEDIATE")
    return connection


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_deferred, "only a read transaction, which cannot safely become a write"),
        (lambda durable: apsw.Connection(str(durable.path)), "no transaction"),
        (_foreign, "other.db"),
        (_memory, "no file"),
        (lambda durable: sqlite3.connect(":memory:"), "two of them in one process on one file lose data"),
        (lambda durable: _Look(), "it is a .*_Look"),
        (lambda durable: str(durable.path), "it is a builtins.str"),
    ],
    ids=["deferred", "none", "foreign", "memory", "sqlite3", "object", "path"],
)
def test_a_connection_that_cannot_be_used(
    durable: Durable, app: apsw.Connection, make: Callable[[Durable], Any], why: str
) -> None:
    """Each is one clear error, and nothing is written."""
    job, before = define_job(), snapshot(durable)
    connection = make(durable)
    with pytest.raises(UsageError, match=why) as refused:
        durable.start(job, 1, key="k", connection=connection)
    assert refused.value.exit_status == 2
    if hasattr(connection, "close"):
        connection.close()
    assert snapshot(durable) == before


def _linked(durable: Durable) -> apsw.Connection:
    os.link(durable.path, durable.path.with_name("link.db"))
    return apsw.Connection(str(durable.path.with_name("link.db")))


def _writable_by_all(durable: Durable) -> apsw.Connection:
    durable.path.chmod(0o666)
    return apsw.Connection(str(durable.path))


@pytest.mark.parametrize("make", [_linked, _writable_by_all])
def test_a_file_that_durable_would_not_use_itself(
    durable: Durable, app: apsw.Connection, make: Callable[[Durable], apsw.Connection]
) -> None:
    """Through another hard link SQLite writes to another -wal, and the commits are lost with that name."""
    app.close()
    durable.close()
    connection = make(durable)
    begin(connection)
    with pytest.raises(DurableError):
        durable.start(define_job(), 1, key="k", connection=connection)
    assert connection.changes() == 0
    connection.execute("ROLLBACK")
    connection.close()


def test_tables_are_not_made_where_that_was_ruled_out(db: Path) -> None:
    """`create=False` means the same on both ways in."""
    app = apsw.Connection(str(db))
    begin(app)
    with Durable(db, create=False) as it, pytest.raises(DatabaseNotFound):
        it.start(define_job(), 1, connection=app)
    app.execute("COMMIT")
    assert app.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    app.close()


def _dict_rows(app: apsw.Connection) -> None:
    app.row_trace = lambda cursor, row: {
        name[0]: value for name, value in zip(cursor.get_description(), row, strict=True)
    }


def _no_rows(app: apsw.Connection) -> None:
    app.row_trace = lambda cursor, row: None


def _no_statements(app: apsw.Connection) -> None:
    app.exec_trace = lambda cursor, sql, bindings: "durable" not in sql


class _Rows(apsw.Cursor):
    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self.row_trace = lambda cursor, row: list(row)


def _cursors(app: apsw.Connection) -> None:
    app.cursor_factory = _Rows


@pytest.mark.parametrize("make", [_dict_rows, _no_rows, _no_statements, _cursors])
def test_an_application_may_make_its_own_rows(
    durable: Durable, app: apsw.Connection, make: Callable[[apsw.Connection], None]
) -> None:
    """Rows as dicts are common with apsw. What it set stays set, and is not asked about our statements."""
    make(app)
    job = define_job()
    begin(app)
    first = durable.start(job, 1, key="k", connection=app)
    again = durable.start(job, 2, key="k", connection=app)
    app.execute("COMMIT")
    assert (first.outcome, again.outcome, again.run_id) == ("created", "existing", first.run_id)
    assert durable.run(first.run_id).input == "1"


@pytest.mark.parametrize("state", ["closed", "busy"])
def test_a_connection_that_fails_is_our_error(durable: Durable, app: apsw.Connection, state: str) -> None:
    """Not one of apsw's."""
    if state == "closed":
        app.close()
        with pytest.raises(UsageError, match="cannot be used"):
            durable.start(define_job(), 1, connection=app)
        return
    found: list[BaseException] = []

    def use() -> None:
        try:
            durable.start(define_job(), 1, connection=app)
        except DurableError as error:
            found.append(error)

    def from_another_thread() -> int:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join(20)
        return 1

    app.create_scalar_function("from_another_thread", from_another_thread, 0)
    begin(app)
    app.execute("SELECT from_another_thread()").fetchall()
    app.execute("ROLLBACK")
    assert [type(error) for error in found] in ([UsageError], [InternalError])


def test_what_is_wrong_with_the_start_leaves_the_transaction_alone(durable: Durable, app: apsw.Connection) -> None:
    @workflow(name="typed", key="n:{n}")
    def typed(ctx: Any, input: dict[str, int]) -> None:
        return None

    begin(app)
    order(app, "tea")
    for bad in ({"n": "x"}, {}, 5):
        with pytest.raises(DurableError):
            durable.start(typed, bad, connection=app)
    with pytest.raises(InvalidInput):
        durable.start(typed, "no", connection=app)
    app.execute("COMMIT")
    assert orders(app) == ["tea"]
    assert durable.runs(workflow="typed") == []


def test_a_start_without_the_connection_in_that_thread_is_an_error_at_once(
    durable: Durable, app: apsw.Connection
) -> None:
    """It would wait for the thread that waits. Whatever writes says so; reading goes on."""
    job = define_job()
    begin(app)
    run_id = durable.start(job, 1, key="k", connection=app).run_id
    began = time.monotonic()
    for write in (
        lambda: durable.start(job, 2, key="k"),
        lambda: durable.cancel(key="k"),
        lambda: durable.execute(job, 3, key="other"),
        lambda: durable.start_many(job, [{"key": "m"}]),
    ):
        with pytest.raises(UsageError, match="this thread holds a write transaction"):
            write()
    assert time.monotonic() - began < 5
    assert durable.runs(key="k") == []
    app.execute("COMMIT")
    assert durable.start(job, 2, key="k").run_id == run_id


def test_another_thread_waits_for_the_commit(durable: Durable, app: apsw.Connection) -> None:
    """As for any other process; the transaction it waits for may go on starting meanwhile, also by bare name."""
    job, answers = define_job(), []
    begin(app)
    first = durable.start(job, 1, key="k", connection=app).run_id
    began = threading.Event()

    def wait() -> None:
        began.set()
        answers.append(durable.start(job, 2, key="k"))

    thread = threading.Thread(target=wait)
    with Durable(durable.path, clock=durable._engine.now) as it:  # does not jump where it waits
        durable_now, durable = durable, it
        thread.start()
        began.wait()
        time.sleep(0.05)
        assert answers == []
        at = time.monotonic()
        other = apsw.Connection(str(it.path))  # one that has not taken part before
        other.close()
        second = durable_now.start("job", 3, key="l", connection=app)
        assert time.monotonic() - at < 5, "the one that waits for us must not be waited for"
        app.execute("COMMIT")
        thread.join(20)
    assert [(one.outcome, one.run_id) for one in answers] == [("existing", first)]
    assert durable_now.run(second.run_id).holds_key


def test_a_connection_that_took_part_once_may_be_another_threads_now(durable: Durable, app: apsw.Connection) -> None:
    """As from a pool: what it holds in another thread is waited for, and is no transaction of ours."""
    job = define_job()
    begin(app)
    durable.start(job, 1, key="first", connection=app)
    app.execute("COMMIT")
    settled()
    begun, met = threading.Event(), threading.Event()

    def other() -> None:
        begin(app)
        begun.set()
        assert met.wait(10)
        app.execute("COMMIT")

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(10)
    durable._engine.database._contention = Contention(sleep=lambda _: (met.set(), thread.join(10))[1])
    assert durable.start(job, 2, key="second").outcome == "created"
    assert met.is_set()


def test_a_child_forked_beside_a_thread_that_holds_a_lock(durable: Durable, app: apsw.Connection) -> None:
    """Whoever held it is not in the child. What took part before is over there, and nothing of ours."""
    job = define_job()
    begin(app)
    durable.start(job, 1, key="k", connection=app)
    app.execute("COMMIT")
    settled()
    with joined._lock, durable._engine._lock:
        assert in_child(lambda: durable.execute(job, 2, key="other")) == 0
    assert durable.find(key="other").status == "completed"


def test_a_child_forked_inside_the_transaction_is_told_so(durable: Durable, app: apsw.Connection) -> None:
    """SQLite in the child believes that it holds the parent's lock itself: it would wait for ever."""
    job = define_job()
    begin(app)
    durable.start(job, 1, key="k", connection=app)

    def child() -> None:
        with pytest.raises(UsageError, match="forked in the middle of a transaction"):
            durable.start(job, 2, key="other")

    assert in_child(child) == 0
    app.execute("COMMIT")
    assert [run.key for run in durable.runs(workflow="job")] == ["k"]


def test_no_thread_left_to_look_whether_it_is_committed(
    durable: Durable, app: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A COMMIT that was done never raises; what is to be told is told after the next one."""
    job, heard = define_job(), Heard(durable)

    def exhausted(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    begin(app)
    durable.start(job, 1, key="k", connection=app)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", exhausted)
        app.execute("COMMIT")
    assert durable.find(key="k").status == "pending"
    assert heard.names() == []
    begin(app)
    order(app, "tea")
    app.execute("COMMIT")
    assert heard.wait(1) == ["run.started"]


def test_reading_in_a_transaction_on_a_file_that_is_not_ready(db: Path) -> None:
    """Opening it would have to write: said at once, not after 30 s."""
    app = apsw.Connection(str(db))  # not in WAL mode
    with Durable(db) as it:
        begin(app)
        it.start(define_job(), 1, key="k", connection=app)
        with pytest.raises(UsageError, match="this thread holds a write transaction"):
            it.runs()
        app.execute("COMMIT")
        assert [run.key for run in it.runs()] == ["k"]
    app.close()


# -- policies of the workflow --------------------------------------------------------------------------------------


def test_inputs_are_merged_in_the_transaction(durable: Durable, app: apsw.Connection) -> None:
    @workflow(name="sum", on_duplicate="run_again", merge=lambda old, new: old + new)
    def summed(ctx: Any, n: int) -> int:
        return ctx.run("n", int, n)

    first = durable.start(summed, 1, key="k").run_id
    begin(app)
    assert durable.start(summed, 10, key="k", connection=app).outcome == "merged"
    assert durable.start(summed, 100, key="k", connection=app).outcome == "merged"
    assert durable.run(first).input == "1"
    app.execute("COMMIT")
    assert durable.run(first).input == "111"
    begin(app)
    durable.start(summed, 1000, key="k", connection=app)
    app.execute("ROLLBACK")
    assert durable.run(first).input == "111"


def test_debounced_in_the_transaction(durable: Durable, app: apsw.Connection, clock: Any) -> None:
    @workflow(name="saved", debounce=Debounce("30s"))
    def saved(ctx: Any, n: int) -> int:
        return ctx.run("n", int, n)

    first = durable.start(saved, 1, key="k")
    due = durable.run(first.run_id).due_at
    clock.advance(10_000)
    begin(app)
    assert durable.start(saved, 2, key="k", connection=app).outcome == "merged"
    app.execute("ROLLBACK")
    run = durable.run(first.run_id)
    assert (run.input, run.due_at) == ("1", due), "the old pair"
    begin(app)
    durable.start(saved, 3, key="k", connection=app)
    app.execute("COMMIT")
    run = durable.run(first.run_id)
    assert (run.input, run.due_at) == ("3", clock.now + 30_000), "the new pair"
    assert [row["input"] for row in duplicates(durable, "k")] == [1]


def test_a_worker_is_woken_by_the_commit_and_never_by_a_rollback(
    durable: Durable, app: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[list[int]] = []
    monkeypatch.setattr("durable_cli.producing.wake.ring", lambda path, workers: rung.append(list(workers)))
    worker = durable._engine.become("worker")
    job = define_job()
    begin(app)
    durable.start(job, 1, key="k", connection=app)
    app.execute("ROLLBACK")
    settled()
    assert rung == []
    begin(app)
    durable.start(job, 1, key="k", connection=app)
    settled()
    assert rung == []
    app.execute("COMMIT")
    settled()
    assert rung == [[worker]]
    begin(app)
    order(app, "tea")
    app.execute("COMMIT")
    settled()
    assert rung == [[worker]], "a commit without a start tells nobody"


def test_a_rolled_back_duplicate_is_not_told_for_one_of_somebody_else(
    durable: Durable, app: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of its row in the activity is given to the next duplicate of the same workflow; who looks only then
    must not take that for its own."""
    job, heard = define_job(), Heard(durable)
    durable.start(job, 1, key="k")
    heard.events.clear()
    late: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: late.append(thread))
    begin(app)
    durable.start(job, 2, key="k", connection=app)
    app.execute("ROLLBACK")
    monkeypatch.undo()
    with Durable(durable.path, clock=durable._engine.now) as other:
        other.start(job, 3, key="k")
    for thread in late:
        thread.start()
    settled()
    assert len(late) == 1
    assert heard.names() == []
    assert [row["input"] for row in duplicates(durable, "k")] == [3]


def test_a_start_with_an_id_of_the_callers_may_be_repeated(durable: Durable, app: apsw.Connection) -> None:
    """Who lost the answer starts again with the same id, in a transaction too: it is that run."""
    job = define_job()
    durable.start(job, 1, key="k", run_id="abcdefghjk")
    begin(app)
    assert durable.start(job, 1, key="k", run_id="abcdefghjk", connection=app).run_id == "abcdefghjk"
    assert durable.start(job, 1, key="l", run_id="abcdefghjm", connection=app).outcome == "created"
    app.execute("COMMIT")
    assert [run.key for run in durable.runs(workflow="job")] == ["l", "k"]
    assert duplicates(durable, "k") == []


# -- the file ------------------------------------------------------------------------------------------------------


def test_tables_are_made_in_an_applications_file_that_has_none(db: Path) -> None:
    """In the caller's transaction: rolled back, the file has none; committed, durable works with it."""
    app = apsw.Connection(str(db))
    app.pragma("journal_mode", "wal")
    app.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
    job = define_job()

    def tables() -> int:
        return int(app.execute("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'durable%'").fetchone()[0])

    with Durable(db) as it:
        begin(app)
        order(app, "tea")
        it.start(job, 1, key="k", connection=app)
        app.execute("ROLLBACK")
        assert (tables(), orders(app)) == (0, [])
        begin(app)
        order(app, "tea")
        answer = it.start(job, 1, key="k", connection=app)
        app.execute("COMMIT")
        settled()
        assert tables() > 0
        assert orders(app) == ["tea"]
        assert it.execute(job, 1, key="k").run.id == answer.run_id
        assert it.check() == []
    app.close()


def test_the_applications_other_statements_are_not_watched_for_ever(durable: Durable, app: apsw.Connection) -> None:
    """The application's own tracer goes on, and a start leaves its connection's settings as they were."""
    seen: list[str] = []
    app.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: seen.append(event["sql"]), id="mine")
    job = define_job()
    begin(app)
    durable.start(job, 1, key="k", connection=app)
    app.execute("COMMIT")
    assert "COMMIT" in seen
    settled()
    own(durable, durable.find(key="k").id, live_owner(durable))
    assert durable.find(key="k").status == "pending"
