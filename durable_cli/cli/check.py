"""`durable check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from durable_cli import render
from durable_cli.cli.runs import Fields, Header
from durable_cli.cli.session import Session
from durable_cli.core.timing import format_count

if TYPE_CHECKING:
    from durable_cli.codecheck import Finding

FIELDS = ("file", "line", "column", "rule", "severity", "message", "right", "workflow")
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="As for `durable run`; without :workflow all workflows of the file are checked.",
        show_default=False,
    ),
]


def check(ctx: typer.Context, target: Target, fields: Fields = None, header: Header = False) -> int:
    """Find in a workflow's code what replay cannot forgive: effects, clock or random outside of steps, operations in
    steps, results by closure, swallowed waits, and more.

    Reads the code and executes nothing. Looks into the file of the workflow, not into what that imports.
    `# durable: ok RULE` at the end of a line silences a rule there. Exit 1 when a finding is an error; else 0.
    """
    session: Session = ctx.obj
    from durable_cli.codecheck.target import check_target

    client = session.reader(named=False) if _is_bare(target) else None
    checked = check_target(
        target, app_dir=session.app_dir(target), known=client.workflow if client is not None else lambda name: None
    )
    documents: list[render.Document] = [
        {name: getattr(finding, name) for name in FIELDS} for finding in checked.findings
    ]
    if fields is None and session.out.format in (None, "table"):
        if documents and (checked.errors or not session.out.quiet):
            session.out.answer("\n".join(line for one in checked.findings for line in _lines(session, one)))
    else:
        session.list(
            documents,
            FIELDS,
            table=lambda: (FIELDS, []),
            empty="nothing found",
            chosen=fields,
            header=header,
            id_field="rule",
        )
    warnings = len(checked.findings) - checked.errors
    names = ", ".join(session.shown(name) for name in checked.workflows)
    session.out.note(f"{format_count(checked.errors, 'error')}, {format_count(warnings, 'warning')} in {names}")
    return 1 if checked.errors else 0


def _is_bare(target: str) -> bool:
    """Could it be the name of a workflow that the database knows?"""
    return not (":" in target or "/" in target or target.endswith(".py"))


def _lines(session: Session, finding: Finding) -> list[str]:
    place = f"{session.shown(finding.file)}:{finding.line}:{finding.column}"
    told = f"{place}: {finding.severity}[{finding.rule}] {session.shown(finding.message)}"
    return [told, f"    right: {session.shown(finding.right)}"]
