"""The start of the ``ddplaunch`` command, also as ``python -m ddplaunch``."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line and exit with its status; Ctrl-C ends it without a traceback from its first line on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ddplaunch.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
