"""`durable` and `python -m durable_cli`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """The console script. Imports only what the call needs: a crontab pays for it every minute."""
    from durable_cli.cli.output import open_standard_descriptors, tolerate_readers_that_leave

    open_standard_descriptors()
    tolerate_readers_that_leave()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # so our parent left it: how a child of ours ends is lost
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    argv = sys.argv[1:]
    if argv == ["--version"]:
        from durable_cli import __version__

        print(f"durable {__version__}")
        return 0
    if argv[:1] == ["__complete"]:
        from durable_cli.cli.complete import main as complete

        return complete(argv[1:])
    from durable_cli.cli.app import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
