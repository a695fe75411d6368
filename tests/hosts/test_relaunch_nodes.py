"""Two nodes by hand that launch again together, or do not: what one of them knows counts for both."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch, finish
from tests.ports import free_port

pytestmark = pytest.mark.slow

#: Every launch fails. In the first one rank 0 saves, on its own disk.
SCRIPT = """
import os, sys
from pathlib import Path
with open("launches", "a") as file:
    file.write("x")
if os.environ["RANK"] == "0" and Path("launches").read_text() == "x":
    Path("out").mkdir()
    Path("out/step.pt").touch()
sys.exit(3)
"""


def start(folder: Path, number: int, port: int, *words: str) -> subprocess.Popen[str]:
    home = folder / f"node{number}"
    home.mkdir()
    (home / "train.py").write_text(SCRIPT)
    place = ("--nnodes", "2", "--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port", str(port))
    argv = ddplaunch("run", "1", "--device", "cpu", "--no-checks", *place, *words, "--", "train.py")
    environment = clean_environment(NO_COLOR="1", COLUMNS="200")
    return subprocess.Popen(
        argv, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_nodes_agree(tmp_path: Path) -> None:
    words = ("--relaunch", "3", "--relaunch-wait", "0.2", "--relaunch-after", "1h", "--output", "out")
    port = free_port()
    running = [start(tmp_path, number, port, *words) for number in (1, 0)]
    second, first = said = finish(running, 3)
    assert "relaunching 1 of 3 in 0.2 s, because `out/step.pt` is newer than at its start\n" in first
    assert "relaunching 1 of 3 in 0.2 s, if the nodes agree; here its ranks ran for " in second
    for text in said:
        assert "relaunching 2 of 3 in 0.4 s, if the nodes agree; here its ranks ran for " in text
        last = text.rstrip().splitlines()[-1]
        assert last.startswith("ddplaunch: not relaunched: its ranks ran for ")
        assert last.endswith(
            " s, less than 1 h (`--relaunch-after`), and nothing in `--output` is newer than at its start"
        )
    for number in range(2):
        assert (tmp_path / f"node{number}" / "launches").read_text() == "xx"
        runs = sorted((tmp_path / f"node{number}" / ".ddplaunch" / "runs").iterdir())
        assert len(runs) == 2
        nodes = [run if number == 0 else run / "node-1" for run in runs]
        assert json.loads((nodes[1] / "run.json").read_text())["relaunch_of"] == runs[0].name


def test_a_node_that_would_stay_behind_is_named_before_the_launch(tmp_path: Path) -> None:
    port = free_port()
    running = [start(tmp_path, 0, port, "--relaunch", "3"), start(tmp_path, 1, port)]
    for text in finish(running, 4):
        assert "error[launches-differ]" in text and "--relaunch 0 on node 1" in text
    assert not list(tmp_path.glob("node*/launches"))
