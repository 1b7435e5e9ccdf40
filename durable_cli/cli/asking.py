"""Asking a person before something is done."""

from __future__ import annotations

import sys

from durable_cli.cli.session import Session


def agrees(session: Session, question: str) -> bool:
    """Does the person at the terminal say yes to `question` (text that is ready to be shown)?

    Where nobody is there to be asked (a pipe, cron, `--no-input`) the answer is yes: a question is a courtesy to people
    who type, and a script has made up its mind.
    """
    there = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty() and session.out.terminal_err
    if not there or session.no_input:
        return True
    session.out.ask(f"{question} [y/N] ")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    session.out.say("nothing was done")
    return False
