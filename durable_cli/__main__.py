"""`durable` and `python -m durable_cli`."""

from __future__ import annotations

import sys


def main() -> int:
    """The console script. Imports only what the call needs: a crontab pays for it every minute."""
    from durable_cli.cli.output import open_standard_descriptors, tolerate_readers_that_leave

    open_standard_descriptors()
    tolerate_readers_that_leave()
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
