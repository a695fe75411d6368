"""The same command by hand on each of several hosts, in network namespaces: they train, or are told why not."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.guarded import until
from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch, finish
from tests.hosts.namespaces import INTERFACE, Node, nodes

pytestmark = [pytest.mark.root, pytest.mark.slow]

Pair = tuple[Node, ...]

#: Sums over all ranks with gloo, then writes what this rank saw. Rank 1 leaves with status 7, once, after a collective
#: that all took part in. A file remembers it: torchrun counts restarts only where a rank failed, and may number
#: the nodes anew. It leaves by ``_exit``, since on a busy machine gloo's threads abort an interpreter now and then.
TRAIN = """
import datetime, json, os, socket
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.ones(4) * (rank + 1)
dist.all_reduce(total)
failed = Path(os.environ["OUT"], "failed")
if rank == 1 and not failed.exists():
    failed.touch()
    raise SystemExit(7)
names = ("LOCAL_RANK", "GLOO_SOCKET_IFNAME")
saw = {name: os.environ.get(name) for name in names}
saw |= {"host": socket.gethostname(), "sum": total[0].item(), "attempt": attempt}
Path(os.environ["OUT"], f"rank-{rank}.json").write_text(json.dumps(saw))
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""
SCRIPT = "import os, socket; print('launched rank', os.environ['RANK'], 'on', socket.gethostname(), flush=True)\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two nodes that resolve their own names."""
    with nodes(2, tmp_path_factory.mktemp("pair")) as made:
        yield made


def words(node_rank: int, address: str, *more: str) -> list[str]:
    """The command on one node, up to the script."""
    place = ["--nnodes", "2", "--node-rank", str(node_rank), "--master-addr", address]
    return ddplaunch("run", "2", *ANYWHERE, *place, *more)


def decided(node: Node, folder: Path, *argv: str) -> dict[str, Any]:
    """Return the plan of a launch on ``node``, as JSON."""
    (folder / "train.py").write_text(TRAIN)
    planning = ["plan" if word == "run" else word for word in argv]
    done = node.run([*planning, "--json", "--", "train.py"], folder, clean_environment())
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, dict) and "error" not in [finding["severity"] for finding in value["findings"]]
    return value


def test_two_nodes_train_together_and_a_restart_brings_the_job_back(tmp_path: Path) -> None:
    """Their own names mean 127.0.1.1 to themselves, as Debian writes it; they share a directory, and so one record."""
    home = tmp_path / "both"
    home.mkdir()
    (home / "train.py").write_text(TRAIN)
    more = ("--master-port", "29611", "--max-restarts", "1", "--", "train.py")
    with nodes(2, tmp_path, "loopback") as pair:
        argvs = [words(number, pair[0].name, *more) for number in (0, 1)]
        environment = clean_environment(OUT=str(tmp_path))
        finish([node.start(argv, home, environment) for node, argv in zip(pair, argvs, strict=True)], 0)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert {each["sum"] for each in ranks} == {10.0}
    assert {each["GLOO_SOCKET_IFNAME"] for each in ranks} == {INTERFACE}
    assert (tmp_path / "failed").exists()
    # torchrun counts a restart where a rank failed, and where others noticed before it told them
    assert 1 in {each["attempt"] for each in ranks} <= {0, 1}
    assert len({each["host"] for each in ranks}) == 2
    assert [each["LOCAL_RANK"] for each in ranks] == ["0", "1", "0", "1"]
    (record,) = (home / ".ddplaunch/runs").iterdir()
    assert (record / "run.json").exists() and (record / "node-1/run.json").exists(), "one record of both nodes"


def start(node: Node, rank: int, folder: Path, address: str, *more: str) -> subprocess.Popen[str]:
    """Start one of three nodes in a directory of its own."""
    home = folder / node.name
    home.mkdir(exist_ok=True)
    if not (home / "train.py").exists():
        (home / "train.py").write_text(SCRIPT)
    place = ["--nnodes", "3", "--node-rank", str(rank), "--master-addr", address, *more]
    argv = [*ddplaunch("run", "1", "--device", "cpu", "--ignore", "script-never-initialises"), *place]
    return node.start([*argv, "--show", "all", "--", "train.py"], home, clean_environment())


def test_three_nodes_are_told_who_is_missing_or_odd_and_node_zero_may_come_last_over_ipv6(tmp_path: Path) -> None:
    """No node resolves its own name."""
    with nodes(3, tmp_path, "missing") as made:
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
    runs = [path.parts[path.parts.index("runs") + 1] for path in tmp_path.rglob("run.json")]
    assert len(runs) == 3 and len(set(runs)) == 1, "one run id"


def test_interface_is_the_one_on_the_route_and_nodes_agree_on_all_but_their_rank(pair: Pair, tmp_path: Path) -> None:
    plans = [decided(node, tmp_path, *words(number, pair[0].address)) for number, node in enumerate(pair)]
    for plan in plans:
        (found,) = (each for each in plan["environment"] if each["name"] == "GLOO_SOCKET_IFNAME")
        assert (found["value"], found["source"]) == (INTERFACE, "detected") and pair[0].address in found["reason"]
        assert plan["findings"] == []
    differing = [one for one, other in zip(*(plan["argv"] for plan in plans), strict=True) if one != other]
    assert differing == ["--node-rank=0"]


def test_address_that_no_route_leads_to_is_refused(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = pair[1].run([*words(1, "198.51.100.7"), "--", "train.py"], tmp_path, clean_environment())
    assert done.returncode == 4, done.stderr
    assert "error[master-addr-unroutable]" in done.stderr and "198.51.100.7" in done.stderr


#: Says of how many ranks it is one, and is through when a test that has done its harm writes a file `finish`. Torchrun
#: regroups when a collective fails.
ELASTIC = """
import datetime, os, socket, time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
with open(f"began-{socket.gethostname()}", "a") as file:
    file.write(os.environ["WORLD_SIZE"] + "\\n")
finish = torch.zeros(1)
while not finish:
    time.sleep(0.05)
    finish.fill_(Path("finish").exists())
    dist.all_reduce(finish)
dist.barrier()
print("finished as one of", os.environ["WORLD_SIZE"], "ranks", flush=True)
os._exit(0)
"""


def test_elastic_nodes_by_hand_regroup_without_one_that_died(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ELASTIC)
    elastic = ("--nnodes", "2:3", "--max-restarts", "2", "--show", "all", "--run-id", "elastic")
    quick = "--torchrun-arg=--rdzv-conf=last_call_timeout=20,keep_alive_interval=2"
    running: list[subprocess.Popen[str]] = []

    def of_how_many(node: Node, ranks: str) -> bool:
        path = tmp_path / f"began-{node.name}"
        return path.exists() and path.read_text().split()[-1:] == [ranks]

    try:
        with nodes(3, tmp_path) as made:
            for number, node in enumerate(made):
                place = ("--node-rank", str(number), "--master-addr", made[0].address, "--run-dir", node.name)
                argv = ddplaunch(
                    "run", "1", "--device", "cpu", "--no-checks", *elastic, *place, quick, "--", "train.py"
                )
                running.append(node.start(argv, tmp_path, clean_environment()))
            until(lambda: all(of_how_many(node, "3") for node in made), "three ranks train", 300)
            made[2].run(["sh", "-c", "kill -9 -1"], Path("/"), clean_environment())
            until(lambda: all(of_how_many(node, "2") for node in made[:2]), "two ranks train", 300)
            (tmp_path / "finish").touch()
            said = finish(running[:2], 0)
    finally:  # the nodes are gone, and with them whoever else holds the pipes
        for each in running:
            each.kill()
            each.communicate()
    assert "".join(said).count("finished as one of 2 ranks\n") == 2
    assert all(re.search(r"done in \d attempts", text) for text in said)
