"""Three nodes in network namespaces, started by hand: one never comes, one has another script, then all train."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch, finish
from tests.hosts.namespaces import Node, nodes

pytestmark = [pytest.mark.root, pytest.mark.slow]
SCRIPT = "import os, socket; print('launched rank', os.environ['RANK'], 'on', socket.gethostname(), flush=True)\n"


def start(node: Node, rank: int, folder: Path, address: str, *more: str) -> subprocess.Popen[str]:
    home = folder / node.name
    home.mkdir(exist_ok=True)
    if not (home / "train.py").exists():
        (home / "train.py").write_text(SCRIPT)
    place = ["--nnodes", "3", "--node-rank", str(rank), "--master-addr", address, *more]
    argv = [*ddplaunch("run", "1", "--device", "cpu", "--ignore", "script-never-initialises"), *place]
    return node.start([*argv, "--show", "all", "--", "train.py"], home, clean_environment())


def test_three_nodes(tmp_path: Path) -> None:
    with nodes(3, tmp_path) as made:
        two = [start(made[rank], rank, tmp_path, made[0].address, "--join-timeout", "12") for rank in (1, 0)]
        lonely = start(made[2], 2, tmp_path, "alpha0", "--join-timeout", "2", "--master-port", "29511")
        texts = finish(two, 4)
        assert "2 of 3 nodes joined, waiting for node 2\n" in texts[1]
        assert "waiting for the other nodes; node 0 says which\n" in texts[0]
        for text in texts:
            assert "error[nodes-missing]: 2 of 3 nodes joined within 12 s; missing: node 2\n" in text
            assert text.endswith("nothing was launched\n")
        (text,) = finish([lonely], 4)
        assert "no answer from alpha0:29511: connection refused" in " ".join(text.split())
        assert not list(tmp_path.glob("*/.ddplaunch"))

        odd = tmp_path / "alpha2" / "train.py"
        odd.write_text(SCRIPT + "# changed\n")
        three = [start(node, rank, tmp_path, made[0].address6) for rank, node in enumerate(made)]
        for text in finish(three, 4):
            assert "error[hosts-differ-script]: `train.py` differs: " in text and "on alpha2" in text
            assert "nothing was launched" in text

        odd.unlink()
        three = [start(node, rank, tmp_path, made[0].address6) for rank, node in reversed(list(enumerate(made)))]
        said = "".join(finish(three, 0))
        assert all(f"launched rank {rank} on alpha{rank}" in said for rank in range(3)), said
