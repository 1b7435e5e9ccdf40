"""How plain and `async` workflow code are called. The operations themselves are the same for both."""

from __future__ import annotations

import contextvars
import inspect
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from durable_cli.context import AsyncContext, Context
from durable_cli.core.timing import format_duration
from durable_cli.entering import current_branch
from durable_cli.errors import StepTimeout, UsageError
from durable_cli.execution import Face, Leave, Stop, TimedOut
from durable_cli.operations import Operations, drive
from durable_cli.usercode import as_exception, leaves_process

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_MOST_THREADS = 64


class PlainFace:
    """A plain workflow calls its steps here and now; branches and steps with a timeout get threads.

    An `async def` step gets an event loop of its own.
    """

    async def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], timeout_ms: int | None
    ) -> Any:
        """As `Face.call`; with a timeout in a thread, which goes on when that is over."""
        if timeout_ms is None:
            return _plain(function, args, kwargs)
        finished, result = _in_thread(lambda: _plain(function, args, kwargs), timeout_ms / 1000)
        if not finished:
            raise _too_long(timeout_ms)
        return result

    async def branch(self, function: Callable[[Any], Any], operations: Operations) -> Any:
        """As `Face.branch`, in the thread of whoever calls."""
        with _speaking(operations):
            result = _called(function, (Context(operations),), {})
        if inspect.iscoroutine(result):
            result.close()
            raise UsageError("a branch of a plain workflow is a plain function; async def goes with async def")
        return result

    async def blocking(self, function: Callable[[], T]) -> T:
        """As `Face.blocking`: here and now."""
        return function()

    async def gather(self, jobs: list[Callable[[], Awaitable[None]]], concurrency: int | None) -> None:
        """As `Face.gather`, by threads."""
        workers = min(concurrency or _MOST_THREADS, len(jobs))
        if workers <= 1:
            for job in jobs:
                await job()
            return
        from concurrent.futures import ThreadPoolExecutor  # late: few workflows branch

        with ThreadPoolExecutor(workers, thread_name_prefix="durable-branch") as pool:
            for future in [pool.submit(contextvars.copy_context().run, drive, _Later(job)) for job in jobs]:
                future.result()


class AsyncFace:
    """An `async` workflow never blocks its event loop: plain steps and the file are waited for in threads."""

    async def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], timeout_ms: int | None
    ) -> Any:
        """As `Face.call`; a plain function is called in a thread, and a timeout cancels."""
        import asyncio

        async def called() -> Any:
            return await _unless_cancelled(call_it())

        async def call_it() -> Any:
            if inspect.iscoroutinefunction(function):
                with _one_process(awaited=True):
                    return await function(*args, **kwargs)
            result = await asyncio.to_thread(_called, function, args, kwargs)
            return await result if inspect.isawaitable(result) else result

        if timeout_ms is None:
            return await called()
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit:
                return await called()
        except TimeoutError:
            if limit.expired():
                raise _too_long(timeout_ms) from None
            raise

    async def branch(self, function: Callable[[Any], Any], operations: Operations) -> Any:
        """As `Face.branch`, on the event loop."""
        with _one_process(awaited=True), _speaking(operations):
            result = function(AsyncContext(operations))
            result = await result if inspect.isawaitable(result) else result
            operations.check_at_rest()
            return result

    async def blocking(self, function: Callable[[], T]) -> T:
        """As `Face.blocking`, in a thread."""
        import asyncio

        return await asyncio.to_thread(function)

    async def gather(self, jobs: list[Callable[[], Awaitable[None]]], concurrency: int | None) -> None:
        """As `Face.gather`, by tasks."""
        import asyncio

        places = asyncio.Semaphore(concurrency or max(1, len(jobs)))

        async def one(job: Callable[[], Awaitable[None]]) -> None:
            async with places:
                await job()

        await asyncio.gather(*(one(job) for job in jobs))


class _Later:
    """Makes its awaitable only when it is awaited: a coroutine that no thread takes up would warn."""

    def __init__(self, job: Callable[[], Awaitable[None]]) -> None:
        self._job = job

    def __await__(self) -> Any:
        return self._job().__await__()


@contextmanager
def _speaking(operations: Operations) -> Iterator[None]:
    """What is printed meanwhile, outside of steps, belongs to this branch."""
    token = current_branch.set(operations)
    try:
        yield
    finally:
        current_branch.reset(token)


def call_within(
    face: Face,
    function: Callable[..., Any],
    operations: Operations,
    arguments: tuple[object, ...],
    seconds: float | None,
) -> Any:
    """Call a workflow function, for at most `seconds`; then TimedOut. A plain function that is still executing by then
    goes on in its thread, where nothing it does is accepted any more.
    """
    with _speaking(operations):
        return _call_within(face, function, operations, arguments, seconds)


def _call_within(
    face: Face,
    function: Callable[..., Any],
    operations: Operations,
    arguments: tuple[object, ...],
    seconds: float | None,
) -> Any:
    if isinstance(face, AsyncFace):
        return run_async(lambda: _awaited(function, AsyncContext(operations), arguments, seconds))
    arguments = (Context(operations), *arguments)
    if seconds is None:
        return _called(function, arguments, {})
    finished, result = _in_thread(lambda: _called(function, arguments, {}), max(seconds, 0))
    if not finished:
        raise operations.leave(TimedOut())
    return result


def run_operation(face: Face, make: Callable[[], Awaitable[T]]) -> T:
    """Run something of durable's own as the face runs its workflow."""
    if isinstance(face, AsyncFace):
        return run_async(make)
    done: T = drive(make())
    return done


_loop: asyncio.AbstractEventLoop | None = None


@contextmanager
def shared_loop() -> Iterator[None]:
    """While this lasts, all `async` code of this process runs on one event loop, a worker's."""
    global _loop
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    loop = asyncio.new_event_loop()
    executor = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="durable-async")
    loop.set_default_executor(executor)
    thread = threading.Thread(target=loop.run_forever, name="durable-loop", daemon=True)
    thread.start()
    _loop = loop
    try:
        yield
    finally:
        _loop = None
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
        thread.join(1.0)
        executor.shutdown(wait=False)
        if not thread.is_alive():
            loop.close()


async def _cancel_all() -> None:
    """Cancel what the loop still does, and stop it."""
    import asyncio

    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=1.0)
    asyncio.get_running_loop().stop()


def run_async(make: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end: on the shared event loop, else on one of its own. From a thread whose loop is running
    (a step or a notebook that executes a workflow) it gets a thread too.
    """
    import asyncio
    import concurrent.futures

    async def main() -> T:
        return await _unless_cancelled(make())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return cast("T", _in_thread(lambda: asyncio.run(main()), None)[1])
    loop = _loop
    if loop is None:
        return asyncio.run(main())
    future = asyncio.run_coroutine_threadsafe(main(), loop)
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        if future.cancelled():  # by the end of the shared loop
            raise Stop() from None
        raise


async def _unless_cancelled(code: Awaitable[T]) -> T:
    """Await user code. A CancelledError that it lets out while nobody cancels us is a failure like any other."""
    import asyncio
    import concurrent.futures

    try:
        return await code
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise concurrent.futures.CancelledError("something that was awaited had been cancelled") from None


async def _awaited(
    function: Callable[..., Any], context: AsyncContext, arguments: tuple[object, ...], seconds: float | None
) -> Any:
    import asyncio

    try:
        async with asyncio.timeout(None if seconds is None else max(seconds, 0)) as limit:
            with _one_process(awaited=True):
                result = await function(context, *arguments)
                context._operations.check_at_rest()
                return result
    except TimeoutError:
        if limit.expired():
            raise context._operations.leave(TimedOut()) from None
        raise


def _plain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = _called(function, args, kwargs)
    if not inspect.iscoroutine(result):
        return result
    with _one_process():
        return run_async(lambda: result)


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _one_process():
        return function(*args, **kwargs)


@contextmanager
def _one_process(*, awaited: bool = False) -> Iterator[None]:
    """Around user code: a child that was forked in it and comes out of it ends here. It has copies of all we know,
    and would record, end and print in the name of its parent.

    What is no Exception, and means neither the run nor this process to be left (gevent's Timeout, a CancelledError of
    a loop of its own), is a failure like any other: unrecorded, the run would be tried again for ever.
    """
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != pid:
            _end_forked(error)
        if _stays(error, awaited=awaited):
            raise
        raise as_exception(error) from error.__cause__
    if os.getpid() != pid:
        _end_forked(None)


def _stays(error: BaseException, *, awaited: bool) -> bool:
    """Is it an Exception, or does it leave the run, the process, a test or (`awaited`) a coroutine?"""
    if isinstance(error, StopIteration):
        return False  # no coroutine may raise it, and durable's own are between the step and its record
    leaves: tuple[type[BaseException], ...] = (Exception, Leave, SystemExit)
    if awaited:
        import asyncio

        leaves += (asyncio.CancelledError, GeneratorExit)
    return isinstance(error, leaves) or leaves_process(error)


def _end_forked(error: BaseException | None) -> NoReturn:
    """End a forked child as Python would, but without the parent's clean-up."""
    code: object = 1
    if error is None:
        print("a process that was forked in a workflow came back out of the code that forked it", file=sys.stderr)
    elif isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    else:
        sys.excepthook(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else 1)


def _in_thread(function: Callable[[], T], seconds: float | None) -> tuple[bool, T | None]:
    """Call a function in a thread, waiting for it at most so long: (finished, its result); raises what it raised."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), name="durable-step", daemon=True)
    thread.start()
    thread.join(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
    if errors:
        raise errors[0]
    return (True, results[0]) if results else (False, None)


def _too_long(timeout_ms: int) -> StepTimeout:
    return StepTimeout(f"the attempt took longer than {format_duration(timeout_ms)}")
