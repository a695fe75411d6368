"""Nodes that were started by hand hear of each other's end: what waits for a node that failed ends, and names it."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch, finish
from tests.ports import free_port

pytestmark = pytest.mark.slow

#: The rank of node 1 fails; that of node 0 is through by then, or waits for what does not come.
SCRIPT = """
import os, sys, time
if os.environ["RANK"] == "1":
    time.sleep(2)
    raise RuntimeError("bad batch")
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("waits_s", ["0", "600"])
def test_the_rest_ends_with_the_cause(tmp_path: Path, waits_s: str) -> None:
    """Ranks that are through leave their torchrun in its barrier, in C++, for five minutes."""
    port, running = free_port(), []
    for node in range(2):
        home = tmp_path / f"node{node}"
        home.mkdir()
        (home / "train.py").write_text(SCRIPT)
        place = ("--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port))
        argv = ddplaunch("run", "1", *ANYWHERE, "--no-checks", *place, "--", "train.py", waits_s)
        environment = clean_environment(NO_COLOR="1", COLUMNS="200")
        running.append(
            subprocess.Popen(
                argv, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    first, second = finish(running, 1)
    assert "RuntimeError: bad batch" in second
    assert "RuntimeError: bad batch" in first
    (run,) = (tmp_path / "node0/.ddplaunch/runs").iterdir()
    outcome = json.loads((run / "outcome.json").read_text())
    assert (outcome["state"], outcome["first_failed_rank"]) == ("failed", 1)
    assert outcome["diagnosis"]["code"] == "script-exception"
    socket.create_server(("127.0.0.1", port)).close()  # it is free again
