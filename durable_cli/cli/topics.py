"""`durable help [TOPIC]`: what belongs to no single command, as plain text, each said in this one place."""

from __future__ import annotations

import difflib
from typing import Annotated, Final

import typer

from durable_cli.cli.options import Group
from durable_cli.cli.session import Session
from durable_cli.errors import UsageError

EXIT_CODES: Final = (
    ("0", "the run completed; a start was recorded; nothing to do and the policy says that is fine"),
    ("1", "the run ended failed or compensated; the module raised at import; any error without a number of its own"),
    ("2", "usage: an option, a key, an input that does not fit, an ambiguous id"),
    ("3", "not found"),
    ("4", "refused by the state: not finished, no key, compensating, not retryable"),
    ("5", "the run ended cancelled"),
    ("6", "key taken by a finished holder that `reuse` keeps: trying again will not help"),
    ("8", "the run is not over and we left"),
    ("70", "a bug in durable"),
    ("75", "key taken by an unfinished holder, database locked, disk full: trying again will help"),
    ("78", "configuration; database corrupt, newer than this program, or on a network file system"),
    ("129, 130, 143", "HUP, INT, TERM: the run is resumable, and the last line says how"),
)
"""(code, meaning); the table of the README says the same."""


def _exit_codes() -> str:
    rows = "\n".join(f"  {code:<15}{meaning.replace('`', '')}" for code, meaning in EXIT_CODES)
    return f"""\
What the exit code of a command says.

{rows}

-E N (--conflict-exit-code), as in flock: the code when nothing new began because the key is taken, whatever the
policy. `durable exec` exits with the code of its command, and with 128 and the number of a signal that ended it.
`durable check` and `durable doctor` exit with 1 where they found something.

In a script:

  durable run -q --on-duplicate error --key nightly flows.py
  case $? in
    0)  ;;                                  # completed
    75) ;;                                  # another one is at it, or no space: later
    6)  echo "done before" ;;               # reuse keeps the key
    *)  durable runs show --key nightly ;;
  esac"""


_ENVIRONMENT: Final = """\
Environment variables. An option on the command line counts over each of them.

  DURABLE_DB                  the database file, as --db
  DURABLE_APP_DIR             where your code is, as --app-dir
  DURABLE_MAX_VALUE_BYTES     the largest input, result or event, in bytes of JSON (1048576)
  DURABLE_UNSAFE_FILESYSTEM   1: use a database on a network file system all the same (data may be lost)
  XDG_DATA_HOME               without DURABLE_DB: the database is in $XDG_DATA_HOME/durable (cron does not set it)
  HOME                        without these: ~/.local/share/durable/durable.db
  TZ                          the time zone of schedules that name none
  NO_COLOR, FORCE_COLOR       colours never, or always; NO_COLOR wins, --color wins over both
  TERM                        dumb: no colours, no live line
  COLUMNS                     how wide tables are
  LANG, LC_ALL                without UTF-8 in them only ASCII is printed

Which database is in force, and why: durable db path -v. The configuration (durable.toml, or [tool.durable] in
pyproject.toml, searched upwards from the app-dir) comes after the environment and before the default.

Set for the commands of ctx.shell and of `durable exec`: DURABLE_RUN_ID, DURABLE_STEP, DURABLE_ATTEMPT and
DURABLE_IDEMPOTENCY_KEY. The environment itself is never recorded: a run that goes on in another process has the
environment of that one."""

_CRON: Final = """\
durable under cron (or a systemd timer, or launchd).

The line, with its directory, absolute paths and % escaped, is printed by the call itself, which then runs nothing:

  durable run --key nightly flows.py --print-crontab '0 3 * * *'
  0 3 * * * cd /home/me && /home/me/.venv/bin/durable run -q --db /home/me/durable.db --key nightly /home/me/flows.py

  --print-systemd   a service and its timer       --print-launchd   a property list       (daily; to be edited)

They are refused as the call itself would be: a wrong input is seen now, and not in the first night. `durable exec` has
them too. Units are named after workflow and key: another key is another job.

What cron mails, with -q: nothing when the run completed, when another one holds the key and is executed by a live
process, or when a run that was cut off was taken up and completed. A failure is one report of at most 40 lines, with
the command that goes on. --report changes: one report when it breaks, one line when it works again.

Why --key: cron starts the next copy although the last one is still running. With a key it gets the run that is there,
and a run that a reboot cut off is taken up, its finished steps kept. --on-duplicate says what a copy does instead.

Without a daemon, this line executes whatever is due (retries, sleeps, schedules, what programs started):

  * * * * * /home/me/.venv/bin/durable -q tick

Often the surprise: cron has no XDG_DATA_HOME, no DURABLE_DB, another PATH, and starts in the home directory. A line
that names --db is right in spite of it; durable doctor says when cron would use another file.

  crontab -l | durable schedules import -      makes schedules of existing lines"""

_JSON: Final = """\
--json: stdout holds exactly one JSON document, also for an error; everything else goes to stderr.

A list gives a list, everything else an object; what follows (runs watch, logs -f, activity -f) an object a line. Names
are snake_case; moments are "2026-11-29T12:00:00.123Z", UTC, with three digits; what is absent is null. Nothing that
your code prints ends up on stdout.

  durable run --json    run_id workflow key outcome status result error holder_id holder_status replaced_id
  a run                 id workflow key holds_key runs_after_id status input result error created_at started_at
                        finished_at due_at owner{alive,pid}; runs show: steps[seq,name,kind,status,attempts,...] too
  a key                 workflow key holder_id status held_since runs readds_24h waiting_id owner_alive [held_too_long]
  activity              at kind workflow key run_id details

  outcome is one of     created existing replaced queued merged event_sent resumed

A run that ended failed is an answer: its document, with error {type, message, step, attempt}. A call that has no answer
gives {"error": {"code", "message", "hint", ...}}; code is the name of the error, such as key_taken or run_not_found.

  durable run --json --key nightly flows.py | jq -r .run_id
  durable keys list --held --json | jq -r '.[].key'

--format jsonl: an object a line; tsv, csv: columns (--fields a,b chooses, --header names them); ids: ids alone."""

_TARGETS: Final = """\
TARGET: which workflow.

  flows.py                  the workflow that the file defines, if it is one
  flows.py:sync             the workflow (or the function) sync in that file
  package.module:sync       the same by module, found in the app-dir
  sync                      a workflow that the database knows: its code is loaded from where it was started before

The app-dir is --app-dir, else DURABLE_APP_DIR, else app-dir in the configuration, else the current directory; for a
file it is the directory above its package. It stands on sys.path behind the standard library.

A workflow is its file and the name of its function, however it is called: python flows.py, flows:sync and ./flows.py
start the same one. Moved on purpose: once with --moved. Workers load the code from the recorded place, and refuse a
file (or a directory above it) that others may write.

durable check TARGET finds what replay cannot forgive, without executing anything."""

_KEYS: Final = """\
Keys: at most one run of a workflow holds a key.

A key is text of 1 to 255 bytes and belongs to its workflow. The run that holds it is the holder; it goes on holding it
when it is finished, until a start takes it, somebody releases it, or it is pruned.

reuse, set on the workflow: may a new start take the key of a finished run?

  after_close      yes (the default)
  after_failure    if it did not complete
  never            no

on_duplicate, set on the workflow or by --on-duplicate: what a start gets whose key is taken.

  use_existing     the holder; nothing is created (the default)
  error            exit 75 while the holder is unfinished
  cancel_existing  the holder is cancelled, and the new run takes the key
  run_again        one run waits behind the holder, with the newest input
  send_event:NAME  the input becomes an event for the holder

Where reuse keeps the key of a finished holder, all but use_existing exit with 6.

  durable keys list            every key: its holder, its status, how often it was asked for
  durable keys show KEY        everything about one, with what was dropped
  durable release-key RUN      let go the key that a finished run holds
  durable cancel --key KEY     cancel the holder

-n says what a start would do now, and why, and does nothing."""

TOPICS: Final = {
    "exit-codes": ("what the exit code of a command says", _exit_codes()),
    "environment": ("environment variables", _ENVIRONMENT),
    "cron": ("durable under cron", _CRON),
    "json": ("what --json prints", _JSON),
    "targets": ("which workflow TARGET means", _TARGETS),
    "keys": ("one run a key: reuse and on_duplicate", _KEYS),
}


def show_help(
    ctx: typer.Context,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="None: which there are.", show_default=False)
    ] = None,
) -> int:
    """Explain what belongs to no single command: exit-codes, environment, cron, json, targets, keys."""
    session: Session = ctx.obj
    if topic is None:
        lines = [f"  durable help {name:<14}{title}" for name, (title, _) in TOPICS.items()]
        text = "\n".join([*lines, "", "  durable --help           the commands; each has --help of its own"])
        found = [{"topic": name, "title": title} for name, (title, _) in TOPICS.items()]
        if session.out.json:
            session.out.document(found)
        else:
            session.out.answer(text)
        return 0
    if topic not in TOPICS:
        raise UsageError(f"there is no topic {topic!r}; there are {', '.join(TOPICS)}", hint=_meant(ctx, topic))
    title, text = TOPICS[topic]
    document = {"topic": topic, "title": title, "text": text}
    session.one(document, lambda: session.out.answer(text), id_field="topic")
    return 0


def _meant(ctx: typer.Context, word: str) -> str:
    near = difflib.get_close_matches(word, TOPICS, 1)
    if near:
        return f"durable help {near[0]}"
    root = ctx.find_root().command
    known = root.get_command(ctx.find_root(), word) if isinstance(root, Group) else None
    return f"durable {known.name} --help" if known is not None else "durable --help"
