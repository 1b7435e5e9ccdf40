"""Which database is used, and who may say so."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from durable_cli.cli import config
from durable_cli.errors import DatabaseUnusable, DurableError, InvalidConfig


@pytest.fixture
def tree(tmp_path):
    """HOME/project/package, and the environment that goes with it."""
    (tmp_path / "home" / "project" / "package").mkdir(parents=True)
    return tmp_path / "home"


def env_of(tree, **more):
    return {"HOME": str(tree), **more}


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("option", "env", "has_config", "source", "file"),
    [
        ("/a.db", {"DURABLE_DB": "/b.db"}, True, "option", "/a.db"),
        (None, {"DURABLE_DB": "/b.db"}, True, "environment", "/b.db"),
        (None, {"DURABLE_DB": ""}, True, "config", "{home}/project/c.db"),
        (None, {}, False, "default", "{home}/.local/share/durable/durable.db"),
        (None, {"XDG_DATA_HOME": "/data"}, False, "default", "/data/durable/durable.db"),
        (None, {"XDG_DATA_HOME": "relative"}, False, "default", "{home}/.local/share/durable/durable.db"),
    ],
)
def test_the_order_in_which_a_database_is_named(tree, option, env, has_config, source, file):
    """--db > DURABLE_DB > configuration > default."""
    if has_config:
        write(tree / "project" / "durable.toml", 'database = "c.db"')
    env = env_of(tree, **env)
    place = config.database(option, env, config.find(tree / "project" / "package", env))
    assert (place.source, str(place.path)) == (source, file.format(home=tree))
    assert (place.warning is not None) == (env.get("XDG_DATA_HOME") == "/data")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"project/durable.toml": 'database = "a.db"'}, "project/a.db"),
        (
            {"project/package/durable.toml": 'database = "a.db"', "project/durable.toml": "database = 'b.db'"},
            "project/package/a.db",
        ),
        ({"project/pyproject.toml": '[tool.durable]\ndatabase = "a.db"'}, "project/a.db"),
        ({"project/pyproject.toml": "[tool.other]\nx = 'durable'", "durable.toml": 'database = "h.db"'}, "h.db"),
        ({"project/pyproject.toml": "[tool.durable]\ndatabase = '~/x.db'"}, "x.db"),
        ({"project/durable.toml": 'database = "sub/../a.db"'}, "project/a.db"),
        ({"../durable.toml": 'database = "never.db"'}, None),
        ({"project/pyproject.toml": "not toml at all [durable"}, None),
        ({"project/durable.toml": 'app_dir = "package"'}, None),
    ],
    ids=str,
)
def test_the_search_goes_upwards_to_the_home_directory(tree, monkeypatch, files, found):
    """The nearest file counts; paths are relative to it; above the home directory nothing is read."""
    monkeypatch.setenv("HOME", str(tree))
    for name, text in files.items():
        write(tree / name, text)
    place = config.database(None, env_of(tree), config.find(tree / "project" / "package", env_of(tree)))
    assert place.path == (tree / found if found else tree / ".local/share/durable/durable.db")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("databse = 'a'", "did you mean 'database'"),
        ("appdir = 'a'", "did you mean 'app-dir'"),
        ("reuse = 'never'", "does not know"),
        ("modules = 'a'", "a list of names"),
        ("modules = ['a', 3]", "a list of names"),
        ("timezone = 'Mars/Olympus'", "timezone: "),
        ("timezone = 3", "a name in quotes"),
        ("database = 3", "a path in quotes"),
        ("database = ''", "a path in quotes"),
        ("database = ", "not valid TOML"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(tree, text, message):
    """Exit 78, with did-you-mean; policies of workflows never live there."""
    write(tree / "project" / "durable.toml", text)
    with pytest.raises(InvalidConfig) as caught:
        config.find(tree / "project", env_of(tree))
    assert message in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.exit_status == 78


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o644, False), (0o646, True), (0o666, True)])
def test_a_configuration_that_others_may_write_is_refused(tree, mode, refused):
    """It decides which file is written."""
    write(tree / "project" / "durable.toml", 'database = "a.db"', mode)
    if not refused:
        assert config.find(tree / "project", env_of(tree)) is not None
        return
    with pytest.raises(InvalidConfig, match="written by everybody"):
        config.find(tree / "project", env_of(tree))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_configuration_of_another_user_is_refused(tree):
    """Neither ours nor root's."""
    file = write(tree / "project" / "durable.toml", 'database = "a.db"')
    os.chown(file, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(InvalidConfig, match="belongs to"):
        config.find(tree / "project", env_of(tree))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_sudo_on_another_users_file_is_refused_unless_db_names_it(tree):
    """What root creates in somebody's home, its owner cannot write."""
    os.chown(tree, pwd.getpwnam("nobody").pw_uid, -1)
    env = env_of(tree, SUDO_UID="1000")
    for more in ({}, {"DURABLE_DB": f"{tree}/x.db"}):
        with pytest.raises(DatabaseUnusable, match="belongs to user nobody"):
            config.database(None, env | more, None)
    assert config.database(f"{tree}/x.db", env, None).source == "option"
    assert config.database(None, env_of(tree), None).source == "default"


def test_without_a_home_the_message_says_what_to_set(monkeypatch):
    """No HOME and no user entry: one line, exit 78."""
    monkeypatch.setattr(config, "home", lambda env: None)
    with pytest.raises(DurableError, match="no home directory") as caught:
        config.database(None, {}, None)
    assert caught.value.exit_status == 78


def test_reading_never_creates_a_file(cli):
    """Lists on a missing database are empty, exit 0; 3 where a run or key or --db names something (L14, M18)."""
    for argv in (["keys", "list"], ["runs", "list"], ["activity"], ["stats"], ["ps"]):
        assert cli(*argv).code == 0
        empty = cli(*argv, "--json").document
        assert empty in ([], {"runs": {}, "keys": {**empty["keys"]}} if argv == ["stats"] else [])
        assert cli(*argv, "--db", str(cli.db)).code == 3
    for argv in (["runs", "list", "--key", "k"], ["activity", "--key", "k"], ["show", "last"], ["keys", "show", "k"]):
        assert cli(*argv).code == 3
    assert not cli.db.exists()
    assert cli("keys", "list", "--held", "--json").document == []


def test_the_same_database_from_the_project_and_from_cron(cli):
    """A target given as a file finds its configuration from anywhere; `db path` prints the one in force (L14)."""
    write(cli.dir / "durable.toml", 'database = "mine.db"', 0o644)
    no_db = {"DURABLE_DB": ""}
    assert cli("run", "flows:sync", "--key", "k", env=no_db).code == 0
    assert cli("db", "path", env=no_db).out == f"{cli.dir}/mine.db\n"
    here, cli.dir = cli.dir, Path(cli.env["HOME"])
    assert cli("run", f"{here}/flows.py:sync", "--key", "k", env=no_db).code == 0
    assert cli("db", "path", "--app-dir", str(here), env=no_db).out == f"{here}/mine.db\n"
    assert len(cli("runs", "list", "--key", "k", "--json", "--db", f"{here}/mine.db").document) == 2
    assert not (cli.dir / ".local").exists()


def test_app_dir(cli):
    """--app-dir > DURABLE_APP_DIR > configuration > here; one that is no directory is refused."""
    (cli.dir / "sub").mkdir()
    (cli.dir / "sub" / "inner.py").write_text("from flows import quiet as inner\n")
    (cli.dir / "flows.py").rename(cli.dir / "sub" / "flows.py")
    missing = cli.real("run", "flows:sync")
    assert (missing.code, "--app-dir" in missing.err) == (3, True)
    assert cli("run", "flows:sync", "--app-dir", "sub").out == "2\n"
    assert cli("run", "flows:sync", env={"DURABLE_APP_DIR": "sub"}).out == "2\n"
    write(cli.dir / "durable.toml", 'app-dir = "sub"')
    assert cli("run", "flows:sync").out == "2\n"
    for refused in (cli("run", "flows:sync", "--app-dir", "none"), cli("run", "x:y", env={"DURABLE_APP_DIR": "none"})):
        assert refused.code == 2
        assert "not a directory" in refused.err


def test_modules_and_timezone_are_read(tree):
    """What workers sync, and the zone where none is named."""
    write(tree / "project" / "durable.toml", 'modules = ["flows", "jobs/nightly.py"]\ntimezone = "Europe/Berlin"')
    found = config.find(tree / "project", env_of(tree))
    assert (found.modules, found.timezone) == (("flows", "jobs/nightly.py"), "Europe/Berlin")


def test_the_configured_zone_is_used_by_schedules(cli):
    """`schedules next` prints the offset of the zone in force."""
    (cli.dir / "durable.toml").write_text('timezone = "Asia/Kathmandu"')
    assert "+05:45" in cli("schedules", "next", "0 12 * * *").out
