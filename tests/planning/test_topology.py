"""Nodes, processes and the rendezvous, from what a user says to torchrun's arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddplaunch.planning.flag import NodeRange
from ddplaunch.planning.launch import Target, Topology
from ddplaunch.planning.options import Options, parse_options
from ddplaunch.planning.ranks.topology import endpoint, resolve_topology
from ddplaunch.planning.torchrun import extra_arguments, shared_id, torchrun_argv
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of
from tests.planning.sample_launch import words_of

FLAG = Source("flag")
SCRIPT = Target("script", "train.py", ("--r=16", "--", "--help"))


def said(**values: Any) -> Options:
    """Return options as if typed: a list is a repeatable flag."""
    typed: dict[str, Any] = {}
    for name, value in values.items():
        repeated = isinstance(value, list)
        typed[name] = tuple(Resolved(item, FLAG) for item in value) if repeated else Resolved(value, FLAG)
    return parse_options(typed)


def topology(options: Options, environ: dict[str, str] | None = None, processes: int = 4) -> Topology:
    place = (options.nnodes, options.node_rank, options.master_addr, options.master_port)
    return resolve_topology(Resolved(processes, FLAG), *place, environ or {})


def argv(options: Options, *, local_address: str | None = None, target: Target | None = SCRIPT) -> list[str]:
    where = topology(options)
    return list(torchrun_argv(("python",), where, target, "run-1", local_address, value_of(options.max_restarts, 0)))


@pytest.mark.parametrize(
    ("text", "nodes", "processes"),
    [("4", None, 4), ("auto", None, "auto"), ("2x8", 2, 8), ("3xauto", 3, "auto"), ("gpu", None, "auto")],
)
def test_nproc_is_read_in_all_its_forms(text: str, nodes: int | None, processes: int | str) -> None:
    options = said(nproc=text)
    assert options.nproc == Resolved(processes, FLAG)
    assert options.nnodes == (None if nodes is None else Resolved(NodeRange(nodes, nodes), FLAG))
    assert nodes is None or said(nproc=text, nnodes=str(nodes)) == options, "they may agree"


def test_one_node_leaves_the_port_to_c10d_and_modules_and_executables_have_their_option() -> None:
    assert tuple(argv(said(nproc="4"))) == words_of(
        "python -m torch.distributed.run --nnodes=1 --nproc-per-node=4 --rdzv-backend=c10d "
        "--rdzv-endpoint=localhost:0 --rdzv-id=run-1 --rdzv-conf=is_host=1 --local-addr=localhost "
        "--max-restarts=0 -- train.py --r=16 -- --help"
    )
    assert argv(said(), target=Target("module", "pkg.train", ("-x",)))[-4:] == ["--module", "--", "pkg.train", "-x"]
    assert argv(said(), target=Target("executable", "/bin/true"))[-3:] == ["--no-python", "--", "/bin/true"]
    assert argv(said(node_rank=0), target=None)[-1] == "--max-restarts=0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nproc": "4", "master_port": 29501}, "--rdzv-backend=static --master-addr=localhost --master-port=29501"),
        ({"nproc": "4", "master_port": 29501, "max_restarts": 1}, "--rdzv-endpoint=localhost:29501"),
        # of fixed number they meet statically, so that the node rank counts
        (
            {"nnodes": "2", "node_rank": 1, "master_addr": "gpu-a", "master_port": 29511},
            "--rdzv-backend=static --rdzv-id=run-1 --node-rank=1 --master-addr=gpu-a --master-port=29511",
        ),
        # with restarts by c10d, with the host said outright
        (
            {"nnodes": "2", "node_rank": 1, "master_addr": "fd00::1", "max_restarts": 2},
            "--rdzv-endpoint=[fd00::1]:29500 --rdzv-conf=is_host=0 --local-addr=fd00::2 --max-restarts=2",
        ),
        ({"nnodes": "2:4", "node_rank": 0, "master_addr": "a"}, "--nnodes=2:4 --rdzv-backend=c10d"),
    ],
)
def test_how_nodes_meet(options: dict[str, Any], words: str) -> None:
    assert {*words.split()} <= {*argv(said(**options), local_address="fd00::2")}


@pytest.mark.parametrize("extra", [("--rdzv_conf=timeout=900",), ("--rdzv-conf", "timeout=900")])
def test_a_rendezvous_setting_of_the_users_keeps_ours(extra: tuple[str, ...]) -> None:
    words = torchrun_argv(("python",), topology(said()), SCRIPT, "r", extra=(*extra, "--tee=3"))
    assert [word for word in words if "rdzv" in word and "conf" in word] == ["--rdzv-conf=is_host=1,timeout=900"]
    assert "--tee=3" in words and "timeout=900" not in words


def test_every_node_derives_the_same_rendezvous_id_and_another_command_another_one() -> None:
    first = topology(said(nnodes="2", node_rank=0, master_addr="a"))
    second = topology(said(nnodes="2", node_rank=1, master_addr="a"))
    assert shared_id(first, SCRIPT) == shared_id(second, SCRIPT)
    others = (dataclasses.replace(SCRIPT, args=()), dataclasses.replace(SCRIPT, kind="module"))
    assert len({shared_id(first, each) for each in (SCRIPT, *others)}) == 3


TWO = {"nnodes": "2", "master_addr": "a"}


def test_ports_at_the_ends_of_their_range_and_what_guides_tell_people_to_export() -> None:
    for port, expected in ((65535, 65535), (0, 29500), (None, 29500)):
        options = said(**TWO, node_rank=0, **({} if port is None else {"master_port": port}))
        found = topology(options).master_port
        assert found is not None and found.value == expected
    assert topology(said(master_port=0)).master_port is None
    assert topology(said(), {"MASTER_PORT": "65535"}).master_port == Resolved(
        65535, Source("environment", "MASTER_PORT")
    )
    exported = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29502", "NODE_RANK": "1"}
    exported_to = topology(said(nnodes="2"), exported)
    assert exported_to.master_addr == Resolved("10.0.0.1", Source("environment", "MASTER_ADDR"))
    assert exported_to.master_port is not None and exported_to.master_port.value == 29502
    assert exported_to.node_rank is not None and exported_to.node_rank.value == 1
    for name, message in (("NODE_RANK", "node rank 70000 of 2 nodes"), ("MASTER_PORT", "port 70000 does not exist")):
        with pytest.raises(UsageError, match=message):
            topology(said(nnodes="2"), exported | {name: "70000"})


KNOWN = frozenset({"--monitor-interval", "--log-dir", "--tee"})


def test_any_torchrun_option_is_passed_on() -> None:
    options = said(torchrun_arg=["--monitor_interval 1", "--log-dir='a b'"])
    assert extra_arguments(options.torchrun_arg, KNOWN) == ("--monitor_interval", "1", "--log-dir=a b")
    assert extra_arguments(said(torchrun_arg=["--new"]).torchrun_arg, Unavailable("no torch")) == ("--new",)
    for words in ("--tee=3 train.py", "--tee 3 train.py"):
        with pytest.raises(UsageError, match=r"`--torchrun-arg train.py` is not an option of torchrun"):
            extra_arguments(said(torchrun_arg=[words]).torchrun_arg, KNOWN)


def test_ipv6_addresses_have_brackets_beside_a_port_only() -> None:
    for text, address, port in (
        ("[fd00::1]", "fd00::1", None),
        ("fd00::1", "fd00::1", None),
        ("gpu-a", "gpu-a", None),
        ("gpu-a:29501", "gpu-a", 29501),
        ("[fd00::1]:29501", "fd00::1", 29501),
        ("tcp://10.0.0.1:29501/", "10.0.0.1", 29501),
        ("tcp://gpu-a", "gpu-a", None),
    ):
        options = said(master_addr=text)
        assert (value_of(options.master_addr, ""), value_of(options.master_port, None)) == (address, port)
        of_shell = topology(said(nnodes="2", node_rank=1), {"MASTER_ADDR": text, "MASTER_PORT": "7"})
        assert (value_of(of_shell.master_addr, ""), value_of(of_shell.master_port, 0)) == (address, port or 7)
    assert said(master_addr="gpu-a:29501", master_port=5).master_port == Resolved(5, FLAG)
    assert [endpoint(each, 29500) for each in ("fd00::1", "gpu-a")] == ["[fd00::1]:29500", "gpu-a:29500"]
