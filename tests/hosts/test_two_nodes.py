"""The same command by hand on each of two hosts, in network namespaces: they train together, or are told why not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch, finish
from tests.hosts.namespaces import DECOY, INTERFACE, Node, nodes

pytestmark = [pytest.mark.root, pytest.mark.slow]

Pair = tuple[Node, ...]

#: Trains a linear model with DDP on data that differs by rank, then writes what this rank saw. With FAIL_ONCE in the
#: environment rank 1 leaves with status 7, once, after a collective that all ranks took part in. A file remembers it:
#: torchrun counts restarts only on nodes where a rank failed, and may number the nodes anew. It leaves by ``_exit``,
#: since on a busy machine an interpreter that ends with a DDP model alive is aborted by gloo's threads now and then.
TRAIN = """
import datetime, json, os, socket
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.ones(4) * (rank + 1)
dist.all_reduce(total)
failed = Path(os.environ["OUT"], "failed")
if os.environ.get("FAIL_ONCE") and rank == 1 and not failed.exists():
    failed.touch()
    raise SystemExit(7)
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
weights = [value for tensor in model.parameters() for value in tensor.flatten().tolist()]
names = ("LOCAL_RANK", "GROUP_RANK", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT", "DDPLAUNCH_RUN_ID")
seen = {name: os.environ.get(name) for name in names}
saw = {**seen, "rank": rank, "world": world, "host": socket.gethostname(), "sum": total[0].item(),
       "attempt": attempt, "weights": weights}
Path(os.environ["OUT"], f"rank-{rank}.json").write_text(json.dumps(saw))
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two nodes that resolve their own names."""
    with nodes(2, tmp_path) as made:
        yield made


def words(node_rank: int, address: str, *more: str) -> list[str]:
    """The command on one node, up to the script."""
    place = ["--nnodes", "2", "--node-rank", str(node_rank), "--master-addr", address]
    return ddplaunch("run", "2", *ANYWHERE, *place, *more)


def train(
    pair: Pair, folder: Path, address: str, *more: str, shared: str | None = None, **environment: str
) -> list[dict[str, Any]]:
    """Start the command on both nodes, each in a directory of its own, or in a ``shared`` one.

    Return what each rank wrote, in rank order.
    """
    out = folder / "out"
    out.mkdir()
    running = []
    for number, node in enumerate(pair):
        home = folder / (shared or node.name)
        home.mkdir(exist_ok=True)
        (home / "train.py").write_text(TRAIN)
        argv = [*words(number, address, *more), "--", "train.py"]
        running.append(node.start(argv, home, clean_environment(OUT=str(out), **environment)))
    finish(running, 0)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(4)]


def decided(node: Node, folder: Path, *argv: str) -> dict[str, Any]:
    """Return the plan of a launch on ``node``, as JSON."""
    (folder / "train.py").write_text(TRAIN)
    planning = ["plan" if word == "run" else word for word in argv]
    done = node.run([*planning, "--json", "--", "train.py"], folder, clean_environment())
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, dict) and "error" not in [finding["severity"] for finding in value["findings"]]
    return value


def interface(plan: dict[str, Any]) -> tuple[str, str, str]:
    """Return value, source and reason of the one interface that gloo gets."""
    (found,) = (each for each in plan["environment"] if each["name"] == "GLOO_SOCKET_IFNAME")
    return found["value"], found["source"], found["reason"]


def trained_together(ranks: list[dict[str, Any]]) -> None:
    """Four ranks, one sum over all of them, one model."""
    assert [each["rank"] for each in ranks] == [0, 1, 2, 3]
    assert {each["world"] for each in ranks} == {4}
    assert {each["sum"] for each in ranks} == {10.0}
    assert len({tuple(each["weights"]) for each in ranks}) == 1
    assert {each["GLOO_SOCKET_IFNAME"] for each in ranks} == {INTERFACE}


def test_node_zero_may_come_last_over_ipv6(pair: Pair, tmp_path: Path) -> None:
    ranks = train((pair[1], pair[0]), tmp_path, pair[1].address6, "--master-port", "29611")
    trained_together(ranks)
    assert [each["host"] for each in ranks] == ["alpha1", "alpha1", "alpha0", "alpha0"]
    assert {each["MASTER_PORT"] for each in ranks} == {"29611"}


def test_own_name_of_no_use_to_others(tmp_path: Path) -> None:
    with nodes(2, tmp_path, "loopback") as pair:
        trained_together(train(pair, tmp_path, pair[0].name, shared="both"))
    (record,) = (path for path in (tmp_path / "both/.ddplaunch/runs").iterdir())
    assert (record / "run.json").exists() and (record / "node-1/run.json").exists(), "one record of both nodes"


def test_two_nodes_train_together_and_a_restart_brings_the_job_back(tmp_path: Path) -> None:
    """Neither node resolves its own name."""
    with nodes(2, tmp_path, "missing") as pair:
        ranks = train(pair, tmp_path, pair[0].address, "--max-restarts", "1", FAIL_ONCE="1")
    trained_together(ranks)
    assert (tmp_path / "out" / "failed").exists()
    # torchrun counts a restart where a rank failed, and where others noticed before it told them
    assert 1 in {each["attempt"] for each in ranks} <= {0, 1}
    assert len({each["host"] for each in ranks}) == 2
    assert [each["LOCAL_RANK"] for each in ranks] == ["0", "1", "0", "1"]
    runs = [list((tmp_path / node.name / ".ddplaunch" / "runs").glob("*/**/run.json")) for node in pair]
    assert len({path.parts[path.parts.index("runs") + 1] for paths in runs for path in paths}) == 1, "one run id"
    assert [len(paths) for paths in runs] == [1, 1]


def test_interface_is_the_one_on_the_route(pair: Pair, tmp_path: Path) -> None:
    for number, node in enumerate(pair):
        value, source, reason = interface(decided(node, tmp_path, *words(number, pair[0].address)))
        assert (value, source) == (INTERFACE, "detected")
        assert pair[0].address in reason


def test_interface_by_flag_and_by_environment_wins(pair: Pair, tmp_path: Path) -> None:
    by_flag = decided(pair[1], tmp_path, *words(1, pair[0].address, "--socket-ifname", DECOY))
    assert interface(by_flag)[:2] == (DECOY, "flag")
    argv = ["env", f"GLOO_SOCKET_IFNAME={DECOY}", *words(1, pair[0].address)]
    assert interface(decided(pair[1], tmp_path, *argv))[:2] == (DECOY, "environment")


def test_nodes_agree_on_everything_but_the_node_rank(pair: Pair, tmp_path: Path) -> None:
    first, second = (decided(node, tmp_path, *words(k, pair[0].address))["argv"] for k, node in enumerate(pair))
    assert [one for one, other in zip(first, second, strict=True) if one != other] == ["--node-rank=0"]


@contextmanager
def listening(node: Node, folder: Path, port: int) -> Iterator[None]:
    """Hold ``port`` on ``node``; what holds it ends with the node at the latest."""
    with node.start([sys.executable, "-c", LISTEN, str(port)], folder, clean_environment()) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "listening\n"
            yield
        finally:
            holder.kill()


def test_taken_master_port_is_refused_on_node_zero(pair: Pair, tmp_path: Path) -> None:
    with listening(pair[0], tmp_path, 29622):
        (tmp_path / "train.py").write_text("from pathlib import Path\nPath('launched').touch()\n")
        argv = [*words(0, pair[0].address, "--master-port", "29622"), "--", "train.py"]
        done = pair[0].run(argv, tmp_path, clean_environment())
    assert done.returncode == 4, done.stderr
    assert "error[port-taken]: port 29622 is in use by pid " in done.stderr
    assert "LISTENS_HERE" in done.stderr
    assert "nothing was launched" in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "launched").exists()
    assert not (tmp_path / ".ddplaunch").exists()


def test_port_of_node_zero_is_not_looked_for_on_others(pair: Pair, tmp_path: Path) -> None:
    with listening(pair[1], tmp_path, 29623):
        plan = decided(pair[1], tmp_path, *words(1, pair[0].address, "--master-port", "29623"))
    assert plan["findings"] == []


def test_address_that_no_route_leads_to_is_refused(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = pair[1].run([*words(1, "198.51.100.7"), "--", "train.py"], tmp_path, clean_environment())
    assert done.returncode == 4, done.stderr
    assert "error[master-addr-unroutable]" in done.stderr and "198.51.100.7" in done.stderr


#: The comment in its command line is what the refusal has to show.
LISTEN = (
    "import socket, sys, time  # LISTENS_HERE\nserver = socket.create_server(('0.0.0.0', "
    "int(sys.argv[1])))\nprint('listening', flush=True)\ntime.sleep(600)\n"
)
