"""`durable workflows list|show`: what the database knows of workflows. Loads nobody's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from durable_cli import render
from durable_cli.cli.keys import key_table
from durable_cli.cli.runs import Fields, Header, Limit, limit_of
from durable_cli.cli.schedules import schedule_document, schedule_table
from durable_cli.cli.session import Cell, Session
from durable_cli.core.timing import format_duration
from durable_cli.model import UNFINISHED, Key, Policies

if TYPE_CHECKING:
    from durable_cli.catalogue import WorkflowDetails

FIELDS: Final = (
    "name", "reuse", "on_duplicate", "key_rule", "runs", "unfinished", "keys_held", "schedules",
    "file", "qualname", "module", "app_dir",
)  # fmt: skip


def list_workflows(ctx: typer.Context, limit: Limit = None, fields: Fields = None, header: Header = False) -> int:
    """Every workflow that was ever started here, by name."""
    session: Session = ctx.obj
    client = session.reader(named=False)
    found = [] if client is None else client.workflows()[: limit_of(session, limit)]
    session.list(
        [_row(one) for one in found],
        FIELDS,
        table=lambda: _table(session, found),
        empty="no workflows",
        chosen=fields,
        header=header,
        id_field="name",
    )
    return 0


def _unfinished(details: WorkflowDetails) -> int:
    return sum(count for status, count in details.runs.items() if status in UNFINISHED)


def _place(details: WorkflowDetails) -> render.Document:
    place = details.workflow.location
    return {"file": place.file, "qualname": place.qualname, "module": place.module, "app_dir": place.app_dir}


def _row(details: WorkflowDetails) -> render.Document:
    policies = details.workflow.policies
    return {
        "name": details.workflow.name,
        "reuse": str(policies.reuse),
        "on_duplicate": str(policies.on_duplicate),
        "key_rule": policies.key_rule,
        "runs": sum(details.runs.values()),
        "unfinished": _unfinished(details),
        "keys_held": details.keys_held,
        "schedules": len(details.schedules),
        **_place(details),
    }


def _table(session: Session, found: list[WorkflowDetails]) -> tuple[list[str], list[list[Cell]]]:
    rows: list[list[Cell]] = [
        [
            one.workflow.name,
            str(one.workflow.policies.reuse),
            session.shown(str(one.workflow.policies.on_duplicate)),
            str(sum(one.runs.values())),
            str(_unfinished(one)),
            str(one.keys_held),
            str(len(one.schedules)),
            session.shown(f"{one.workflow.location.file}:{one.workflow.location.qualname}"),
        ]
        for one in found
    ]
    return ["workflow", "reuse", "duplicates", "runs", "unfinished", "keys held", "schedules", "code"], rows


def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="W", help="The workflow.", show_default=False)],
    limit: Limit = None,
) -> int:
    """One workflow: the policies in force, where its code is, its schedules, its runs by status, its keys."""
    session: Session = ctx.obj
    client = session.existing()
    details = client.workflow_details(name)
    keys = client.keys(workflow=details.workflow.name)
    shown = keys[: 50 if limit is None and session.out.format in (None, "table") else limit]
    document = {
        "name": details.workflow.name,
        **_place(details),
        "policies": policies_document(details.workflow.policies),
        "runs": details.runs,
        "keys_held": details.keys_held,
        "schedules": [schedule_document(one) for one in details.schedules],
        "keys": [render.key_document(key) for key in shown],
    }
    session.one(document, lambda: _show(session, details, shown, len(keys)), id_field="name")
    return 0


def policies_document(policies: Policies) -> render.Document:
    """The policies of a workflow, by their names in SPEC; lengths in milliseconds."""
    return {
        "reuse": str(policies.reuse),
        "on_duplicate": str(policies.on_duplicate),
        "on_mismatch": policies.on_mismatch,
        "key": policies.key_rule,
        "timeout_ms": policies.timeout_ms,
        "debounce_ms": policies.debounce_ms,
        "debounce_timeout_ms": policies.debounce_timeout_ms,
        "max_hold_ms": policies.max_hold_ms,
        "on_max_hold": policies.on_max_hold,
    }


def _show(session: Session, details: WorkflowDetails, keys: list[Key], all_keys: int) -> None:
    shown, place = session.shown, details.workflow.location
    lines = [f"workflow      {details.workflow.name}", f"code          {shown(f'{place.file}:{place.qualname}')}"]
    if place.module is not None:
        lines.append(f"imported as   {shown(place.module)} from {shown(place.app_dir)}")
    lines += [f"{name:<13} {shown(text)}" for name, text in _policies(details.workflow.policies)]
    runs = ", ".join(f"{count} {status}" for status, count in details.runs.items()) or "none"
    lines += [f"runs          {runs}", f"keys          {all_keys}, of which {details.keys_held} are held"]
    session.out.answer("\n".join(lines))
    if details.schedules:
        session.table(*schedule_table(session, details.schedules), "")
    if keys:
        session.table(*key_table(session, keys), "")
    if len(keys) < all_keys:
        more = session.out.command(f"durable keys list --workflow {details.workflow.name}")
        session.out.note(f"{all_keys - len(keys)} more: {more}")


def _policies(policies: Policies) -> list[tuple[str, str]]:
    told = [("reuse", str(policies.reuse)), ("on_duplicate", str(policies.on_duplicate))]
    told.append(("key", policies.key_rule or "as the start says"))
    if policies.on_mismatch != "record":
        told.append(("on_mismatch", policies.on_mismatch))
    if policies.timeout_ms is not None:
        told.append(("timeout", format_duration(policies.timeout_ms)))
    if policies.debounce_ms is not None:
        most = policies.debounce_timeout_ms
        told.append(
            ("debounce", format_duration(policies.debounce_ms) + (f", at most {format_duration(most)}" if most else ""))
        )
    if policies.max_hold_ms is not None:
        told.append(("max_hold", f"{format_duration(policies.max_hold_ms)}, then {policies.on_max_hold}"))
    return told
