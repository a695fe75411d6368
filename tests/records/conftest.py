"""The fixtures of records: those of the command line, which reads and writes them."""

from tests.cli.conftest import call, folder, start_run

__all__ = ["call", "folder", "start_run"]
