"""`durable schedules list|show|add|remove|pause|resume|trigger|next|sync`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_cli import render
from durable_cli.cli import errors, moments
from durable_cli.cli.executing import note_of, start_document, tell_existing
from durable_cli.cli.options import check_choice
from durable_cli.cli.runs import Fields, Header, Limit, limit_of
from durable_cli.cli.session import Cell, Session
from durable_cli.cli.starting import Call, DryRun, Input, Key, OnDuplicate, Params, Target, print_id
from durable_cli.core.timing import format_duration
from durable_cli.errors import DurableError, UsageError
from durable_cli.model import Catchup, Outcome, Policies, Schedule, ScheduleFire

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.scheduling import Plan

FIELDS: Final = (
    "name", "state", "workflow", "cron", "timezone", "key", "next_fire_at", "last_fire_at", "last_outcome",
    "last_run_id", "last_skip_at", "fires", "skips", "missed", "failures", "last_error", "paused_at", "paused_reason",
    "vanished_at", "on_duplicate", "input", "catchup", "jitter_ms", "file",
)  # fmt: skip
_SHOWN_FIRES: Final = 5
_KEYLESS: Final = "without a key a fire starts a run although the last one goes on; --key KEY prevents that"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.", show_default=False)]
Zone = Annotated[
    str | None, typer.Option("--tz", metavar="ZONE", help="Its time zone, such as Europe/Berlin (else the system's).")
]


def state(schedule: Schedule) -> str:
    """`active`, `paused` or `vanished`."""
    if schedule.vanished_at is not None:
        return "vanished"
    return "active" if schedule.paused_at is None else "paused"


def schedule_document(schedule: Schedule) -> render.Document:
    """A row of `schedules list`."""
    moments = ("next_fire_at", "last_fire_at", "last_skip_at", "paused_at", "vanished_at")
    document: render.Document = {name: getattr(schedule, name, None) for name in FIELDS}
    document |= {name: render.iso(document[name]) for name in moments}
    return document | {
        "state": state(schedule),
        "next_fire_at": render.iso(schedule.next_fire_at) if schedule.active else None,
        "on_duplicate": None if schedule.on_duplicate is None else str(schedule.on_duplicate),
        "input": render.value(schedule.input),
        "catchup": str(schedule.catchup),
    }


def fire_document(fire: ScheduleFire) -> render.Document:
    """An entry of `recent`."""
    return {
        "due_at": render.iso(fire.due_at),
        "at": render.iso(fire.at),
        "outcome": fire.outcome,
        "run_id": fire.run_id,
        "missed": fire.missed,
        "reason": fire.reason,
    }


# -- looking ---------------------------------------------------------------------------------------------------------


def list_schedules(ctx: typer.Context, limit: Limit = None, fields: Fields = None, header: Header = False) -> int:
    """Every schedule, by name: zone, next fire, last fire, last skip, counters."""
    session: Session = ctx.obj
    client = session.reader(named=False)
    found = [] if client is None else client.schedules()[: limit_of(session, limit)]
    session.list(
        [schedule_document(schedule) for schedule in found],
        FIELDS,
        table=lambda: schedule_table(session, found),
        empty="no schedules",
        chosen=fields,
        header=header,
        id_field="name",
    )
    return 0


def schedule_table(session: Session, found: Sequence[Schedule]) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows for a person."""
    now = session.now()
    rows: list[list[Cell]] = [
        [
            one.name,
            one.workflow,
            one.cron,
            one.timezone,
            moments.local(one.next_fire_at, one.timezone, day=False) if one.active else (state(one), "yellow"),
            f"{render.age(one.last_fire_at, now)} {one.last_outcome}" if one.last_outcome else "-",
            render.age(one.last_skip_at, now),
            str(one.fires),
            str(one.skips),
            str(one.missed),
        ]
        for one in found
    ]
    columns = ["schedule", "workflow", "cron", "zone", "next", "last fire", "last skip", "fires", "skips", "missed"]
    return columns, rows


def show(ctx: typer.Context, name: Name) -> int:
    """One schedule: what it starts and when, what it did, why it failed."""
    session: Session = ctx.obj
    client = session.existing()
    schedule, recent = client.find_schedule(name), client.schedule_fires(name)
    document = {
        **schedule_document(schedule),
        "next": [render.iso(at) for at in _ahead(schedule, session.now())],
        "recent": [fire_document(fire) for fire in recent],
    }
    session.one(document, lambda: _show(session, schedule, recent), id_field="name")
    return 0


def _ahead(schedule: Schedule, now: int) -> list[int]:
    """Its next due times; none where what is stored cannot be read."""
    if not schedule.active or schedule.next_fire_at is None:
        return []
    try:
        return moments.fires(schedule.cron, schedule.timezone, min(now, schedule.next_fire_at - 1), _SHOWN_FIRES)
    except DurableError:
        return [schedule.next_fire_at]


def _show(session: Session, one: Schedule, recent: Sequence[ScheduleFire]) -> None:
    now = session.now()
    lines = [f"schedule    {one.name}  {state(one)}", f"when        {one.cron} in {one.timezone}"]
    if one.paused_reason is not None:
        lines.append(f"paused      {render.age(one.paused_at, now)}: {session.shown(one.paused_reason)}")
    if one.vanished_at is not None:
        lines.append(f"vanished    {render.age(one.vanished_at, now)}: its code no longer declares it")
    lines += [f"workflow    {one.workflow}", f"key         {session.shown_key(one.key)}"]
    lines.append(f"input       {session.shown(one.input) if one.input is not None else 'the default'}")
    lines.append(f"duplicates  {one.on_duplicate or 'as the workflow says'};  missed ones: {one.catchup}")
    lines.append(f"declared    {session.shown(one.file) if one.file else 'by hand'}")
    lines.append(f"fired       {one.fires}, of which {one.skips} met a taken key; missed {one.missed}")
    if one.last_error is not None:
        lines.append(f"failed      {one.failures} in a row: {session.shown(one.last_error)}")
    lines += [f"next        {moments.local(at, one.timezone)}" for at in _ahead(one, now)]
    session.out.answer("\n".join(lines))
    rows: list[list[Cell]] = [
        [
            moments.local(fire.due_at, one.timezone) if fire.due_at is not None else "by hand",
            render.age(fire.at, now),
            fire.outcome.replace("_", " "),
            fire.run_id or "-",
            str(fire.missed),
            session.shown(fire.reason or ""),
        ]
        for fire in recent
    ]
    session.table(["due", "fired", "outcome", "run", "missed", ""], rows, "it has not fired yet")


def next_fires(
    ctx: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="EXPR|NAME", help="A cron expression, or a schedule.", show_default=False)
    ],
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, max=1000, help="How many.")] = 5,
    tz: Zone = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="From then on (2026-12-24T18:00), not from now.")
    ] = None,
) -> int:
    """When a cron expression, or a schedule, fires next."""
    session: Session = ctx.obj
    cron = what
    if not what.startswith("@") and len(what.split()) < 2:
        schedule = session.existing().find_schedule(what)
        cron, tz = schedule.cron, tz or schedule.timezone
    zone = tz or moments.default_zone(session)
    after = session.now() if from_ is None else moments.parse(from_, zone) - 1
    found = moments.fires(cron, zone, after, count)
    form = session.out.list_format()
    if form == "json":
        session.out.document([render.iso(at) for at in found])
    elif form == "table":
        lines = [f"{moments.local(at, zone)}  {render.age(at, session.now())}" for at in found]
        session.out.answer("\n".join([f"{cron} in {zone}", *lines, *_notes(cron)]))
    else:
        fields = ("at", "local")
        documents = [{"at": render.iso(at), "local": moments.local(at, zone)} for at in found]
        session.list(
            documents, fields, table=lambda: ([], []), empty="it never fires", chosen=None, header=False, id_field="at"
        )
    return 0


def _notes(cron: str) -> list[str]:
    return [f"note: {note}" for note in moments.notes(cron)]


# -- changing --------------------------------------------------------------------------------------------------------


def add(
    ctx: typer.Context,
    name: Name,
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help="Five fields in quotes, or @daily and its like.", show_default=False)
    ],
    target: Target,
    key: Key = None,
    tz: Zone = None,
    input: Input = None,
    params: Params = None,
    on_duplicate: OnDuplicate = None,
    catchup: Annotated[
        str, typer.Option("--catchup", metavar="one|skip", help="Missed fires: one for all of them, or none.")
    ] = "one",
    jitter: Annotated[
        str | None, typer.Option("--jitter", metavar="DURATION", help="Start later by up to this, to spread load.")
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Start a workflow whenever a cron expression is due (by `durable worker` or `durable tick`).

    A schedule of that name is changed; the change fires nothing.
    """
    session: Session = ctx.obj
    check_choice("--catchup", catchup, [str(one) for one in Catchup])
    call = Call(target, key, input, tuple(params or ()), on_duplicate, False)
    value = call.value(session)
    moments.check(cron, tz)  # before users' code is loaded
    client = session.writer(target)
    definition = call.load(session, client)
    plan = client.put_schedule(
        name,
        cron,
        definition,
        **value,
        key=key,
        timezone=tz,
        on_duplicate=on_duplicate,
        catchup=catchup,
        jitter=jitter,
        default_zone=None if tz is not None else moments.default_zone(session),
        write=not dry_run,
    )
    ahead = moments.fires(plan.settings["cron"], plan.settings["timezone"], session.now(), _SHOWN_FIRES)
    notes = [*moments.notes(cron), *([_KEYLESS] if plan.keyless else _postponing(definition.policies, ahead))]
    if plan.known is not None and plan.known.paused_at is not None:
        notes.append(session.out.command(f"it is paused: durable schedules resume {name}"))
    document = _plan_document(plan) | {"next": [render.iso(at) for at in ahead], "notes": notes}
    session.one(document, lambda: _tell_plan(session, plan, ahead, notes, dry_run=dry_run), id_field="name")
    return 0


def _postponing(policies: Policies, ahead: Sequence[int]) -> list[str]:
    """What to say of a keyed schedule on a debounced workflow: fires closer than its period gather, for ever where
    nothing caps the wait."""
    period = policies.debounce_ms
    if period is None or policies.debounce_timeout_ms is not None or not ahead:
        return []
    if any(later - earlier > period for earlier, later in itertools.pairwise(ahead)):
        return []
    return [
        f"the workflow is debounced by {format_duration(period)}: each fire puts the run off once more, and it never "
        'begins; Debounce(..., timeout="5m") is a cap'
    ]


def _plan_document(plan: Plan) -> render.Document:
    settings = plan.settings
    return {
        "name": plan.name,
        "change": plan.change,
        "workflow": plan.workflow,
        "cron": settings["cron"],
        "timezone": settings["timezone"],
        "key": settings["key"],
        "on_duplicate": None if settings["on_duplicate"] is None else str(settings["on_duplicate"]),
        "input": render.value(settings["input"]),
        "catchup": str(settings["catchup"]),
        "jitter_ms": settings["jitter_ms"],
    }


def _tell_plan(session: Session, plan: Plan, ahead: Sequence[int], notes: Sequence[str], *, dry_run: bool) -> None:
    if session.out.quiet:
        return
    zone = plan.settings["timezone"]
    verb = {"added": "added", "changed": "changed", "unchanged": "unchanged", "back": "added"}[plan.change]
    told = f"nothing is written; this schedule would be {verb}" if dry_run else verb
    key = "" if plan.settings["key"] is None else f", key {session.shown_key(plan.settings['key'])}"
    lines = [f"{told}: {plan.name} starts {plan.workflow}{key}", f"{plan.settings['cron']} in {zone}; next fires:"]
    if plan.change == "changed" and plan.known is not None:
        lines[0] += f" (was {plan.known.cron} in {plan.known.timezone})"
    lines += [f"  {moments.local(at, zone)}" for at in ahead]
    session.out.answer("\n".join([*lines, *(f"note: {note}" for note in notes)]))


def remove(ctx: typer.Context, name: Name) -> int:
    """Delete a schedule. Its runs stay."""
    session: Session = ctx.obj
    return _changed(session, "removed", session.existing().remove_schedule(name))


def pause(
    ctx: typer.Context,
    name: Name,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; shown in the list.")] = None,
) -> int:
    """Fire a schedule no more until it is resumed."""
    session: Session = ctx.obj
    return _changed(session, "paused", session.existing().pause_schedule(name, reason=reason))


def resume(ctx: typer.Context, name: Name) -> int:
    """Fire a schedule again, from now on; what came due meanwhile is not caught up with."""
    session: Session = ctx.obj
    return _changed(session, "resumed", session.existing().resume_schedule(name))


def _changed(session: Session, verb: str, schedule: Schedule) -> int:
    def human() -> None:
        ahead = f"; next fire {moments.local(schedule.next_fire_at, schedule.timezone)}" if verb == "resumed" else ""
        if not session.out.quiet:
            session.out.answer(f"{verb} {schedule.name}{ahead}")

    session.one(schedule_document(schedule), human, id_field="name")
    return 0


def trigger(ctx: typer.Context, name: Name) -> int:
    """Fire a schedule now, by the rules of its key. Its next fire stays."""
    session: Session = ctx.obj
    client = session.existing()
    client.find_schedule(name)  # before users' code is loaded
    session.out.guard()
    result = client.trigger_schedule(name)
    found = client.run(result.run_id)
    session.one(start_document(found, result), lambda: print_id(session, found.id), id_field="run_id")
    if result.outcome is Outcome.EXISTING:
        tell_existing(session, client, found)
    else:
        session.out.note(note_of(result.outcome, found.id))
    return 0


def sync(
    ctx: typer.Context,
    modules: Annotated[
        list[str] | None, typer.Argument(metavar="MODULE...", help="Modules or files with @schedule.")
    ] = None,
) -> int:
    """Bring what code declares by @schedule into the database."""
    session: Session = ctx.obj
    wanted = modules or list(session.configured_modules())
    if not wanted:
        raise UsageError("name the modules whose schedules are meant", hint="durable schedules sync flows")
    client = session.writer(wanted[0])
    app_dir = session.app_dir(wanted[0])
    session.out.guard()
    done = client.sync_schedules(wanted, app_dir=app_dir, default_zone=moments.default_zone(session))
    document: dict[str, Any] = {
        "added": done.added,
        "changed": done.changed,
        "unchanged": done.unchanged,
        "back": done.back,
        "vanished": done.vanished,
        "failed": {name: errors.error_document(error, session.out) for name, error in done.failed.items()},
    }

    def human() -> None:
        said = {**document, "failed": []}
        lines = [f"{change}: {', '.join(names)}" for change, names in said.items() if names]
        if not session.out.quiet and (lines or not done.failed):
            session.out.answer("\n".join(lines) or "no schedules there")

    session.one(document, human, id_field="added")
    return max((errors.report(error, session.out) for error in done.failed.values()), default=0)


def sync_for_worker(session: Session, client: Durable, modules: Sequence[str]) -> None:
    """The schedules of the modules that a worker was started with; what is refused is said, and stops nothing."""
    zone = moments.default_zone(session)
    done = client.sync_schedules(modules, app_dir=session.app_dir(modules[0]), default_zone=zone)
    for name, error in done.failed.items():
        session.out.say(f"{session.out.styled('warning:', '1;33')} {name}: {session.shown(error.message)}")
    for name in done.vanished:
        session.out.say(
            f"{session.out.styled('warning:', '1;33')} schedule {name} is no longer declared; it fires no more"
        )


COMMANDS: Final[dict[str, Callable[..., int]]] = {
    "list": list_schedules,
    "show": show,
    "add": add,
    "remove": remove,
    "pause": pause,
    "resume": resume,
    "trigger": trigger,
    "next": next_fires,
    "sync": sync,
}
