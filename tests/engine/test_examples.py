"""The examples do what they promise: their steps on small trees, then whole runs over real input."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from durable_cli import Abort, Durable
from durable_cli.errors import EngineFileOpened

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MOMENT = dt.datetime(2026, 11, 29, 2, 30, tzinfo=dt.UTC)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


backup = load("backup")
articles = load("articles")


def quiet() -> None:
    """A heartbeat that nobody hears."""


# -- backup: the steps ---------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A bit of everything: 5 files (one with a second name, one empty), a link, an empty folder."""
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "void").mkdir()
    (source / "a.txt").write_text("alpha")
    (source / "empty").write_bytes(b"")
    (source / "deep" / "big.bin").write_bytes(os.urandom(300_000))
    (source / "deep" / "er" / "ünïcode \n name").write_text("line")
    os.link(source / "a.txt", source / "deep" / "same.txt")
    (source / "link").symlink_to("a.txt")
    return source


def plan(source: Path, *, moment: dt.datetime = MOMENT, token: str = "0123abcd", **options: Any) -> Any:
    options.setdefault("target", str(source.parent / "target"))
    return backup.make_plan(backup.Backup(source=str(source), **options), moment, token)


def save(source: Path, **options: Any) -> tuple[Any, Any]:
    planned = plan(source, **options)
    return planned, backup.write_archive(planned, quiet)


def lines(made: Any) -> dict[str, dict[str, Any]]:
    """The manifest by name."""
    return {line["name"]: line for line in map(json.loads, Path(made.manifest).read_text().splitlines())}


def names_in(target: Path) -> set[str]:
    return {path.name for path in target.iterdir()}


@contextlib.contextmanager
def refusing(name: str, error: OSError) -> Iterator[None]:
    """Opening a file of this name fails: root may read everything, so `chmod 0` would prove nothing here."""
    real = os.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> int:
        if os.path.basename(path) == name:
            raise error
        return real(path, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


@pytest.mark.parametrize("compress", ["gz", "none"])
def test_an_archive_restores_the_tree(tree: Path, tmp_path: Path, compress: str) -> None:
    """What `tar -x` gives back is the tree: content, modes, times, links of both kinds and empty folders."""
    (tree / "a.txt").chmod(0o640)
    os.utime(tree / "a.txt", (1_700_000_000, 1_700_000_000))
    planned, made = save(tree, compress=compress)
    assert backup.verify_archive(planned, made, quiet) == 10
    assert (made.files, made.bytes, made.skipped, made.changed) == (5, 300_009, 0, 0)
    assert hashlib.sha256(Path(made.archive).read_bytes()).hexdigest() == made.sha256
    assert Path(made.archive).stat().st_size == made.size
    subprocess.run(["tar", "-xf", made.archive, "-C", tmp_path / "target"], check=True)
    back = tmp_path / "target" / "source"
    for path in (p for p in tree.rglob("*") if p.is_file()):
        assert (back / path.relative_to(tree)).read_bytes() == path.read_bytes()
    assert (back / "a.txt").stat().st_mode & 0o777 == 0o640
    assert (back / "a.txt").stat().st_mtime == 1_700_000_000
    assert (back / "a.txt").samefile(back / "deep" / "same.txt")
    assert os.readlink(back / "link") == "a.txt"
    assert list((back / "void").iterdir()) == []


def test_the_plan_is_absolute_and_named_by_its_arguments(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~` and relative paths are resolved in the step; the name is made of the source, the moment and the
    token, and of nothing else, so that a replay gives it again.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    job = backup.Backup(source="~/source", target="target")
    first = backup.make_plan(job, MOMENT, "00000000-0000-4000-8000-0000deadbeef")
    assert first.source == str(tree)
    assert first.archive.startswith(f"{tmp_path}/target/source-")
    assert first.archive.endswith("-20261129T023000Z-deadbeef.tar.gz")
    assert first == backup.make_plan(job, MOMENT, "00000000-0000-4000-8000-0000deadbeef")
    assert first.archive != backup.make_plan(job, MOMENT, "ffffffff-0000-4000-8000-00001234abcd").archive
    elsewhere = MOMENT.astimezone(dt.timezone(dt.timedelta(hours=9)))
    assert first.archive == backup.make_plan(job, elsewhere, "deadbeef").archive


def test_what_cannot_be_saved_is_named_and_stops_nothing(tree: Path) -> None:
    """Unreadable, vanished and special files are skipped with a reason; the rest is saved and verified."""
    os.mkfifo(tree / "pipe")
    (tree / "secret").write_text("s")
    (tree / "gone").write_text("g")
    (tree / "loop").symlink_to(".")
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tree)  # a socket's path must be short
        server.bind("sock")
        planned = plan(tree)
        with refusing("secret", PermissionError(13, "Permission denied")):
            with refusing("gone", FileNotFoundError(2, "No such file or directory")):
                made = backup.write_archive(planned, quiet)
    found = lines(made)
    reasons = {name: line["why"] for name, line in found.items() if line["kind"] == "skipped"}
    assert reasons == {
        "pipe": "a named pipe",
        "sock": "a socket",
        "secret": "Permission denied",
        "gone": "No such file or directory",
    }
    assert planned.skipped == 2
    assert made.skipped == 4
    assert "secret: Permission denied" in made.examples
    assert found["source/loop"] == {"kind": "link", "name": "source/loop", "link": "."}
    assert backup.verify_archive(planned, made, quiet) == len(found) - 4


def test_a_folder_that_cannot_be_listed_is_skipped(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One closed folder costs itself only; a source that cannot be listed is an error."""
    real = os.scandir
    closed = tree / "deep"

    def scandir(path: Any) -> Any:
        if os.fspath(path).rstrip("/") == str(closed):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    _, made = save(tree)
    assert lines(made)["deep"]["why"] == "Permission denied"
    assert made.files == 2
    closed = tree
    with pytest.raises(PermissionError):
        save(tree)


def test_a_file_guarded_by_durable_is_skipped_with_its_words(tree: Path) -> None:
    """The walker meets durable's own database: a PermissionError without a number of the system."""
    (tree / "durable.db").write_text("x")
    with refusing("durable.db", EngineFileOpened("durable has it open")):
        _, made = save(tree)
    assert lines(made)["durable.db"] == {
        "kind": "skipped",
        "name": "durable.db",
        "why": "durable has it open",
    }


def test_the_target_inside_the_source_is_left_out(tree: Path) -> None:
    """Backups do not save the backups, also when they are reached by another path."""
    (tree / "backups").mkdir()
    (tree / "backups" / "old.tar").write_text("old")
    (tree.parent / "alias").symlink_to(tree / "backups")
    planned, made = save(tree, target=str(tree.parent / "alias"))
    assert lines(made)["backups"]["why"] == "the folder that the backups are in"
    assert not [name for name in lines(made) if "old.tar" in name]
    assert backup.verify_archive(planned, made, quiet) == 10


def test_excluded_names_are_left_out_silently(tree: Path) -> None:
    """A pattern is for a name anywhere or for a path from the source."""
    _, made = save(tree, exclude=("*.bin", "deep/er", "void"))
    assert sorted(lines(made)) == [
        "source",
        "source/a.txt",
        "source/deep",
        "source/deep/same.txt",
        "source/empty",
        "source/link",
    ]
    assert made.skipped == 0


@pytest.mark.parametrize(
    ("meanwhile", "problem"),
    [
        (lambda path: os.truncate(path, 1000), "became shorter while it was read"),
        (lambda path: path.open("ab").write(b"more"), "changed while it was read"),
    ],
)
def test_a_file_that_changes_while_it_is_read_is_saved_and_named(
    tree: Path, meanwhile: Callable[[Path], object], problem: str
) -> None:
    """The archive stays whole, the manifest tells what is in it, the report tells which file."""
    planned = plan(tree)
    big = tree / "deep" / "big.bin"
    real = backup.Content.read
    with pytest.MonkeyPatch.context() as patch:

        def read(content: Any, count: int) -> bytes:
            if content._left == 300_000:
                meanwhile(big)
            data: bytes = real(content, count)
            return data

        patch.setattr(backup.Content, "read", read)
        made = backup.write_archive(planned, quiet)
    assert lines(made)["source/deep/big.bin"]["changed"] == problem
    assert (made.files, made.changed) == (5, 1)
    assert made.examples == [f"deep/big.bin: {problem}"]
    backup.verify_archive(planned, made, quiet)


def test_names_that_are_not_utf8_are_saved(tmp_path: Path) -> None:
    """A file name is bytes; results stay text that can be stored."""
    source = tmp_path / "source"
    source.mkdir()
    try:
        Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9")).write_text("x")
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    planned, made = save(source)
    assert backup.verify_archive(planned, made, quiet) == 2
    os.mkfifo(os.fsencode(source) + b"/p\xffpe")
    assert plan(source).examples == ["p\\xffpe: a named pipe"]


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "itself"])
def test_a_hopeless_plan_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """Above all an empty source: an unmounted disk must not rotate good archives away."""
    source = tmp_path / "source"
    if kind == "file":
        source.write_text("x")
    elif kind != "missing":
        source.mkdir()
    if kind == "itself":
        (source / "a").write_text("a")
    with pytest.raises(Abort, match=str(source)):
        plan(source, target=str(source if kind == "itself" else tmp_path / "target"))


@pytest.mark.parametrize(
    "wrong", [{"keep": 0}, {"source": ""}, {"target": ""}], ids=lambda wrong: str(next(iter(wrong)))
)
def test_an_input_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must"):
        backup.Backup(**{"source": "a", "target": "b", **wrong})


# -- backup: interruptions -----------------------------------------------------------------------------------


def test_a_killed_archive_leaves_only_partials_and_the_next_attempt_succeeds(tree: Path) -> None:
    """kill -9 in the middle: no file has the archive's name. The second attempt starts from nothing."""
    code = (
        "import importlib.util, os, signal, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import backup, datetime\n"
        "beats = []\n"
        "def beat():\n"
        "    beats.append(1)\n"
        "    if len(beats) > 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "backup.pulse = lambda beat: beat\n"
        "job = backup.Backup(source=sys.argv[2], target=sys.argv[3])\n"
        "moment = datetime.datetime(2026, 11, 29, 2, 30, tzinfo=datetime.timezone.utc)\n"
        "backup.write_archive(backup.make_plan(job, moment, '0123abcd'), beat)\n"
    )
    target = tree.parent / "target"
    paths = os.pathsep.join(p for p in sys.path if p)
    died = subprocess.run(
        [sys.executable, "-c", code, EXAMPLES, tree, target],
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    assert died.returncode == -9
    planned = plan(tree)
    name = os.path.basename(planned.archive)
    assert names_in(target) == {f"{name}.partial", f"{name}.manifest.partial"}
    (target / f"{name}.partial").write_bytes(b"not to be trusted")
    made = backup.write_archive(planned, quiet)
    backup.verify_archive(planned, made, quiet)
    assert names_in(target) == {name, f"{name}.manifest"}


def test_an_archive_that_was_named_but_not_recorded_is_made_again(tree: Path) -> None:
    """A crash between the rename and the record: what lies there is not believed, whoever wrote it."""
    planned, made = save(tree)
    Path(made.archive).write_bytes(b"forged")
    Path(made.manifest).write_bytes(b"forged")
    again = backup.write_archive(planned, quiet)
    assert again == made
    assert backup.verify_archive(planned, again, quiet) == 10


def test_a_lent_link_is_not_written_through(tree: Path) -> None:
    """Somebody put a link where the partial goes: it is removed, its file stays as it was."""
    planned = plan(tree)
    victim = tree.parent / "victim"
    victim.write_text("mine")
    os.symlink(victim, planned.archive + ".partial")
    made = backup.write_archive(planned, quiet)
    assert victim.read_text() == "mine"
    assert not os.path.islink(made.archive)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_archive_that_raises_leaves_nothing(tree: Path, error: BaseException) -> None:
    """A full disk gets its space back, and so does a run that was cancelled."""
    planned = plan(tree)
    with pytest.MonkeyPatch.context() as patch:

        def write(sink: Any, data: bytes) -> int:
            raise error

        patch.setattr(backup.Sink, "write", write)
        with pytest.raises(type(error)):
            backup.write_archive(planned, quiet)
    assert names_in(tree.parent / "target") == set()


# -- backup: verify ------------------------------------------------------------------------------------------


def flip(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 0x10
    Path(path).write_bytes(data)


@pytest.mark.parametrize("compress", ["gz", "none"])
@pytest.mark.parametrize("where", [0.0, 0.1, 0.5, 0.9, 0.9999])
def test_verify_sees_a_flipped_bit_anywhere(tree: Path, compress: str, where: float) -> None:
    """Headers, contents, padding, the end: whatever it hits, the archive is put aside and the step fails."""
    planned, made = save(tree, compress=compress)
    flip(made.archive, int(made.size * where))
    with pytest.raises(backup.Damaged, match=os.path.basename(made.archive)):
        backup.verify_archive(planned, made, quiet)
    assert os.path.exists(made.archive + ".damaged")
    assert not os.path.exists(made.archive)
    assert backup.archives(planned) == []


@pytest.mark.parametrize("compress", ["gz", "none"])
@pytest.mark.parametrize("cut", [1, 700, 200_000])
def test_verify_sees_a_short_archive(tree: Path, compress: str, cut: int) -> None:
    planned, made = save(tree, compress=compress)
    os.truncate(made.archive, made.size - cut)
    with pytest.raises(backup.Damaged):
        backup.verify_archive(planned, made, quiet)


@pytest.mark.parametrize("compress", ["gz", "none"])
@pytest.mark.parametrize("tail", [b"\0" * 20_000, b"more"])
def test_verify_sees_a_long_archive(tree: Path, compress: str, tail: bytes) -> None:
    """Also zeros, which tar and gzip take for padding."""
    planned, made = save(tree, compress=compress)
    with open(made.archive, "ab") as file:
        file.write(tail)
    with pytest.raises(backup.Damaged):
        backup.verify_archive(planned, made, quiet)


def test_verify_sees_a_changed_manifest_and_a_missing_archive(tree: Path) -> None:
    planned, made = save(tree)
    Path(made.manifest).write_text(Path(made.manifest).read_text().replace("a.txt", "b.txt"))
    with pytest.raises(backup.Damaged, match="another manifest"):
        backup.verify_archive(planned, made, quiet)
    with pytest.raises(backup.Damaged, match="is gone"):
        backup.verify_archive(planned, made, quiet)


def test_verify_compares_each_member(tree: Path, tmp_path: Path) -> None:
    """A sound tar of another tree does not pass, and the difference is named."""
    planned, made = save(tree, compress="none")
    (tree / "empty").write_text("no more")
    other = backup.write_archive(plan(tree, compress="none", token="89abcdef"), quiet)
    mixed = dict(vars(made), archive=other.archive, sha256=other.sha256, size=other.size)
    with pytest.raises(backup.Damaged, match=r"other bytes in source/empty"):
        backup.verify_archive(planned, backup.Archived(**mixed), quiet)


# -- backup: rotate and report -------------------------------------------------------------------------------


def test_rotation_keeps_the_newest_of_this_source_only(tree: Path) -> None:
    """Others' files, other sources, look-alikes, links and folders stay; a manifest goes with its archive."""
    made = [save(tree, moment=MOMENT + dt.timedelta(days=day), compress="none") for day in range(4)]
    planned, newest = made[-1]
    target = tree.parent / "target"
    prefix = planned.prefix
    bystanders = {
        "notes.txt",
        "source-ffffffff-20200101T000000Z-00000000.tar.gz",
        f"{prefix}20200101T000000Z-00000000.tar.gz.damaged",
        f"{prefix}20200101T000000Z-00000000.tar.gz.bak",
        f"{prefix}20200101T000000Z-zzzzzzzz.tar.gz",
        f"my-{prefix}20200101T000000Z-00000000.tar.gz",
        f"{prefix}20200101T000000Z-00000000.tar\n",
    }
    for name in bystanders:
        (target / name).write_text("x")
    (target / f"{prefix}20200101T000000Z-11111111.tar").symlink_to("notes.txt")
    (target / f"{prefix}20200101T000000Z-22222222.tar").mkdir()
    removed = backup.rotate(planned, 2)
    assert removed == [os.path.basename(made[n][1].archive) for n in (1, 0)]
    kept = {os.path.basename(path) for _, m in made[2:] for path in (m.archive, m.manifest)}
    links = {f"{prefix}20200101T000000Z-11111111.tar", f"{prefix}20200101T000000Z-22222222.tar"}
    assert names_in(target) == kept | bystanders | links
    assert backup.rotate(planned, 2) == []
    told = backup.report(planned, newest, removed)
    assert (told.kept, told.kept_bytes) == (2, sum(m.size for _, m in made[2:]))
    assert len(json.dumps(vars(told))) < 4096


@pytest.mark.parametrize("keep", [1, 2])
def test_rotation_never_removes_the_archive_just_written(tree: Path, keep: int) -> None:
    """The clock was set back, so the new archive has the oldest name; it stays all the same."""
    for day in (1, 2, 3):
        save(tree, moment=MOMENT + dt.timedelta(days=day))
    planned, _ = save(tree, moment=MOMENT)
    backup.rotate(planned, keep)
    assert os.path.basename(planned.archive) in backup.archives(planned)
    assert len(backup.archives(planned)) == keep


def test_rotation_removes_partials_that_nobody_writes_any_more(tree: Path) -> None:
    """A run that was given up leaves a partial; one that may still be written stays."""
    planned, _ = save(tree)
    old, young = (Path(f"{planned.target}/{planned.prefix}20261101T000000Z-{n * 8}.tar.partial") for n in "ab")
    for path in (old, young):
        path.write_text("half")
    os.utime(old, (1, 1))
    backup.rotate(planned, 7)
    assert not old.exists()
    assert young.exists()


# -- articles: the feed --------------------------------------------------------------------------------------


def feed(tmp_path: Path, text: str) -> list[Any]:
    path = tmp_path / "feed.xml"
    path.write_text(text, "utf-8")
    found: list[Any] = articles.read_feed(path, tmp_path / "out")
    return found


def atom(entries: str, attributes: str = "") -> str:
    return f'<feed xmlns="http://www.w3.org/2005/Atom" {attributes}>{entries}</feed>'


OF_NOVEMBER = "2026-11-15T17:30:00+01:00"


def rss(items: str) -> str:
    space = 'xmlns:content="http://purl.org/rss/1.0/modules/content/"'
    return f'<rss version="2.0" {space}><channel><title>T</title>{items}</channel></rss>'


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        (atom("<entry><id> tag:x,1 </id><link href='http://a/'/></entry>"), "id", "tag:x,1"),
        (atom("<entry><link href='http://a/b'/></entry>"), "id", "http://a/b"),
        (atom("<entry><link rel='self' href='s'/><link href='b'/></entry>", "xml:base='http://a/'"), "link", "http://a/b"),
        (atom("<entry><link rel='enclosure' href='s'/></entry>"), "link", ""),
        (atom("<entry><title>a &lt;b> &amp; c</title></entry>"), "title", "a <b> & c"),
        (atom("<entry><title type='html'>a &lt;b>b&lt;/b> &amp;amp; c</title></entry>"), "title", "a b & c"),
        (atom("<entry><content type='html'>&lt;p>x&lt;/p></content></entry>"), "content", "<p>x</p>"),
        (atom("<entry><content>1 &lt; 2</content></entry>"), "content", "1 &lt; 2"),
        (
            atom("<entry><content type='xhtml'><h:div xmlns:h='http://www.w3.org/1999/xhtml'><h:p>x</h:p></h:div></content></entry>"),
            "content",
            "<div><p>x</p></div>",
        ),
        (atom("<entry><updated>2026-01-02T00:00:00Z</updated></entry>"), "published", "2026-01-02T00:00:00Z"),
        (rss("<item><guid>g-1</guid><link>http://a/</link></item>"), "id", "g-1"),
        (rss("<item><link> http://a/ </link></item>"), "id", "http://a/"),
        (rss("<item><title>No name</title></item>"), "id", ""),
        (rss("<item><content:encoded>c</content:encoded></item>"), "content", "c"),
        (rss("<item><description>d</description></item>"), "summary", "d"),
        (rss("<item><pubDate>Sun, 15 Nov 2026 17:30:00 +0100</pubDate></item>"), "published", OF_NOVEMBER),
        (rss("<item><pubDate>yesterday</pubDate></item>"), "published", ""),
    ],
)  # fmt: skip
def test_an_entry_is_read(tmp_path: Path, text: str, field: str, value: str) -> None:
    """Atom and RSS 2.0, with the ways in which real feeds differ."""
    (article,) = feed(tmp_path, text)
    assert getattr(article, field) == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<!DOCTYPE rss [<!ENTITY a 'aa'><!ENTITY b '&a;&a;'>]>" + rss("<item>&b;</item>"), "document type"),
        ("<!DOCTYPE rss SYSTEM 'file:///etc/passwd'>" + rss(""), "document type"),
        (rss("<item><title>&undefined;</title></item>"), "not XML"),
        ("<html></html>", "begins with <html>"),
        ("", "not XML"),
        (rss("<item>")[:-20], "not XML"),
    ],
)  # fmt: skip
def test_a_bad_feed_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(articles.BadFeed, match=complaint):
        feed(tmp_path, text)


def test_a_feed_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(articles, "MAX_FEED_BYTES", 10)
    with pytest.raises(articles.BadFeed, match="larger"):
        feed(tmp_path, rss(""))


@pytest.mark.parametrize(("name", "count"), [("feed.xml", 12), ("feed-rss.xml", 4)])
def test_the_feeds_in_the_repository_are_whole(tmp_path: Path, name: str, count: int) -> None:
    """Every entry has an id of its own, a title, a date, a link and text; the oldest comes first."""
    found = articles.read_feed(EXAMPLES / "data" / name, tmp_path)
    assert len(found) == count == len({article.id for article in found})
    for article in found:
        assert article.title
        assert article.link.startswith("https://")
        assert articles.summarise(articles.extract(article)).words > 10
    moments = [dt.datetime.fromisoformat(article.published) for article in found]
    assert moments == sorted(moments)


@pytest.mark.parametrize("length", [1, 247, 248, 5000])
@pytest.mark.parametrize("letter", ["x", "é", "日"])
def test_every_id_has_a_key_of_its_own(length: int, letter: str) -> None:
    """At most 255 bytes, different for different ids, and the id itself where it fits."""
    one, other = letter * length, letter * length + "y"
    key = articles.article_key(one)
    assert 1 <= len(key.encode()) <= 255
    assert key != articles.article_key(other)
    assert key == articles.article_key(one)
    assert (key == f"article:{one}") == (len(one.encode()) <= 247)


# -- articles: the steps -------------------------------------------------------------------------------------


def an_article(folder: Path, **fields: str) -> Any:
    plain = {
        "id": "1",
        "title": "T",
        "link": "http://a/",
        "summary": "",
        "content": "<p>Text.</p>",
        "published": "",
    }
    return articles.Article(**{**plain, "folder": str(folder), **fields})


def test_text_is_taken_from_html(tmp_path: Path) -> None:
    source = "<h1>Head</h1><script>evil()</script><style>p{}</style><p>One <b>two</b>\n three&nbsp;&lt;</p>tail"
    assert articles.extract(an_article(tmp_path, content=source)) == "Head\n\nOne two three <\n\ntail"
    assert articles.extract(an_article(tmp_path, content="<p> </p>", summary="short")) == "short"
    with pytest.raises(Abort, match="no text"):
        articles.extract(an_article(tmp_path, content="<script>x</script>"))


@pytest.mark.parametrize(
    ("text", "words", "minutes", "lead"),
    [
        ("One. Two!\n\nThree?", 3, 1, "One. Two! Three?"),
        ("word " * 660, 660, 3, ("word " * 56)[:-6] + "…"),
        (f"Short. {'x' * 300}.", 2, 1, "Short."),
    ],
)
def test_a_summary_counts_and_quotes(text: str, words: int, minutes: int, lead: str) -> None:
    assert articles.summarise(text) == articles.Summary(words=words, minutes=minutes, lead=lead)


def test_pages_show_what_a_feed_says_and_run_none_of_it(tmp_path: Path) -> None:
    """Everything is escaped, `javascript:` is no link, and a name from a feed cannot leave the folder."""
    article = an_article(
        tmp_path / "out", id="../../etc/x", title='<script>"&', link="javascript:alert(1)", published='"><b>'
    )
    text = "<img onerror=x>"
    page = Path(articles.publish(article, text, articles.summarise(text)))
    articles.renew_index(article.folder)
    assert page.parent == tmp_path / "out"
    for shown in (page.read_text(), (tmp_path / "out" / "index.html").read_text()):
        assert "<script" not in shown
        assert "<img" not in shown
        assert "<b>" not in shown
        assert "javascript" not in shown
        assert "&lt;script&gt;" in shown


def test_publishing_twice_is_publishing_once(tmp_path: Path) -> None:
    """The step may run again after a crash: same page, same index, no partial left."""
    folder = tmp_path / "out"
    for published, id_ in [
        ("2026-01-01", "a"),
        ("2026-03-01", "b"),
        ("2026-02-01", "c"),
        ("2026-03-01", "b"),
    ]:
        article = an_article(folder, id=id_, title=f"Article {id_}", published=published)
        articles.publish(article, "Text.", articles.summarise("Text."))
        count = articles.renew_index(str(folder))
    assert count == 3
    assert len(names_in(folder)) == 4
    index = (folder / "index.html").read_text()
    places = [index.index(f"Article {id_}") for id_ in "bca"]
    assert places == sorted(places)


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    articles.write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        articles.write_whole(path, "new \udcff")
    assert path.read_text() == "old"
    assert names_in(tmp_path) == {"page.html"}


# -- whole runs ----------------------------------------------------------------------------------------------


def python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """A Python of its own that finds durable and the examples."""
    paths = os.pathsep.join([str(ROOT), str(EXAMPLES), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_backup_of_the_standard_library(tmp_path: Path) -> None:
    """Thousands of real files: archived, read back, reported; the results in the database stay small."""
    library = Path(sysconfig.get_path("stdlib"))
    job = backup.Backup(
        source=str(library),
        target=str(tmp_path / "target"),
        compress="none",
        exclude=("site-packages", "__pycache__", "config-*"),
    )
    with Durable(tmp_path / "durable.db") as durable:
        done = durable.execute(backup.backup, job, key="backup:library")
        assert done.run.status == "completed", done.run.error
        told = json.loads(done.run.result or "null")
        steps = durable.run(done.run.id).steps or ()
    assert told["files"] > 1000
    assert told["skipped"] == told["changed"] == 0
    assert [s.name for s in steps if s.kind == "run"] == ["plan", "archive", "verify", "rotate", "report"]
    assert max(len(s.result or "") for s in steps) < 4096
    with tarfile.open(told["archive"]) as tar:
        member = tar.extractfile(f"{library.name}/json/decoder.py")
        assert member is not None
        assert member.read() == (library / "json" / "decoder.py").read_bytes()


def test_a_second_night_is_a_second_archive(tree: Path, tmp_path: Path) -> None:
    """`reuse="after_close"`: the key is free again once the run ended; rotation keeps `keep`."""
    job = backup.Backup(source=str(tree), target=str(tmp_path / "target"), keep=2)
    with Durable(tmp_path / "durable.db") as durable:
        told = [json.loads(durable.execute(backup.backup, job, key="b").run.result or "null") for _ in range(4)]
    made = [os.path.basename(t["archive"]) for t in told]
    assert len(set(made)) == 4
    assert [len(t["rotated"]) for t in told] == [0, 0, 1, 1]
    assert made[3] in names_in(tmp_path / "target")
    assert len(names_in(tmp_path / "target")) == 4


DURABLE = "import sys; from durable_cli.__main__ import main; sys.argv[0] = 'durable'; sys.exit(main())"

KILLED_IN_VERIFY = """
import os, signal, sys
import backup
from durable_cli import Durable
backup.verify_archive = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
job = backup.Backup(source=sys.argv[1], target=sys.argv[2])
Durable(sys.argv[3]).execute(backup.backup, job, key="nightly")
"""


def test_a_backup_killed_in_verify_goes_on_and_archives_once(tree: Path, tmp_path: Path) -> None:
    """kill -9 while the archive is read back. The next `durable run` of the key finishes the same run, and
    the archive is the one that was written before.
    """
    target, db = tmp_path / "target", tmp_path / "durable.db"
    assert python(KILLED_IN_VERIFY, tree, target, db).returncode == -9
    (archive,) = target.glob("*.tar.gz")
    before = archive.stat()
    with Durable(db) as durable:
        (orphan,) = durable.runs()
        assert not orphan.finished
    options = ["--key", "nightly", "-P", f"source={tree}", "-P", f"target={target}", "--db", db, "--json"]
    again = python(DURABLE, "run", EXAMPLES / "backup.py", *options)
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert (told["run_id"], told["outcome"], told["status"]) == (orphan.id, "resumed", "completed")
    after = archive.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert names_in(target) == {archive.name, f"{archive.name}.manifest"}
    assert told["result"]["archive"] == str(archive)
    with Durable(db) as durable:
        attempts = {step.name: step.attempts for step in durable.run(orphan.id).steps or ()}
        assert durable.check() == []
    assert attempts["archive"] == 1
    assert attempts["verify"] == 2  # the one that the crash cut off is shown


def test_a_backup_leaves_out_the_database_that_records_it(tree: Path, tmp_path: Path) -> None:
    """The source holds durable's own files, as a home folder does: skipped, reported, no failure."""
    state = tree / "state"
    job = backup.Backup(source=str(tree), target=str(tmp_path / "target"))
    with Durable(state / "durable.db") as durable:
        done = durable.execute(backup.backup, job)
        assert done.run.status == "completed", done.run.error
        told = json.loads(done.run.result or "null")
        assert durable.check() == []
    manifest = [json.loads(line) for line in Path(told["archive"] + ".manifest").read_text().splitlines()]
    skipped = {line["name"]: line["why"] for line in manifest if line["kind"] == "skipped"}
    assert {"state/durable.db", "state/durable.db-wal", "state/durable.db-shm"} <= set(skipped)
    assert "durable" in skipped["state/durable.db"]
    assert not [line["name"] for line in manifest if line["name"].startswith("source/state/")]
    assert told["skipped"] == len(skipped)


def test_a_damaged_archive_fails_the_run_and_rotates_nothing(tree: Path, tmp_path: Path) -> None:
    """The older archives are all still there when the new one is no good."""
    job = backup.Backup(source=str(tree), target=str(tmp_path / "target"), keep=1)
    real = backup.write_archive

    def write_badly(planned: Any, beat: Any) -> Any:
        made = real(planned, beat)
        flip(made.archive, made.size // 2)
        return made

    write_badly.__annotations__["return"] = backup.Archived
    with Durable(tmp_path / "durable.db") as durable, pytest.MonkeyPatch.context() as patch:
        first = json.loads(durable.execute(backup.backup, job, key="b").run.result or "null")
        patch.setattr(backup, "write_archive", write_badly)
        second = durable.execute(backup.backup, job, key="b").run
    assert second.status == "failed"
    assert second.error is not None
    assert (second.error.type, second.error.step) == ("Damaged", "verify")
    assert os.path.basename(first["archive"]) in names_in(tmp_path / "target")


def read(feed: Path, out: Path, db: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, int]]:
    """Run the program; its exit code and how many articles were new, skipped, failed."""
    code = articles.main([str(feed), "--out", str(out), "--db", str(db)])
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    return code, {word: words.count(word) for word in words}


@pytest.mark.parametrize(("name", "count"), [("feed.xml", 12), ("feed-rss.xml", 4)])
def test_each_article_is_processed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, count: int
) -> None:
    """The first reading publishes all, the second none; a page removed by hand does not come back."""
    out, db = tmp_path / "out", tmp_path / "durable.db"
    assert read(EXAMPLES / "data" / name, out, db, capsys) == (0, {"new": count})
    assert len(names_in(out)) == count + 1
    assert (out / "index.html").read_text().count("<li>") == count
    next(out.glob("*-*.html")).unlink()
    assert read(EXAMPLES / "data" / name, out, db, capsys) == (0, {"skipped": count})
    assert len(names_in(out)) == count
    with Durable(db) as durable:
        assert len(durable.runs()) == count
        assert durable.check() == []


def test_only_a_new_article_and_a_failed_one_are_processed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read again after an entry came and another was mended: these two, and no other."""
    path, out, db = tmp_path / "feed.xml", tmp_path / "out", tmp_path / "durable.db"
    item = "<item><guid>{}</guid><title>Item</title><description>{}</description></item>"
    path.write_text(rss(item.format("a", "One.") + item.format("b", "")))
    assert read(path, out, db, capsys) == (1, {"new": 1, "failed": 1})
    assert read(path, out, db, capsys) == (1, {"skipped": 1, "failed": 1})
    path.write_text(rss(item.format("c", "Three.") + item.format("a", "One.") + item.format("b", "Two.")))
    assert read(path, out, db, capsys) == (0, {"new": 2, "skipped": 1})
    assert read(path, out, db, capsys) == (0, {"skipped": 3})
    with Durable(db) as durable:
        runs = {key.key: key.runs for key in durable.keys()}  # noqa: SIM118
    assert runs == {"article:a": 1, "article:b": 3, "article:c": 1}


def test_an_entry_without_a_name_is_told_and_stops_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "feed.xml"
    path.write_text(rss("<item><title>Nameless</title></item><item><guid>a</guid><description>A.</description></item>"))
    assert articles.main([str(path), "--out", str(tmp_path / "out"), "--db", str(tmp_path / "d.db")]) == 1
    told = capsys.readouterr()
    assert "'Nameless' has neither id nor link" in told.err
    assert "1 new" in told.out


def test_a_file_that_is_no_feed_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written: no folder, no database."""
    out, db = tmp_path / "out", tmp_path / "durable.db"
    assert articles.main([str(tmp_path / "absent.xml"), "--out", str(out), "--db", str(db)]) == 2
    assert "absent.xml cannot be read" in capsys.readouterr().err
    assert names_in(tmp_path) == set()


def test_the_program_runs_as_a_script(tmp_path: Path) -> None:
    """`python examples/articles.py`: the run's code is found again as the file, not as `__main__`."""
    arguments = [EXAMPLES / "data" / "feed.xml", "--out", tmp_path / "out", "--db", tmp_path / "durable.db"]
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    first, second = (python(code, EXAMPLES / "articles.py", *arguments) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout.endswith("12 new, 0 skipped\n")
    assert second.stdout.endswith("0 new, 12 skipped\n")
