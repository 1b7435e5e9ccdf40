"""What is sent to runs: `send-event`, `input`, and the list of what runs ask people, `inputs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_cli import render
from durable_cli.cli import rests
from durable_cli.cli.inputs import read_value
from durable_cli.cli.runs import Fields, Header, RunArgument, RunKey, RunWorkflow
from durable_cli.cli.session import Cell, Session, check_run_options
from durable_cli.errors import UsageError

if TYPE_CHECKING:
    from durable_cli.lookup import Question

INPUT_FIELDS: Final = ("run_id", "workflow", "key", "name", "type", "prompt", "choices", "asked_at", "until")


def send_event(
    ctx: typer.Context,
    run: RunArgument = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The name of the event.", show_default=False)
    ] = None,
    payload: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="Its payload: JSON, @FILE or - (else null).")
    ] = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
    no_buffer: Annotated[
        bool, typer.Option("--no-buffer", help="Refuse it (exit 4) unless the run waits for it now.")
    ] = False,
) -> int:
    """Send an event to a run: delivered if it waits for it, else kept until it gets there."""
    session: Session = ctx.obj
    run, name, payload = _shift(run, name, payload, key)
    check_run_options(run, key, workflow)
    if name is None:
        raise UsageError("name the event: durable send-event RUN NAME [JSON]")
    value = None if payload is None else read_value(payload, "JSON", may_ask=not session.no_input)
    client = session.existing()
    found = client.send_event(session.run(client, run, key, workflow).id, name, value, buffer=not no_buffer)
    session.one(render.run_document(found), lambda: None, id_field="id")
    then = rests.to_execute(session, client, found)
    session.out.note(f"event {session.shown(name)} was sent to run {found.id}{then}")
    return 0


def provide_input(
    ctx: typer.Context,
    run: RunArgument = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What is asked (durable inputs).", show_default=False)
    ] = None,
    value: Annotated[
        str | None,
        typer.Argument(metavar="VALUE", help="Text, a choice, yes or no, or a JSON object.", show_default=False),
    ] = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
) -> int:
    """Answer what a run asks a person."""
    session: Session = ctx.obj
    run, name, value = _shift(run, name, value, key)
    check_run_options(run, key, workflow)
    if name is None or value is None:
        raise UsageError("an answer is: durable input RUN NAME VALUE", hint="durable inputs")
    client = session.existing()
    named = session.run(client, run, key, workflow)
    session.out.guard()  # an answer with a type of the user's needs the user's code
    found = client.provide_input(named.id, name, value)
    session.one(render.run_document(found), lambda: None, id_field="id")
    then = rests.to_execute(session, client, found)
    session.out.note(f"run {found.id} has its answer to {session.shown(name)}{then}")
    return 0


def _shift(
    first: str | None, second: str | None, third: str | None, key: str | None
) -> tuple[str | None, str | None, str | None]:
    """RUN and what follows it. With `--key` there is no RUN: what stands first is the name."""
    if key is None:
        return first, second, third
    if third is not None:
        raise UsageError("RUN and --key name the run twice; give one of them")
    return None, first, second


def inputs(ctx: typer.Context, fields: Fields = None, header: Header = False) -> int:
    """What runs ask people now, oldest first."""
    session: Session = ctx.obj
    client = session.reader(named=False)
    found = [] if client is None else client.inputs()
    session.list(
        [question_document(one) for one in found],
        INPUT_FIELDS,
        table=lambda: _table(session, found),
        empty="no run asks for anything",
        chosen=fields,
        header=header,
        id_field="run_id",
    )
    return 0


def question_document(question: Question) -> render.Document:
    """One row of `inputs`."""
    details: dict[str, Any] = question.details
    return {
        "run_id": question.run_id,
        "workflow": question.workflow,
        "key": question.key,
        "name": question.name,
        "type": details.get("type"),
        "prompt": details.get("prompt"),
        "choices": details.get("choices"),
        "asked_at": render.iso(question.asked_at),
        "until": render.iso(question.until),
    }


def _table(session: Session, questions: list[Question]) -> tuple[list[str], list[list[Cell]]]:
    now, shown = session.now(), session.shown
    rows: list[list[Cell]] = []
    for one in questions:
        details: dict[str, Any] = one.details
        choices = details.get("choices")
        kind = shown(", ".join(choices)) if choices else str(details.get("type"))
        prompt = shown(details.get("prompt") or "")
        until = "" if one.until is None else render.age(one.until, now)
        rows.append([one.run_id, one.workflow, shown(one.name), kind, prompt, render.age(one.asked_at, now), until])
    return ["run", "workflow", "name", "answer", "prompt", "asked", "until"], rows
