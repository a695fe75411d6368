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


#: The rank of one node fails in the middle of a collective of gloo, and the other one's only loses its connection.
LOSES = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == int(sys.argv[1]):
    raise RuntimeError("bad batch")
dist.barrier()
"""


def by_hand(folder: Path, script: str, argument: str) -> tuple[list[str], list[Path], int]:
    """Run two nodes with a rank each to their end; return what each said, its record, and their port."""
    port, running = free_port(), []
    homes = [folder / f"node{node}" for node in range(2)]
    for node, home in enumerate(homes):
        home.mkdir()
        (home / "train.py").write_text(script)
        place = ("--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port))
        argv = ddplaunch("run", "1", *ANYWHERE, "--no-checks", *place, "--", "train.py", argument)
        environment = clean_environment(NO_COLOR="1", COLUMNS="200")
        running.append(
            subprocess.Popen(
                argv, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    said = finish(running, 1)
    return said, [next((home / ".ddplaunch/runs").iterdir()) for home in homes], port


@pytest.mark.parametrize("waits_s", ["0", "600"])
def test_the_rest_ends_with_the_cause(tmp_path: Path, waits_s: str) -> None:
    """Ranks that are through leave their torchrun in its barrier, in C++, for five minutes."""
    (first, second), (record, _), port = by_hand(tmp_path, SCRIPT, waits_s)
    assert "RuntimeError: bad batch" in second
    assert "RuntimeError: bad batch" in first
    outcome = json.loads((record / "outcome.json").read_text())
    assert (outcome["state"], outcome["first_failed_rank"]) == ("failed", 1)
    assert outcome["diagnosis"]["code"] == "script-exception"
    socket.create_server(("127.0.0.1", port)).close()  # it is free again


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_node_whose_ranks_lost_the_others_waits_for_the_cause(tmp_path: Path, guilty: int) -> None:
    said, records, _ = by_hand(tmp_path, LOSES, str(guilty))
    for node, (text, record) in enumerate(zip(said, records, strict=True)):
        assert text.count("error[script-exception]: RuntimeError: bad batch at train.py:7") == 1, text
        assert text.count("error[") == 1, text
        path = record / (f"node-{node}/outcome.json" if node else "outcome.json")
        outcome = json.loads(path.read_text())
        assert (outcome["state"], outcome["first_failed_rank"]) == ("failed", guilty), text
