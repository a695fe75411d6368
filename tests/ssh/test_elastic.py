"""Elastic nodes that are started by hand: torchrun regroups without one that died, and goes on from the checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.agent.guarded import until
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.namespaces import Node, nodes

pytestmark = [pytest.mark.root, pytest.mark.slow]

DEADLINE_S = 180
#: Adds over all ranks with gloo, step by step. Rank 0 saves the step and begins where it was; from step 5 on a file
#: `finish` of its host is waited for, so that a test can do its harm before. Ranks end without torch's own end.
TRAIN = """
import datetime, os, socket, time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
rank, world, attempt = dist.get_rank(), dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"]
saved = Path("out/step.pt")
state = torch.tensor([int(saved.read_text()) if rank == 0 and saved.exists() else 0, 0])
dist.broadcast(state, 0)
with open(f"began-{socket.gethostname()}", "a") as file:
    file.write(f"{rank} {world} {attempt} {state[0].item()} {os.getpid()}\\n")
while not state[1]:
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        state[0] += 1
        saved.parent.mkdir(exist_ok=True)
        saved.with_suffix(".tmp").write_text(str(state[0].item()))
        saved.with_suffix(".tmp").rename(saved)
        state[1] = int(Path("finish").exists())
    dist.broadcast(state, 0)
    time.sleep(0.05)
dist.barrier()
if rank == 0:
    print("finished at step", state[0].item(), "of", world, "ranks", flush=True)
os._exit(0)
"""


def power_off(host: Node) -> None:
    """End a host with all that it is."""
    host.run(["sh", "-c", "kill -9 -1"], Path("/"), clean_environment())


def began(folder: Path, host: Node, times: int = 1) -> list[dict[str, int]]:
    """Wait until ranks of ``host`` have begun ``times`` times to train together; return how each one began."""
    path = folder / f"began-{host.name}"
    enough = f"{host.name} begins {times} times"
    until(lambda: path.exists() and path.read_text().count("\n") >= times, enough, DEADLINE_S)
    names = ("rank", "world", "attempt", "step", "pid")
    return [dict(zip(names, map(int, line.split()), strict=True)) for line in path.read_text().splitlines()]


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
            power_off(made[2])
            for node in made[:2]:
                assert began(tmp_path, node, 2)[1]["world"] == 2
            (tmp_path / "finish").touch()
            said = [each.communicate(timeout=DEADLINE_S)[0] for each in running[:2]]
        finally:
            for each in running:
                each.kill()
                each.communicate()
    assert [each.returncode for each in running[:2]] == [0, 0], said
    assert re.search(r"finished at step \d+ of 2 ranks\n", "".join(said))
    assert all("done in 2 attempts" in text for text in said)
