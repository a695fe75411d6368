"""Nodes that were started by hand hear of each other's end: what waits for a node that failed ends, and names it."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch, finish
from tests.ports import free_port

pytestmark = pytest.mark.slow

#: The rank of node 1 fails when that of node 0 is through: its torchrun waits in its barrier, in C++, for five minutes.
SCRIPT = """
import os, time
if os.environ["RANK"] == "1":
    time.sleep(2)
    raise RuntimeError("bad batch")
"""
#: The rank of one node fails in the middle of a collective of gloo, and the other one's only loses its connection.
LOSES = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    raise RuntimeError("bad batch")
dist.barrier()
"""


@pytest.mark.parametrize(("script", "guilty"), [(SCRIPT, 1), (LOSES, 0)], ids=["through", "in a collective"])
def test_the_other_node_ends_with_the_cause(tmp_path: Path, script: str, guilty: int) -> None:
    port, running = free_port(), []
    homes = [tmp_path / f"node{node}" for node in range(2)]
    environment = clean_environment(NO_COLOR="1", COLUMNS="200")
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    for node, home in enumerate(homes):
        home.mkdir()
        (home / "train.py").write_text(script)
        place = ("--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port))
        argv = ddplaunch("run", "1", *ANYWHERE, "--no-checks", *place, "--", "train.py")
        running.append(subprocess.Popen(argv, cwd=home, env=environment, **streams))
    for node, text in enumerate(finish(running, 1)):
        assert text.count("error[script-exception]: RuntimeError: bad batch at train.py:") == 1, text
        assert text.count("error[") == 1, text
        (record,) = (homes[node] / ".ddplaunch/runs").iterdir()
        path = record / (f"node-{node}/outcome.json" if node else "outcome.json")
        outcome = json.loads(path.read_text())
        assert (outcome["state"], outcome["first_failed_rank"]) == ("failed", guilty), text
    socket.create_server(("127.0.0.1", port)).close()  # it is free again
