"""Which database, which app-dir: options, environment, configuration file, default; in that order.

The configuration is `durable.toml`, or `[tool.durable]` in `pyproject.toml`, searched upwards from the app-dir to the
home directory or the border of the file system. Since it decides which file is written, it is refused when somebody
else could have written it.
"""

from __future__ import annotations

import difflib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from durable_cli.errors import DatabaseUnusable, InvalidConfig, InvalidDuration, UsageError
from durable_cli.places import package_root, who_else

KEYS: Final = ("database", "app-dir", "modules", "timezone", "retention")


@dataclass(frozen=True, slots=True)
class Config:
    """What a configuration file says. Paths in it are relative to its directory. `retention_ms`: how old finished runs
    become before workers and ticks prune them; None: they never do. `modules`: whose schedules workers and `schedules
    sync` bring into the database; `timezone`: the zone in force where none is named; None: the system's."""

    file: Path
    database: Path | None
    app_dir: Path | None
    retention_ms: int | None = None
    modules: tuple[str, ...] = ()
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The database in force and where that was said: `option`, `environment`, `config` or `default`."""

    path: Path
    source: str
    warning: str | None = None


def home(env: dict[str, str]) -> Path | None:
    """The home directory: $HOME, else (env -i) what the system's user database says."""
    if env.get("HOME"):
        return Path(env["HOME"])
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def app_dir(option: str | None, env: dict[str, str], config: Config | None) -> Path | None:
    """The directory of the user's code: `--app-dir`, DURABLE_APP_DIR, the configuration; None: not said."""
    given = option if option is not None else env.get("DURABLE_APP_DIR") or None
    if given is None:
        return config.app_dir if config else None
    path = Path(os.path.expanduser(given))
    if not os.path.isdir(path):
        name = "--app-dir" if option is not None else "DURABLE_APP_DIR"
        raise UsageError(f"{name} names {given!r}, which is not a directory")
    return path.resolve()


def database(option: str | None, env: dict[str, str], config: Config | None) -> Place:
    """The database in force."""
    if option is not None:
        if not option:
            raise UsageError("--db is empty; give the path of a file")
        return Place(named(option), "option")
    if env.get("DURABLE_DB"):
        return _not_by_sudo(Place(Path(os.path.expanduser(env["DURABLE_DB"])).absolute(), "environment"), env)
    if config and config.database:
        return _not_by_sudo(Place(config.database, "config"), env)
    return _not_by_sudo(_default(env), env)


def named(option: str) -> Path:
    """The file that `--db` names."""
    return Path(os.path.expanduser(option)).absolute()


def _default(env: dict[str, str]) -> Place:
    at_home = home(env)
    usual = at_home / ".local" / "share" if at_home else None
    data = env.get("XDG_DATA_HOME") or None
    if data is not None and Path(data).is_absolute():
        path = Path(data) / "durable" / "durable.db"
        if usual is None or Path(data) != usual:
            return Place(path, "default", "XDG_DATA_HOME is set here; under cron it is not, and another file is used")
        return Place(path, "default")
    if usual is None:
        raise InvalidConfig(
            "there is no home directory to keep the database in", hint="set HOME or DURABLE_DB, or give --db PATH"
        )
    return Place(usual / "durable" / "durable.db", "default")


def _not_by_sudo(place: Place, env: dict[str, str]) -> Place:
    """Refuse `sudo durable` on another user's file: what root creates there, its owner could not write."""
    if os.geteuid() != 0 or not (env.get("SUDO_UID") or env.get("DOAS_USER")):
        return place
    there = next(path for path in (place.path, *place.path.parents) if os.path.exists(path))
    owner = there.stat().st_uid
    if owner != 0:
        raise DatabaseUnusable(
            f"{place.path} belongs to user {_user(owner)}, and this is root",
            hint=f"run it without sudo, or name the file: --db {shlex.quote(str(place.path))}",
        )
    return place


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# -- the file ------------------------------------------------------------------------------------------------------


def start_of_search(option: str | None, env: dict[str, str], target: str | None) -> Path:
    """Where the search begins: the app-dir that was given, the package root of a target's file, or here."""
    given = option if option is not None else env.get("DURABLE_APP_DIR")
    if given:
        return Path(os.path.expanduser(given)).absolute()
    file = (target or "").partition(":")[0]
    if file.endswith(".py"):
        return Path(package_root(os.path.abspath(os.path.expanduser(file))))
    try:
        return Path.cwd()
    except OSError:
        raise UsageError("the current directory does not exist any more", hint="cd to one that does") from None


def find(start: Path, env: dict[str, str]) -> Config | None:
    """The nearest configuration at or above `start`."""
    at_home = home(env)
    last = at_home.resolve() if at_home else None
    try:
        folder = start.resolve()
        device = folder.stat().st_dev
    except OSError:
        return None  # a directory that is not there has no configuration; who needs it says so
    while True:
        for name in ("durable.toml", "pyproject.toml"):
            config = _read(folder / name)
            if config is not None:
                return config
        above = folder.parent
        if folder in (last, above) or above.stat().st_dev != device:
            return None
        folder = above


def _read(file: Path) -> Config | None:
    """The configuration in `file`, None if there is none."""
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return None
    own = file.name == "durable.toml"
    if not own and b"durable" not in text:
        return None
    import tomllib

    try:
        table: Any = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if not own:
            return None  # somebody else's file, and perhaps nothing of ours in it
        raise InvalidConfig(f"{file} is not valid TOML: {error}") from None
    if not own:
        tool = table.get("tool")
        table = tool.get("durable") if isinstance(tool, dict) else None
        if table is None:
            return None
    _only_ours(file)
    return _checked(file, table)


def _checked(file: Path, table: Any) -> Config:
    if not isinstance(table, dict):
        raise InvalidConfig(f"{file}: tool.durable is a table")
    values: dict[str, Path] = {}
    others: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in KEYS:
            near = difflib.get_close_matches(name, KEYS, 1)
            raise InvalidConfig(
                f"{file} sets {key!r}, which durable does not know",
                facts=(f"it knows: {', '.join(KEYS)}",),
                hint=f"did you mean {near[0]!r}?" if near else None,
            )
        if name in _OTHERS:
            field, check = _OTHERS[name]
            others[field] = check(file, value)
            continue
        if not isinstance(value, str) or not value or "\0" in value:
            raise InvalidConfig(f"{file}: {key} is a path in quotes, not {value!r}")
        values[name] = Path(os.path.abspath(file.parent / Path(os.path.expanduser(value))))
    return Config(file, values.get("database"), values.get("app-dir"), **others)


def _retention(file: Path, value: object) -> int:
    """A duration with a unit: whoever writes 30 means days, and seconds would delete nearly everything."""
    from durable_cli.core.timing import parse_duration

    try:
        milliseconds = parse_duration(value) if isinstance(value, str) and value[-1:].isalpha() else 0
    except InvalidDuration:
        milliseconds = 0
    if milliseconds <= 0:
        raise InvalidConfig(f'{file}: retention is a duration in quotes with its unit, such as "30d", not {value!r}')
    return milliseconds


def _modules(file: Path, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise InvalidConfig(f'{file}: modules is a list of names, such as ["flows", "jobs/nightly.py"], not {value!r}')
    return tuple(value)


def _timezone(file: Path, value: object) -> str:
    from durable_cli.core.cron import zone

    if not isinstance(value, str):
        raise InvalidConfig(f'{file}: timezone is a name in quotes, such as "Europe/Berlin", not {value!r}')
    try:
        zone(value)
    except UsageError as error:
        raise InvalidConfig(f"{file}: timezone: {error.message}", hint=error.hint) from None
    return value


_OTHERS: Final = {
    "retention": ("retention_ms", _retention),
    "modules": ("modules", _modules),
    "timezone": ("timezone", _timezone),
}
"""What is no path: the field of Config, and what reads it."""


def _only_ours(file: Path) -> None:
    """Refuse a file that somebody else (neither we nor root) owns or may write: the rule for code."""
    problem = who_else(str(file), False)
    if problem is not None:
        raise InvalidConfig(f"{file} {problem}, and it decides which database is used", hint=f"chmod go-w {file}")
