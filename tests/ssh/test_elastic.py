"""Elastic nodes that are started by hand: torchrun regroups without one that died."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.guarded import until
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.namespaces import Node, nodes

pytestmark = [pytest.mark.root, pytest.mark.slow]

DEADLINE_S = 180
#: Says of how many ranks it is one, and is through when a test that has done its harm writes a file `finish`.
TRAIN = """
import os, socket, time
from pathlib import Path
with open(f"began-{socket.gethostname()}", "a") as file:
    file.write(os.environ["WORLD_SIZE"] + "\\n")
while not Path("finish").exists():
    time.sleep(0.1)
print("finished as one of", os.environ["WORLD_SIZE"], "ranks", flush=True)
"""


def began(folder: Path, host: Node, times: int = 1) -> list[str]:
    """Wait until ranks of ``host`` have begun ``times`` times; return of how many ranks each time."""
    path = folder / f"began-{host.name}"
    enough = f"{host.name} begins {times} times"
    until(lambda: path.exists() and path.read_text().count("\n") >= times, enough, DEADLINE_S)
    return path.read_text().split()


def test_elastic_nodes_by_hand_regroup_without_one_that_died(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    elastic = ("--nnodes", "2:3", "--max-restarts", "2", "--show", "all", "--run-id", "elastic")
    quick = "--torchrun-arg=--rdzv-conf=last_call_timeout=20,keep_alive_interval=2"
    with nodes(3, tmp_path) as made:
        running = []
        for number, node in enumerate(made):
            place = ("--node-rank", str(number), "--master-addr", made[0].address, "--run-dir", node.name)
            argv = ddplaunch("run", "1", "--device", "cpu", "--no-checks", *elastic, *place, quick, "--", "train.py")
            running.append(node.start(argv, tmp_path, clean_environment()))
        try:
            for node in made:
                began(tmp_path, node)
            made[2].run(["sh", "-c", "kill -9 -1"], Path("/"), clean_environment())
            for node in made[:2]:
                assert began(tmp_path, node, 2)[1] == "2"
            (tmp_path / "finish").touch()
            said = [each.communicate(timeout=DEADLINE_S)[0] for each in running[:2]]
        finally:
            for each in running:
                each.kill()
                each.communicate()
    assert [each.returncode for each in running[:2]] == [0, 0], said
    assert "".join(said).count("finished as one of 2 ranks\n") == 2
    assert all("done in 2 attempts" in text for text in said)
