"""The same command by hand on each of several hosts, in network namespaces: they train, or are told why not."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.agent.guarded import until
from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch, finish
from tests.hosts.namespaces import INTERFACE, Node, nodes

pytestmark = [pytest.mark.root, pytest.mark.slow]

#: The first time rank 1 leaves with status 7, when both have begun. Files remember it: torchrun counts restarts only
#: where a rank failed, and may number the nodes anew. Then all sum with gloo and write what they saw. They leave by
#: ``_exit``, since on a busy machine gloo's threads abort an interpreter now and then.
TRAIN = """
import json, os, socket, time
from pathlib import Path
out, rank = Path(os.environ["OUT"]), os.environ["RANK"]
if not (out / f"tried-{rank}").exists():
    (out / f"tried-{rank}").touch()
    while rank == "0" or not (out / "tried-0").exists():
        time.sleep(0.05)
    raise SystemExit(7)
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(total)
saw = {"host": socket.gethostname(), "sum": total[0].item(), "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}
(out / f"rank-{rank}.json").write_text(json.dumps(saw | {"interface": os.environ["GLOO_SOCKET_IFNAME"]}))
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""
SCRIPT = "import os, socket; print('launched rank', os.environ['RANK'], 'on', socket.gethostname(), flush=True)\n"


def words(nnodes: str, node_rank: int, address: str, *more: str) -> list[str]:
    """The command on one node, which has one rank."""
    place = ["--nnodes", nnodes, "--node-rank", str(node_rank), "--master-addr", address]
    return ddplaunch("run", "1", *ANYWHERE, *place, *more, "--", "train.py")


def test_two_nodes_train_together_and_a_restart_brings_the_job_back(tmp_path: Path) -> None:
    """Their own names mean 127.0.1.1 to themselves, as Debian writes it; they share a directory, and so one record."""
    home = tmp_path / "both"
    home.mkdir()
    (home / "train.py").write_text(TRAIN)
    more = ("--master-port", "29611", "--max-restarts", "1")
    with nodes(2, tmp_path, "loopback") as pair:
        argvs = [words("2", number, pair[0].name, *more) for number in (0, 1)]
        environment = clean_environment(OUT=str(tmp_path))
        finish([node.start(argv, home, environment) for node, argv in zip(pair, argvs, strict=True)], 0)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert {each["sum"] for each in ranks} == {3.0}
    assert {each["interface"] for each in ranks} == {INTERFACE}
    # torchrun counts a restart where a rank failed, and where others noticed before it told them
    assert 1 in {each["attempt"] for each in ranks} <= {0, 1}
    assert len({each["host"] for each in ranks}) == 2
    (record,) = (home / ".ddplaunch/runs").iterdir()
    assert (record / "run.json").exists() and (record / "node-1/run.json").exists(), "one record of both nodes"


def test_nodes_that_differ_are_refused_and_node_zero_may_come_last_over_ipv6(tmp_path: Path) -> None:
    """No node resolves its own name. Each has a directory of its own."""
    quiet = ("--ignore", "script-never-initialises", "--show", "all")
    scripts = [tmp_path / f"alpha{rank}" / "train.py" for rank in (0, 1)]
    for script in scripts:
        script.parent.mkdir()
        script.write_text(SCRIPT)
    with nodes(2, tmp_path, "missing") as pair:

        def together(status: int, ranks: tuple[int, ...]) -> list[str]:
            typed = {rank: words("2", rank, pair[0].address6, *quiet) for rank in ranks}
            return finish(
                [pair[rank].start(typed[rank], scripts[rank].parent, clean_environment()) for rank in ranks], status
            )

        scripts[1].write_text(SCRIPT + "# changed\n")
        for text in together(4, (0, 1)):
            assert "error[hosts-differ-script]: `train.py` differs: " in text and "on alpha1" in text
            assert text.endswith("nothing was launched\n")
        done = pair[1].run(words("2", 1, "198.51.100.7"), scripts[1].parent, clean_environment())
        assert done.returncode == 4 and "error[master-addr-unroutable]" in done.stderr and "198.51.100.7" in done.stderr
        assert not list(tmp_path.glob("*/.ddplaunch"))
        scripts[1].write_text(SCRIPT)
        said = "".join(together(0, (1, 0)))
        assert all(f"launched rank {rank} on alpha{rank}" in said for rank in range(2)), said
    runs = [path.parts[path.parts.index("runs") + 1] for path in tmp_path.rglob("run.json")]
    assert len(runs) == 2 and len(set(runs)) == 1, "one run id"


#: Says of how many ranks it is one, and is through when a test that has done its harm writes a file `finish`. Before, a
#: rank of two fails when the other is lost, as one does in a collective: then torchrun regroups.
ELASTIC = """
import os, socket, time
from pathlib import Path
size = os.environ["WORLD_SIZE"]
with open(f"began-{socket.gethostname()}", "a") as file:
    file.write(size + "\\n")
while not Path("finish").exists():
    time.sleep(0.05)
    if size == "2" and Path("lost").exists():
        raise SystemExit("a rank was lost")
print("finished as one of", size, "ranks", flush=True)
"""


def test_an_elastic_node_by_hand_goes_on_without_one_that_died(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ELASTIC)
    elastic = ("--no-checks", "--max-restarts", "2", "--show", "all", "--run-id", "elastic")
    quick = "--torchrun-arg=--rdzv-conf=last_call_timeout=10,keep_alive_interval=2"
    running: list[subprocess.Popen[str]] = []

    def of_how_many(node: Node, ranks: str) -> bool:
        path = tmp_path / f"began-{node.name}"
        return path.exists() and path.read_text().split()[-1:] == [ranks]

    try:
        with nodes(2, tmp_path) as made:
            for number, node in enumerate(made):
                argv = words("1:2", number, made[0].address, "--run-dir", node.name, *elastic, quick)
                running.append(node.start(argv, tmp_path, clean_environment()))
            until(lambda: all(of_how_many(node, "2") for node in made), "two ranks train", 300)
            made[1].run(["sh", "-c", "kill -9 -1"], Path("/"), clean_environment())
            (tmp_path / "lost").touch()
            until(lambda: of_how_many(made[0], "1"), "one rank trains on", 300)
            (tmp_path / "finish").touch()
            (said,) = finish(running[:1], 0)
    finally:  # the nodes are gone, and with them whoever else holds the pipes
        for each in running:
            each.kill()
            each.communicate()
    assert "finished as one of 1 ranks\n" in said and re.search(r"done in \d attempts", said)
