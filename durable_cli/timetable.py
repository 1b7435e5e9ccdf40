"""What `Durable` does with schedules."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from durable_cli.changing import Changer, result_of
from durable_cli.core.schedules import check_spec
from durable_cli.core.timing import Duration
from durable_cli.declaring import Declared, declared
from durable_cli.definition import UNSET
from durable_cli.errors import DurableError
from durable_cli.model import OnDuplicate, Schedule, ScheduleFire, StartResult
from durable_cli.reading import AnyWorkflow
from durable_cli.store import schedules

if TYPE_CHECKING:
    from durable_cli.scheduling import Plan, Synced

# `scheduling` and `firing` are imported by the methods: a `durable run` from cron needs neither.


class Timetable(Changer):
    """A durable file with its schedules."""

    def schedule(
        self,
        name: str,
        cron: str,
        workflow: AnyWorkflow,
        input: object = UNSET,
        *,
        key: str | None = None,
        timezone: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
        catchup: str = "one",
        jitter: Duration | None = None,
    ) -> Schedule:
        """Start a workflow whenever `cron` is due in `timezone` (default: the system's), by a worker or a tick.

        The options are those of `@schedule`. A schedule of that name is changed: its next fire is computed from now,
        and nothing is fired by the change. Raises InvalidCron, InvalidZone, InvalidName, InvalidKey, InvalidInput,
        WorkflowNotFound, ScheduleTaken (code declares it).
        """
        self.put_schedule(
            name,
            cron,
            workflow,
            input,
            key=key,
            timezone=timezone,
            on_duplicate=on_duplicate,
            catchup=catchup,
            jitter=jitter,
        )
        return self.find_schedule(name)

    def put_schedule(
        self,
        name: str,
        cron: str,
        workflow: AnyWorkflow,
        input: object = UNSET,
        *,
        key: str | None = None,
        timezone: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
        catchup: str = "one",
        jitter: Duration | None = None,
        default_zone: str | None = None,
        write: bool = True,
    ) -> Plan:
        """As `schedule`; says what became of it. `write=False`: what would become of it. `default_zone`: in place of
        the system's."""
        from durable_cli import scheduling

        spec = check_spec(
            name=name,
            cron=cron,
            timezone=timezone,
            key=key,
            on_duplicate=on_duplicate,
            catchup=catchup,
            jitter=jitter,
        )
        wanted = scheduling.wanted(spec, self._definition(workflow), input)
        if write:
            return scheduling.put(self._engine, wanted, default_zone=default_zone)
        known = self._read_if_there(lambda tx: schedules.get(tx, name), None)
        return scheduling.plan(known, wanted, default_zone)

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        return self._read(schedules.every)

    def find_schedule(self, name: str) -> Schedule:
        """A schedule. Raises ScheduleNotFound."""
        from durable_cli.firing import must_get

        return self._read(lambda tx: must_get(tx, name))

    def schedule_fires(self, name: str, *, limit: int = 10) -> list[ScheduleFire]:
        """What became of the last due times of a schedule, newest first. Raises ScheduleNotFound."""
        found = self.find_schedule(name)
        return self._read(lambda tx: schedules.fires(tx, found.name, limit))

    def remove_schedule(self, name: str) -> Schedule:
        """Delete a schedule; its runs stay. Raises ScheduleNotFound, ScheduleTaken (code declares it)."""
        from durable_cli import scheduling

        return scheduling.remove(self._engine, name)

    def pause_schedule(self, name: str, *, reason: str | None = None) -> Schedule:
        """Fire it no more until it is resumed. Raises ScheduleNotFound."""
        from durable_cli import scheduling

        return scheduling.pause(self._engine, name, reason)

    def resume_schedule(self, name: str) -> Schedule:
        """Fire it again, from now on. Raises ScheduleNotFound, InvalidCron, InvalidZone."""
        from durable_cli import scheduling

        return scheduling.resume(self._engine, name)

    def trigger_schedule(self, name: str) -> StartResult:
        """Fire a schedule now, with its key, policy and input; its next due time stays, and a paused one stays paused.

        Raises ScheduleNotFound, and as `start`: KeyTaken where its policy is `error` and the key is taken.
        """
        from durable_cli import firing

        return result_of(firing.trigger(self._engine, name))

    def sync_schedules(
        self,
        modules: Iterable[str],
        *,
        app_dir: str | os.PathLike[str] | None = None,
        default_zone: str | None = None,
    ) -> Synced:
        """Bring what the code of these modules (or files) declares by `@schedule` into the file.

        Changed ones are updated, and those that a module no longer declares fire no more. A module that cannot be
        imported changes nothing; that, and each schedule that is refused, is told in `failed`.
        """
        from durable_cli import scheduling
        from durable_cli.loading import load_module

        found: dict[str, Declared] = {}
        roots: list[str] = []
        failed: dict[str, DurableError] = {}
        for module in modules:
            try:
                root, workflows = load_module(module, app_dir=None if app_dir is None else Path(app_dir))
            except DurableError as error:
                failed[module] = error
            else:
                roots.append(root)
                found.update((one.spec.name, one) for one in declared(workflows))
        done = scheduling.sync(self._engine, list(found.values()), roots, default_zone=default_zone)
        done.failed.update(failed)
        return done
