"""The start of the ``ddplaunch`` command, also as ``python -m ddplaunch``."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` wraps, there already

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> None:
    """Run the command line and exit with its status; Ctrl-C ends it without a traceback from its first line on."""
    from ddplaunch.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
