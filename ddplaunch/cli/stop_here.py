"""``python -m ddplaunch.cli.stop_here RUN_ID GRACE_S LAUNCH``: this host's part of a ``stop`` on another one, as JSON.

Only the launch with this token ends, not another of its id; ``ddplaunch stop`` takes a part of an id, too.
"""

from __future__ import annotations

import json
import os
import sys

from ddplaunch.cli.streams import answer
from ddplaunch.hosts.local.stop_run import stop_run
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.ui.stop_view import stop_json


def main(run_id: str, grace_s: float, launch: str) -> int:
    """End what runs here of this launch and this user; without a token, which a pasted torchrun lacks, of this id."""
    found: dict[str, list[object]] = {"ended": [], "remaining": []}
    for run in runs_in(process_table()):
        if (run.run_id, run.uid, run.launch) == (run_id, os.geteuid(), launch):
            said = stop_json(stop_run(run, grace_s), ())
            for key, listed in found.items():
                listed += said[key]
    answer(json.dumps({"schema": 1, **found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
