"""`durable keys log|eval|replay`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_cli import render
from durable_cli.cli import keyview
from durable_cli.cli.asking import agrees
from durable_cli.cli.executing import note_of, start_document
from durable_cli.cli.runs import Fields, Header, Limit, limit_of
from durable_cli.cli.session import Cell, Session
from durable_cli.cli.starting import (
    Call,
    DryRun,
    Input,
    OnDuplicate,
    Params,
    Target,
    print_id,
    tell_explanation,
)
from durable_cli.core.timing import format_duration
from durable_cli.model import ActivityKind, Outcome

if TYPE_CHECKING:
    from durable_cli.keylog import KeyEvent

FIELDS: Final = ("at", "kind", "run_id", "details", "superseded", "against_id", "diff", "id")

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key.", show_default=False)]
KeyWorkflow = Annotated[
    str | None, typer.Option("--workflow", metavar="W", help="Its workflow, where several have the key.")
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]


# -- log -----------------------------------------------------------------------------------------------------------


def log(
    ctx: typer.Context,
    key: KeyArgument,
    workflow: KeyWorkflow = None,
    limit: Limit = None,
    fields: Fields = None,
    header: Header = False,
) -> int:
    """All that happened to a key, oldest first: starts, duplicates with what differed, hand-offs, releases, prunes.

    A pruned run's own start is no longer known; what happened to the key stays as long as any run has it, and 7 days.
    With --limit: the newest.
    """
    session: Session = ctx.obj
    events = session.existing().key_log(key, workflow=workflow)
    most = limit_of(session, limit)
    shown = events if most is None else events[len(events) - min(most, len(events)) :]
    if len(shown) < len(events):
        session.out.note(f"the newest {len(shown)} of {len(events)}; --limit N shows more")
    session.list(
        [event_document(event) for event in shown],
        FIELDS,
        table=lambda: _table(session, shown),
        empty="nothing is known of it",
        chosen=fields,
        header=header,
        id_field="run_id",
    )
    return 0


def event_document(event: KeyEvent) -> render.Document:
    """A row of `keys log`."""
    lost = event.lost
    return {
        "at": render.iso(event.at),
        "kind": event.kind,
        "run_id": event.run_id,
        "details": event.details,
        "superseded": None if lost is None else lost.superseded,
        "against_id": None if lost is None else lost.against_id,
        "diff": None if lost is None else keyview.diff_document(lost.diff),
        "id": event.id,
    }


def _table(session: Session, events: list[KeyEvent]) -> tuple[list[str], list[list[Cell]]]:
    now = session.now()
    rows: list[list[Cell]] = [
        [
            render.age(event.at, now),
            event.kind.removeprefix("key_").replace("_", " "),
            event.run_id or "-",
            _told(session, event),
            "" if event.id is None else str(event.id),
        ]
        for event in events
    ]
    return ["when", "what", "run", "", "id"], rows


def _told(session: Session, event: KeyEvent) -> str:
    """What happened, in words."""
    details: dict[str, Any] = event.details
    if event.kind == ActivityKind.KEY_DUPLICATE:
        return _duplicate(session, event)
    words: dict[str, Callable[[], str]] = {
        "run_created": lambda: f"input {render.compact(details['input'])}",
        ActivityKind.KEY_HANDED_OFF: lambda: f"from {details['from']} to {details['to']}: {details['reason']}",
        ActivityKind.KEY_RELEASED: lambda: f"by {details['by']}",
        ActivityKind.KEY_RETAKEN: lambda: f"from {details['from'] or 'nobody'}",
        ActivityKind.KEY_PRUNED: lambda: "its run was deleted, and the key is free",
        ActivityKind.KEY_HELD_LONG: lambda: f"for {format_duration(details['held_ms'])}: {details['action']}",
        ActivityKind.KEY_REPLAYED: lambda: f"the input of {details['replayed']}: {details['start']}",
    }
    try:
        text = words[event.kind]()
    except (KeyError, TypeError):  # another kind, or details that are damaged
        text = render.compact(details)
    return render.clip(session.shown(text), 100, ascii_only=session.out.ascii_only)


def _duplicate(session: Session, event: KeyEvent) -> str:
    outcome = session.shown(str(event.details.get("outcome")))
    if event.details.get("replayed") is not None:
        outcome += f" (the input of {session.shown(str(event.details['replayed']))} again)"
    if event.lost is None:
        return f"{outcome}; {'another' if event.details.get('input_changed') else 'the same'} input"
    what = "superseded" if event.lost.superseded else "dropped"
    return "\n".join([f"{outcome}; input {what}", *keyview.diff_lines(session, event.lost)])


# -- eval ----------------------------------------------------------------------------------------------------------


def evaluate(ctx: typer.Context, target: Target, input: Input = None, params: Params = None) -> int:
    """Print the key that a workflow's own expression gives for an input. Starts and writes nothing.

    Not at a terminal it is written as in every TSV: exact, with backslashes for what cannot be seen. Nothing on stdout: no key, every such start is a run of its own. Exit 2 where a start would be refused.
    """
    session: Session = ctx.obj
    call = Call(target, None, input, tuple(params or ()), None, False)
    value = call.value(session)
    client = session.writer(target)
    definition = call.load(session, client)
    key = client.key_of(definition, **value)
    rule = definition.policies.key_rule
    document = {"workflow": definition.name, "key": key, "rule": rule}

    def human() -> None:
        if key is not None:
            session.out.answer(session.shown_key(key) if session.out.list_format() == "table" else render.cell(key))
        elif not session.out.quiet:
            why = "it has no key expression" if rule is None else f"{session.shown(rule)} gives none"
            session.out.say(f"no key: {why}, and every start of {definition.name} is a run of its own")

    session.one(document, human, id_field="key")
    return 0


# -- replay --------------------------------------------------------------------------------------------------------


def replay(
    ctx: typer.Context,
    key: KeyArgument,
    activity: Annotated[
        int | None,
        typer.Argument(
            metavar="[ACTIVITY]", help="Which input: an id of `keys log` (else the newest that did not run)."
        ),
    ] = None,
    workflow: KeyWorkflow = None,
    on_duplicate: OnDuplicate = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Start an input again that was dropped or superseded: an ordinary start, by the rules of the key.

    Nothing is overwritten. The newest one is started again once; naming it by its id starts it once more.
    """
    from durable_cli.replaying import refuse_again

    session: Session = ctx.obj
    client = session.existing()
    found = client.replayable(key, activity, workflow=workflow)
    row = found.lost.activity
    if activity is None:
        refuse_again(key, row.id, found.replayed_as)
    if dry_run:
        session.out.guard()
        explained = client.explain_start(
            row.workflow or "", found.lost.input, key=key, on_duplicate=on_duplicate, execute=False
        )
        return tell_explanation(session, explained)
    lines = [keyview.headline(session, found.lost).strip(), *keyview.diff_lines(session, found.lost)]
    if not yes:
        session.out.note("\n  ".join(lines))
        if not agrees(session, f"start it again, as {row.workflow} with the key {session.shown_key(key)}?"):
            return 1
    session.out.guard()
    result = client.replay_input(key, row.id, workflow=row.workflow, on_duplicate=on_duplicate)
    started = client.run(result.run_id)
    document = {**start_document(started, result), "replayed": row.id}
    session.one(document, lambda: print_id(session, started.id), id_field="run_id")
    if result.outcome is not Outcome.EXISTING:
        session.out.note(note_of(result.outcome, started.id))
    elif not session.out.quiet:  # never in silence: it was asked for on purpose
        session.out.say(
            f"nothing started: run {started.id} ({started.status}) has the key, and the input was dropped again"
        )
        session.out.hint("--on-duplicate run_again (after it) or cancel_existing")
    return 0
