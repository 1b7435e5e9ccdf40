"""Commands about keys: `keys list|show`, stats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_cli import render
from durable_cli.cli import keyview
from durable_cli.cli.activity import activity_table
from durable_cli.cli.options import check_duration
from durable_cli.cli.output import rows_text
from durable_cli.cli.runs import Fields, Header, Limit, Since, limit_of, run_table
from durable_cli.cli.session import Cell, Session
from durable_cli.model import Key, Stats

if TYPE_CHECKING:
    from durable_cli.lookup import KeyDetails

STATS_FIELDS: Final = ("section", "name", "count", "workflow")

Workflow = Annotated[str | None, typer.Option("--workflow", metavar="W", help="Only this workflow.")]


def list_keys(
    ctx: typer.Context,
    workflow: Workflow = None,
    held: Annotated[bool, typer.Option("--held", help="Only keys that a run holds.")] = False,
    stuck: Annotated[
        str | None,
        typer.Option("--stuck", metavar="DURATION", help="Only those held, unfinished, so long or beyond max_hold."),
    ] = None,
    limit: Limit = None,
    fields: Fields = None,
    header: Header = False,
) -> int:
    """Every key that has runs, the one used last first."""
    session: Session = ctx.obj
    stuck = check_duration(stuck)
    client = session.reader(named=False)
    found = [] if client is None else client.keys(workflow=workflow, held=held, stuck=stuck)
    found = found[: limit_of(session, limit)]
    session.list(
        [render.key_document(key) for key in found],
        render.KEY_FIELDS,
        table=lambda: key_table(session, found),
        empty="no keys",
        chosen=fields,
        header=header,
        id_field="holder_id",
    )
    return 0


def key_table(session: Session, keys: list[Key]) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows for a person. A key held longer than its workflow's max_hold is marked."""
    now = session.now()
    rows: list[list[Cell]] = [
        [
            key.workflow,
            session.shown_key(key.key),
            key.holder_id or "-",
            session.status(key.status),
            (f"{render.age(key.held_since, now)}, too long", "red")
            if key.held_too_long
            else render.age(key.held_since, now),
            str(key.runs),
            str(key.readds_24h),
            key.waiting_id or "-",
            {True: "alive", False: "dead", None: "-"}[key.owner_alive],
        ]
        for key in keys
    ]
    return ["workflow", "key", "holder", "status", "held", "runs", "re-adds 24h", "waiting", "owner"], rows


def show(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key.", show_default=False)],
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="W", help="Its workflow, where several have the key.")
    ] = None,
) -> int:
    """One key: its holder, the waiting run, all its runs, and what happened to it."""
    session: Session = ctx.obj
    details = session.existing().key(workflow, key)
    session.one(_details_document(details), lambda: _show(session, details), id_field="holder_id")
    return 0


def _details_document(details: KeyDetails) -> render.Document:
    holder, waiting = details.holder, details.waiting
    return {
        **render.key_document(details),
        "holder": None if holder is None else render.run_document(holder),
        "waiting": None if waiting is None else render.run_document(waiting),
        "all_runs": [render.run_document(run) for run in details.all_runs],
        "activity": [render.activity_document(row) for row in details.activity],
        "lost_inputs": [keyview.lost_document(lost) for lost in keyview.lost_of(details)],
    }


def _show(session: Session, details: KeyDetails) -> None:
    key, now = details, session.now()
    word = render.status_word(key.status, ascii_only=session.out.ascii_only)
    lines = [f"key        {session.shown_key(key.key)}", f"workflow   {key.workflow}"]
    if key.holder_id is None:
        lines.append("holder     nobody: the next start takes it")
    else:
        long = ", longer than max_hold" if key.held_too_long else ""
        lines.append(f"holder     {key.holder_id}  {word}, held {render.age(key.held_since, now)}{long}")
    if key.waiting_id is not None:
        lines.append(f"waiting    {key.waiting_id}")
    lines.append(f"re-adds    {key.readds_24h} in the last 24 h")
    session.out.answer("\n".join(lines))
    session.table(*run_table(session, details.all_runs), "no runs")
    if details.activity:
        session.table(*activity_table(session, details.activity), "")
    if lines := keyview.lost_lines(session, keyview.lost_of(details)):
        session.out.answer("\n".join(["inputs that did not run", *lines]))


def stats(ctx: typer.Context, workflow: Workflow = None, since: Since = None, header: Header = False) -> int:
    """Counts: runs by status, keys held, starts that met a taken key. Not at a terminal a line for each count: section,
    name, count, and the workflow where the name is a key.
    """
    session: Session = ctx.obj
    since = check_duration(since)
    client = session.reader(named=False)
    document = stats_document(None if client is None else client.stats(workflow=workflow, since=since))
    form = session.out.list_format()
    if form in ("table", "json", "jsonl", "ids"):  # ids: refused there
        session.one(document, lambda: _show_stats(session, document), id_field="keys")
    else:
        rows = list(_counts(document))
        session.out.answer(rows_text(form, rows, STATS_FIELDS, header=header, id_field="name"))
    return 0


def stats_document(found: Stats | None) -> render.Document:
    """The document of `stats`; without a database, the empty one."""
    if found is None:
        return {
            "runs": {},
            "keys": {
                "held": 0, "readds": {}, "dropped_inputs": 0, "handoffs": 0, "most_readded": [], "over_time": [],
            },
        }  # fmt: skip
    return {
        "runs": found.runs,
        "keys": {
            "held": found.held,
            "readds": found.readds,
            "dropped_inputs": found.dropped_inputs,
            "handoffs": found.handoffs,
            "most_readded": found.most_readded,
            "over_time": [{"at": render.iso(_moment(row["at"])), "count": row["count"]} for row in found.over_time],
        },
    }


def _moment(at: Any) -> int:
    return int(at)


def _counts(document: render.Document) -> Iterator[render.Document]:
    """The document of `stats` as rows of STATS_FIELDS."""

    def row(section: str, name: str, count: int, workflow: str | None = None) -> render.Document:
        return dict(zip(STATS_FIELDS, (section, name, count, workflow), strict=True))

    keys = document["keys"]
    yield from (row("runs", status, count) for status, count in document["runs"].items())
    yield from (row("keys", name, keys[name]) for name in ("held", "dropped_inputs", "handoffs"))
    yield from (row("readds", outcome, count) for outcome, count in keys["readds"].items())
    yield from (row("most_readded", one["key"], one["count"], one["workflow"]) for one in keys["most_readded"])
    yield from (row("over_time", one["at"], one["count"]) for one in keys["over_time"])


def _show_stats(session: Session, document: render.Document) -> None:
    plain, keys = session.out.ascii_only, document["keys"]
    lines = ["runs"] if document["runs"] else ["no runs"]
    words = {name: render.status_word(name, ascii_only=plain) for name in document["runs"]}
    lines += _bars({words[name]: count for name, count in document["runs"].items()}, plain)
    lines += ["", f"keys held        {keys['held']}", f"hand-offs        {keys['handoffs']}"]
    lines += [f"dropped inputs   {keys['dropped_inputs']}"]
    if keys["readds"]:
        lines += ["", "starts that met a taken key, by what they did", *_bars(keys["readds"], plain)]
    if keys["most_readded"]:
        lines += ["", "keys started most while taken"]
        lines += [
            f"  {row['count']:>6}  {row['workflow']}  {session.shown_key(row['key'])}" for row in keys["most_readded"]
        ]
    session.out.answer("\n".join(lines))


def _bars(counts: dict[str, int], plain: bool) -> list[str]:
    most = max(counts.values(), default=0)
    width = max((len(name) for name in counts), default=0)
    mark = "#" if plain else "█"
    return [
        f"  {name:<{width}} {count:>6}  {mark * max(1, round(30 * count / most))}" for name, count in counts.items()
    ]
