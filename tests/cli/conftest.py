"""The fixtures that tests of the command line share."""

from tests.cli.cli_calls import call, folder
from tests.records.fake_runs import start_run

__all__ = ["call", "folder", "start_run"]
