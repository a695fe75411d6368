"""``python -m ddplaunch.cli.hosts.on_host``: one host's part of a launch over several, as the launcher decided it.

It reads the launch from stdin, checks it against this machine, and becomes torchrun. The launcher decides
whatever all hosts share, and reports the outcome.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

from ddplaunch.cli.execute import environment_of, record_and_execute, refuse_too_long
from ddplaunch.cli.prepare import errors, prepare
from ddplaunch.cli.streams import tell_findings
from ddplaunch.cli.target import parse_target
from ddplaunch.planning.hosts_plan import options_from_plain
from ddplaunch.planning.settings import Settings
from ddplaunch.records.gpu_lock import GpuLocks
from ddplaunch.records.launchers import is_of_launch
from ddplaunch.records.own.run_lock import hold_run
from ddplaunch.values.finding import DdplaunchError, RefusedError
from ddplaunch.values.variable_names import SETTINGS


def on_host(order: dict[str, Any]) -> NoReturn:
    """Launch from ``order``: ``options``, ``script``, and ``argv`` as typed. Raises RefusedError or UsageError."""
    options = options_from_plain(order["options"])
    target = parse_target(order["script"])
    prepared = prepare(options, target, locks=GpuLocks())
    if refusing := errors(prepared.findings):
        raise RefusedError(*refusing)
    environment = environment_of(prepared.launch)
    if SETTINGS in environment:  # the launcher reports the outcome
        environment[SETTINGS] = Settings.from_json(environment[SETTINGS])._replace(silent=True, others="").to_json()
    refuse_too_long(prepared.launch.argv, environment)
    shared = is_of_launch(prepared.base / "runs" / prepared.launch.run_id, order["token"])
    lock = hold_run(prepared.base, prepared.launch, "host", shared=shared)
    record_and_execute(prepared, prepared.launch, environment, lock, order["argv"], order["token"], silent=True)


def main() -> int:
    """Launch from stdin; return an exit status only where nothing could be launched."""
    try:
        on_host(json.load(sys.stdin.buffer))
    except DdplaunchError as problem:
        tell_findings(problem.findings)
        return problem.status


if __name__ == "__main__":
    sys.exit(main())
