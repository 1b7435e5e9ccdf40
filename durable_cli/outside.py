"""The operations that reach outside of Python, as both contexts have them: commands and HTTP requests."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from durable_cli import http, shell
from durable_cli.core.policies import Retry
from durable_cli.core.timing import Duration
from durable_cli.http import HttpResult
from durable_cli.operations import Operations, drive
from durable_cli.shell import ShellResult

Path = str | os.PathLike[str]


class PlainOutside:
    """For plain functions."""

    _operations: Operations

    def shell(
        self,
        name: str,
        argv: Sequence[Path],
        *,
        input: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        check: bool = True,
    ) -> ShellResult:
        """Run a command as a step, without a shell: `argv` is the program and its arguments.

        It reads `input` (else nothing); `env` is added to our environment, with `DURABLE_RUN_ID`, `DURABLE_STEP`,
        `DURABLE_ATTEMPT` and `DURABLE_IDEMPOTENCY_KEY`. What it prints is kept in the run's log. It runs in a process
        group of its own, which gets TERM, and KILL five seconds later, when the run is cancelled or an attempt takes
        longer than `timeout`; the signal that stops us; and KILL at once when this process dies. A daemon that it
        leaves behind goes on. Raises ShellFailed unless it exits with 0 (`check=False`: look at the result yourself).
        """
        call = shell.checked(name, argv, input=input, env=env, cwd=cwd, timeout=timeout, retry=retry, check=check)
        result: ShellResult = drive(shell.shell(self._operations, call))
        return result

    def http(
        self,
        name: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Any = None,
        json: Any = None,
        content: str | bytes | None = None,
        timeout: Duration = "30s",
        retry: Retry | None = None,
        expect: int | Collection[int] | None = None,
    ) -> HttpResult:
        """Make an HTTP request as a step, by httpx (the extra `http`).

        Tried again (5 attempts, unless `retry` says otherwise) when there is no answer, or 429 or 5xx; a Retry-After
        is heeded. Every other status outside of `expect` (default: below 400) fails at once. All but reading methods
        send an `Idempotency-Key`, the same at every attempt. The answer, its headers too, is recorded: at most 1 MiB.
        Raises HttpFailed.
        """
        call = http.checked(
            name,
            method,
            url,
            headers=headers,
            params=params,
            json=json,
            content=content,
            timeout=timeout,
            retry=retry,
            expect=expect,
        )
        result: HttpResult = drive(http.http(self._operations, call))
        return result


class AsyncOutside:
    """The same, to be awaited."""

    _operations: Operations

    async def shell(
        self,
        name: str,
        argv: Sequence[Path],
        *,
        input: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        check: bool = True,
    ) -> ShellResult:
        """As `Context.shell`."""
        call = shell.checked(name, argv, input=input, env=env, cwd=cwd, timeout=timeout, retry=retry, check=check)
        return await shell.shell(self._operations, call)

    async def http(
        self,
        name: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Any = None,
        json: Any = None,
        content: str | bytes | None = None,
        timeout: Duration = "30s",
        retry: Retry | None = None,
        expect: int | Collection[int] | None = None,
    ) -> HttpResult:
        """As `Context.http`."""
        call = http.checked(
            name,
            method,
            url,
            headers=headers,
            params=params,
            json=json,
            content=content,
            timeout=timeout,
            retry=retry,
            expect=expect,
        )
        return await http.http(self._operations, call)
