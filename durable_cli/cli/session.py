"""One call of the command line: what was asked on every command, and what each command needs for its answer."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durable_cli import render
from durable_cli.cli import config as settings
from durable_cli.cli import fitting
from durable_cli.cli.options import COLORS, FORMATS, check_choice
from durable_cli.cli.output import Output, rows_text
from durable_cli.errors import DatabaseNotFound, UsageError
from durable_cli.model import Run
from durable_cli.places import is_there

if TYPE_CHECKING:
    from durable_cli.client import Durable

Cell = str | tuple[str, str]


class Session:
    """The shared options in force, the output, and the client (opened when it is needed)."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self.env = dict(os.environ if env is None else env)
        self.out = Output(self.env)
        self.db: str | None = None
        self.app_dir_option: str | None = None
        self.no_input = False
        self._config: dict[Path, settings.Config | None] = {}
        self._client: Durable | None = None
        self._told: settings.Place | None = None  # by -v; once is enough

    def take(self, given: Mapping[str, Any]) -> None:
        """The shared options of one level of the command line; they count over those of the level before."""
        form = given.get("format")
        check_choice("--format", form, FORMATS)
        check_choice("--color", given.get("color"), COLORS)
        if given.get("json") and form not in (None, "json"):
            raise UsageError(f"--json and --format {form} say two things; give one of them")
        if given.get("quiet") and given.get("verbose"):
            raise UsageError("-q and -v say two things; give one of them")
        if form or given.get("json"):
            self.out.format = form or "json"
        if given.get("quiet") or given.get("verbose"):
            self.out.quiet, self.out.verbose = bool(given.get("quiet")), bool(given.get("verbose"))
        self.out.color = given.get("color") or self.out.color
        self.db = given.get("db", self.db)
        self.out.database = str(settings.named(self.db)) if self.db else None
        self.app_dir_option = given.get("app_dir", self.app_dir_option)
        self.no_input = self.no_input or bool(given.get("no_input"))

    # -- places --

    def config(self, target: str | None = None) -> settings.Config | None:
        """The configuration in force for a call (of this target)."""
        start = settings.start_of_search(self.app_dir_option, self.env, target)
        if start not in self._config:
            self._config[start] = settings.find(start, self.env)
        return self._config[start]

    def configured_modules(self) -> tuple[str, ...]:
        """The modules that the configuration names."""
        config = self.config()
        return config.modules if config else ()

    def app_dir(self, target: str | None = None) -> Path | None:
        """The directory of the user's code, None where nothing names one."""
        return settings.app_dir(self.app_dir_option, self.env, self.config(target))

    def place(self, target: str | None = None) -> settings.Place:
        """The database in force. A `--db` needs no configuration, not even a readable one."""
        config = None if self.db is not None or self.env.get("DURABLE_DB") else self.config(target)
        place = settings.database(self.db, self.env, config)
        if place.warning and self.out.terminal_err:
            self.out.note(f"{self.out.styled('warning:', '33')} {place.warning} ({place.path})")
        if self.out.verbose and place != self._told:
            self._told = place
            self.out.note(f"database: {render.safe(str(place.path))} ({place.source})")
        return place

    # -- client --

    def writer(self, target: str | None = None) -> Durable:
        """The client, for a command that may create the database."""
        return self._open(self.place(target).path, create=True)

    def reader(self, *, named: bool) -> Durable | None:
        """The client, for a command that must not create the file.

        None (told at a terminal) where there is no file, unless `--db` named it or the command names a run or a key
        (`named`): then DatabaseNotFound.
        """
        place = self.place()
        if is_there(place.path):
            return self._open(place.path, create=False)
        if named or place.source == "option":
            raise DatabaseNotFound(
                f"there is no database at {place.path}",
                hint="durable db path   # tells which file is used; --db names one",
            )
        self.out.note(f"no database yet: {render.safe(str(place.path))}")
        return None

    def existing(self) -> Durable:
        """The client, for a command that names something in the file."""
        client = self.reader(named=True)
        assert client is not None
        return client

    def _open(self, path: Path, *, create: bool) -> Durable:
        from durable_cli.client import Durable

        self._client = Durable(path, create=create)
        return self._client

    def close(self) -> None:
        """Close the client, if it was opened."""
        if self._client is not None:
            self._client.close()

    @staticmethod
    def now() -> int:
        """The moment, for ages only."""
        return time.time_ns() // 1_000_000

    # -- answers --

    def shown(self, text: str) -> str:
        """A user's text for a person."""
        return render.safe(text, ascii_only=self.out.ascii_only)

    def shown_key(self, key: str | None) -> str:
        """A key for a person."""
        return render.shown_key(key, ascii_only=self.out.ascii_only)

    def status(self, status: str | None) -> Cell:
        """A status for a table."""
        return render.status_word(status, ascii_only=self.out.ascii_only), render.status_colour(status)

    def list(
        self,
        documents: Sequence[render.Document],
        fields: Sequence[str],
        *,
        table: Callable[[], tuple[Sequence[str], Sequence[Sequence[Cell]]]],
        empty: str,
        chosen: str | None,
        header: bool,
        id_field: str,
    ) -> None:
        """Answer with a list. `chosen`: --fields; `empty`: what a person is told where it is empty."""
        out, form = self.out, self.out.list_format()
        names = choose_fields(chosen, fields)
        if chosen is not None and form == "table":
            wanted = [{name: row[name] for name in names} for row in documents]
            self.table(names, [[render.cell(value) for value in row.values()] for row in wanted], empty, whole=True)
        elif form == "table":
            self.table(*table(), empty)
        elif form == "json":
            out.document(_chosen(documents, names, chosen))
        else:
            if form == "jsonl":
                documents = _chosen(documents, names, chosen)
            if not documents:
                out.note(empty)
            out.answer(rows_text(form, documents, names, header=header, id_field=id_field))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], empty: str, *, whole: bool = False) -> None:
        """A table on stdout; `empty` on stderr in its place where there is no row. `whole`: with all columns."""
        out = self.out
        if not rows:
            if not out.quiet:
                out.say(empty)
            return
        names, kept = fitting.drop_empty(columns, rows)
        if not whole:
            names, kept, left = fitting.drop_last(names, kept, width=out.width())
            if any(left):
                out.note(f"no room here for: {', '.join(filter(None, left))} (--json has all)")
        cut, widths = fitting.fit(names, kept, width=out.width(), ascii_only=out.ascii_only)
        text = render.table(
            names,
            cut,
            width=out.width(),
            colour=out.colour(out.terminal_out),
            ascii_only=out.ascii_only,
            widths=widths,
        )
        out.answer(text)

    def one(self, document: render.Document, human: Callable[[], None], *, id_field: str) -> None:
        """Answer with one document, in the form asked for; `human` writes the form for a person."""
        form = self.out.format
        if form is None or form == "table":
            human()
        elif form in ("json", "jsonl"):
            self.out.document(document)
        elif form == "ids" and isinstance(document[id_field], dict | bool):
            raise UsageError("--format ids: this answer has no ids")
        elif form == "ids" and isinstance(document[id_field], list):
            self.out.answer(
                rows_text(form, [{id_field: one} for one in document[id_field]], [], header=False, id_field=id_field)
            )
        else:
            self.out.answer(rows_text(form, [document], list(document), header=False, id_field=id_field))

    # -- RUN --

    def run(self, client: Durable, run: str | None, key: str | None, workflow: str | None) -> Run:
        """The run that RUN, or `--key K [--workflow W]`, names."""
        if run is not None:
            return client.run(run)
        assert key is not None
        return client.find(key=key, workflow=workflow)


def check_run_options(run: str | None, key: str | None, workflow: str | None) -> None:
    """Refuse a command line that names no run, or two."""
    if run is None and key is None:
        raise UsageError("name the run: RUN (an id, the beginning of one, or `last`), or --key K")
    if run is not None and key is not None:
        raise UsageError("RUN and --key name the run twice; give one of them")
    if workflow is not None and key is None:
        raise UsageError("--workflow goes with --key; an id needs none")


def _chosen(documents: Sequence[render.Document], names: Sequence[str], chosen: str | None) -> list[render.Document]:
    """The documents whole, or only what `--fields` names."""
    return list(documents) if chosen is None else [{name: row[name] for name in names} for row in documents]


def choose_fields(chosen: str | None, fields: Sequence[str]) -> Sequence[str]:
    """The names in `--fields a,b`."""
    if chosen is None:
        return fields
    names = [name.strip() for name in chosen.split(",")]
    for name in names:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            raise UsageError(
                f"--fields: there is no field {name!r}",
                facts=(f"there are: {', '.join(fields)}",),
                hint=f"did you mean {near[0]}?" if near else None,
            )
    return names
