"""`durable init`: a first workflow that runs, over nothing, and lines that can be pasted."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_cli.definition import definitions, forget, register
from durable_cli.store import files


@pytest.fixture
def here(cli: Any) -> Iterator[Any]:
    """A directory without a flows.py, in a process that knows no other workflow named `first`."""
    (cli.dir / "flows.py").unlink()
    others = definitions()
    for definition in others:
        forget(definition.name)
    yield cli
    for definition in others:
        register(definition)


def test_it_runs_as_it_stands(here: Any) -> None:
    """The line that is told executes it; `durable check` finds nothing in it; it is ours alone to write."""
    told = here("init", "--json")
    file = here.dir / "flows.py"
    assert (told.code, told.err) == (0, "")
    assert (told.document["path"], told.document["workflow"]) == (str(file), "first")
    assert stat.S_IMODE(file.stat().st_mode) & 0o022 == 0
    assert [path.name for path in here.dir.iterdir()] == ["flows.py"]
    assert here("check", "flows.py").code == 0
    command, *argv = shlex.split(told.document["run"])
    assert command == "durable"
    ran = here(*argv)
    assert (ran.code, ran.out) == (0, '"stored 3 rows, 6 in total"\n')
    assert here("runs", "show", "last", "--json").document["key"] == "first"


def test_the_lines_to_paste_run_it(here: Any) -> None:
    """The crontab's line and the unit are those of --print-crontab and --print-systemd, and run what was written."""
    told = here("init").out
    line = next(line for line in told.splitlines() if line.startswith("0 3 * * * "))
    assert line == here("run", "flows.py", "--key", "nightly", "--print-crontab", "0 3 * * *").out.rstrip("\n")
    unit = here("run", "flows.py", "--key", "nightly", "--print-systemd").out
    assert next(line for line in unit.splitlines() if line.startswith("ExecStart=")) in told
    argv = shlex.split(line.removeprefix("0 3 * * * "))
    assert here(*argv[argv.index("run") :]).all == (0, "", "")
    assert here("runs", "show", "last", "--json").document["key"] == "nightly"


@pytest.mark.parametrize("there", ["file", "empty", "link", "dangling", "folder"])
def test_nothing_is_replaced(here: Any, there: str) -> None:
    """Exit 2, with what is there; it stays as it was, and nothing is left beside it."""
    file = here.dir / "flows.py"
    if there == "folder":
        file.mkdir()
    elif there in ("link", "dangling"):
        if there == "link":
            (here.dir / "mine.py").write_text("mine")
        file.symlink_to("mine.py")
    else:
        file.write_text("" if there == "empty" else "mine")
    before = sorted(path.name for path in here.dir.iterdir())
    told = here("init")
    assert (told.code, told.out) == (2, "")
    assert "is there already" in told.err
    facts = {"file": "a file of 4 bytes", "empty": "a file of 0 bytes", "folder": "a directory"}
    assert facts.get(there, "a link to mine.py") in told.err
    assert here("init", "--json").document["error"]["code"] == "usage_error"
    assert sorted(path.name for path in here.dir.iterdir()) == before
    if there in ("file", "link"):
        assert file.read_text() == "mine"


def test_one_who_was_faster_keeps_his_file(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that appears between the look and the writing is not replaced either."""
    give_name = files.give_name

    def later(part: Path, target: Path) -> None:
        target.write_text("mine")
        give_name(part, target)

    monkeypatch.setattr(files, "give_name", later)
    assert here("init").code == 2
    assert [(path.name, path.read_text()) for path in here.dir.iterdir()] == [("flows.py", "mine")]


def test_a_directory(here: Any) -> None:
    """One that is missing is made; one above it is not; a file is none; a name with blanks and % can be pasted."""
    told = here("init", "new 50% off", "--json").document
    assert told["path"] == str(here.dir / "new 50% off" / "flows.py")
    assert "new 50\\% off" in told["crontab"]
    assert here(*shlex.split(told["run"])[1:]).code == 0
    assert here("init", "a/b").code == 3
    assert not (here.dir / "a").exists()
    (here.dir / "file").touch()
    assert here("init", "file").code == 2


def test_a_directory_that_no_line_can_name(here: Any) -> None:
    """A line break in its name: refused before anything is written."""
    assert here("init", "two\nlines").code == 2
    assert list(here.dir.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(here: Any) -> None:
    """Exit 1, and nothing is there."""
    here.dir.chmod(0o500)
    assert here("init").code == 1
    here.dir.chmod(0o700)
    assert list(here.dir.iterdir()) == []


def test_no_space(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 75; no half of a file, and no new directory."""

    def full(part: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "give_name", full)
    assert here("init", "new", "--json").document["error"]["code"] == "disk_full"
    assert list(here.dir.iterdir()) == []


def test_a_second_one_is_another_workflow(here: Any) -> None:
    """The name that the database knows from elsewhere is not taken: it would not run as it stands."""
    for folder, name in (("one", "first"), ("two", "first_2"), ("three", "first_3")):
        told = here("init", folder, "--json").document
        assert told["workflow"] == name
        assert here(*shlex.split(told["run"])[1:]).code == 0


def test_the_database_that_is_named_is_in_every_line(here: Any, tmp_path: Path) -> None:
    """With --db, absolute."""
    told = here("init", "--db", "other.db", "--json").document
    place = str(here.dir / "other.db")
    assert place in shlex.split(told["run"])
    assert place in told["argv"]
    assert not Path(place).exists()


def test_quiet_and_unsafe(here: Any) -> None:
    """-q says nothing; where others may write, whoever reads is told that workers will not load it."""
    assert here("init", "one", "-q").all == (0, "", "")
    (here.dir / "open").mkdir()
    (here.dir / "open").chmod(0o777)
    told = here("init", "open")
    assert told.code == 0
    assert "warning: " in told.err
