"""`durable` and `python -m durable_cli`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> int:
    """The console script. Imports only what the call needs: a crontab pays for it every minute."""
    try:
        return _main(sys.argv[1:])
    except KeyboardInterrupt:  # while things are imported: what runs has its own way with signals
        return 130
    finally:
        _flush()


def _main(argv: list[str]) -> int:
    from durable_cli.cli.output import open_standard_descriptors, tolerate_readers_that_leave

    open_standard_descriptors()
    tolerate_readers_that_leave()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # so our parent left it: how a child of ours ends is lost
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if argv == ["--version"]:
        from durable_cli import __version__

        with contextlib.suppress(OSError):  # a full disk: told below, as of every answer
            print(f"durable {__version__}", flush=True)
            return 0
    if argv[:1] == ["__complete"]:
        from durable_cli.cli.complete import main as complete

        return complete(argv[1:])
    from durable_cli.cli.app import main as run

    return run(argv)


def _flush() -> None:
    """Write what is left, or throw it away: Python would try again as it ends, with a traceback and exit 120."""
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


if __name__ == "__main__":
    sys.exit(main())
