"""What nodes may say, what of it is judged how, and how the wait looks: decisions on values."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.cli.hosts.meet_nodes import TIMEOUT_S, _heeded, _no_port, _slurm_hosts, wanted
from ddplaunch.cli.prepare import Prepared
from ddplaunch.hosts.roll_call import messages as words
from ddplaunch.hosts.roll_call.messages import Greeting, Hello, Secret, Status, Verdict
from ddplaunch.hosts.roll_call.rules import (
    all_together,
    at_the_door,
    is_stranger,
    name_digest,
    nodes_missing,
    told,
    told_sources,
)
from ddplaunch.machine.facts import PortFact, PythonFacts, TorchFacts
from ddplaunch.planning.launch import Launch
from ddplaunch.planning.options import Options
from ddplaunch.ui.launch_view import RollCallLine, joined_text
from ddplaunch.values import codec
from ddplaunch.values.finding import Finding, RefusedError, Severity, error
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.healthy import (
    PYTHON,
    healthy_facts,
    healthy_gpu,
    healthy_launch,
    healthy_nvml,
    healthy_torch,
    topology,
    with_gpu,
)
from tests.hosts.roll_calls import WORDS, hello

FLAG, UNREAD = Source("flag", "--x"), Unavailable("not read")
UNKNOWN = {name: Unavailable("not asked") for name in ("torch", "nvml", "python")}


def test_lines_come_back_as_they_were() -> None:
    verdict = Verdict(False, (error("a", "b", why="c", fix="d", where=("e", "f")),), None)
    message: Any
    for message in (hello(2, host="gpu-ü", script=None, nonce="mine"), verdict, Greeting(words.PROTOCOL, "n", "given")):
        line = words.line_with(message)
        assert words.read_message(line, type(message)) == message
        assert words.unsealed(words.sealed(line, SECRET, "hello", "n"), SECRET, "hello", "n") == line.rstrip(b"\n")


SECRET = Secret("given", b"k" * 32)


@pytest.mark.parametrize(
    "line",
    [
        words.line_with(hello(1)),
        words.sealed(words.line_with(hello(1)), Secret("given", b"x" * 32), "hello", "n"),
        words.sealed(words.line_with(hello(1)), SECRET, "hello", "of another connection"),
        words.sealed(words.line_with(hello(1)), SECRET, "verdict", "n"),
        words.sealed(words.line_with(hello(1)), SECRET, "hello", "n").replace(b'"node_rank":1', b'"node_rank":2'),
        words.line_with(hello(1)).rstrip(b"\n") + b"\t\n",
        b"\t",
        b"",
    ],
)
def test_what_proves_nothing_is_not_read(line: bytes) -> None:
    assert words.unsealed(line, SECRET, "hello", "n") is None


_WRONG: dict[str, list[Any]] = {"node_rank": [True, -1], "pid": [1e9], "clock_s": [float("nan"), -1.0]}
_WRONG |= {"launch": [{"a": 1}, None, {"NPROC": "x" * 9999}], "started_s": [1e300]}
_WRONG |= {"host": [3], "script": [1], "ddplaunch": ["x" * 9999], "arguments": ["x" * 9999]}


def test_hellos_and_verdicts_that_are_none() -> None:
    node = json.loads(words.line_with(hello(1)))["Hello"]
    assert words.read_message(json.dumps({"Hello": node}).encode(), Hello) is not None
    for name, value in ((name, value) for name, values in _WRONG.items() for value in values):
        assert words.read_message(json.dumps({"Hello": {**node, name: value}}).encode(), Hello) is None, (name, value)
    for identity in ("a\0b", "a\x1b]0;t\x07", "a\nb", "x" * 9999, 7, ["a"]):  # what torchrun could not be given
        line = json.dumps({"Verdict": {"go": True, "rendezvous_id": identity}}).encode()
        assert words.read_message(line, Verdict) is None, identity
    for line in (b"", b"\xff\xfe", b"[1]", b"1", b'{"Verdict":1}', b'{"Hello":[]}', b"[" * 50000):
        read = (words.read_message(line, Greeting), words.read_message(line, Hello), words.read_message(line, Verdict))
        assert read == (None, None, None), line[:20]


def test_no_secret_travels() -> None:
    facts = healthy_facts(environment={"API_KEY": "sesame"})
    text = codec.to_json(told(replace(facts, torch=TorchFacts("2.4", "/home/sesame", None, None, frozenset()))))
    assert "sesame" not in text and "2.4" in text and len(text) < words.LONGEST_LINE / 8
    assert "GPU-" not in text and PYTHON not in text
    assert told(healthy_facts(**UNKNOWN)) == UNKNOWN
    code = (
        ("train.py", "1"),
        ("/abs.py", "2"),
        ("../beside.py", "3"),
        *((f"{number}.py", "4") for number in range(300)),
    )
    assert len(told_sources(code)) == 256 and told_sources(code[:3]) == {name_digest("train.py"): "1"}


@pytest.mark.parametrize(
    "change",
    [{"launch": {**WORDS, "--more": "1"}}, {"launch": {key: WORDS[key] for key in list(WORDS)[1:]}}, {"node_rank": 3}],
)
def test_who_says_what_no_node_of_the_launch_would_is_a_stranger(change: dict[str, Any]) -> None:
    assert is_stranger(hello(0), replace(hello(1), **change), 3)


@pytest.mark.parametrize(
    ("rank", "change", "expected"),
    [
        (2, {}, None),
        (2, {"launch": {**WORDS, "--run-id": "x"}}, None),  # node 0 was given none
        *((2, {"launch": {**WORDS, flag: ""}}, "launches-differ") for flag in WORDS if flag != "--run-id"),
        (2, {"protocol": 9, "launch": {}}, "hosts-differ-ddplaunch"),
        (0, {"started_s": 9e9, "pid": 7}, "node-rank-twice"),
        (3, {"launch": {**WORDS, "--nnodes": "4"}}, "launches-differ"),  # a node of a larger launch is named
    ],
)
def test_at_the_door(rank: int, change: dict[str, Any], expected: str | None) -> None:
    node = hello(rank, **change)
    assert not is_stranger(hello(0), node, 3)
    found = at_the_door({0: hello(0), 1: hello(1)}, node)
    assert (found and found.code) == expected


def test_a_run_id_is_compared_where_both_nodes_have_one() -> None:
    first, other, unnamed = (hello(0, launch={**WORDS, "--run-id": run_id}) for run_id in ("a", "b", ""))
    for new in (first, unnamed):
        assert at_the_door({0: first}, replace(new, node_rank=2)) is None
    found = at_the_door({0: first}, replace(other, node_rank=2))
    assert found and found.code == "launches-differ"


def together(*, clock_s: float = 0.1, ignore: tuple[str, ...] = (), **changes: Any) -> tuple[Finding, ...]:
    nodes: dict[int, Hello] = {rank: hello(rank, sources=SOURCES) for rank in range(3)}
    nodes[2] = replace(nodes[2], **changes)
    return all_together(nodes, {2: (clock_s, 0.01)}, "train.py", ignore, ("net.py",))


def facts_with(**changes: Any) -> str:
    return codec.to_json(told(healthy_facts(**changes)))


SOURCES = {name_digest("net.py"): "0123"}
TWO_GPUS = healthy_nvml(healthy_gpu(0), healthy_gpu(1))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"facts": "{", "ddplaunch": "9"},  # not understood is not compared
        {"facts": "[" * 60_000},
        {"host": "gpu-1", "machine": "machine 1"},  # two nodes on one host
        {"facts": facts_with(nvml=TWO_GPUS)},  # started by hand they need not use all GPUs
        {"script": "b", "ignore": ("hosts-differ-script",)},
    ],
)
def test_nodes_that_fit_together(changes: dict[str, Any]) -> None:
    assert together(**changes) == ()


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"sources": {name_digest("net.py"): "4567"}}, "hosts-differ-sources", "`net.py` on gpu-2"),
        ({"sources": {}}, "hosts-differ-sources", "`net.py` (missing) on gpu-2"),
        ({"facts": facts_with(python=PythonFacts(PYTHON, "3.9.1"))}, "hosts-differ-python", "3.9 on gpu-2"),
        ({"facts": facts_with(torch=healthy_torch(version="2.1.0"))}, "hosts-differ-torch", "2.1.0 on gpu-2"),
        ({"facts": facts_with(torch=healthy_torch(cuda="11.8"))}, "hosts-differ-cuda", "CUDA 11.8 on gpu-2"),
        ({"facts": facts_with(torch=healthy_torch(nccl_version="2.0.1"))}, "hosts-differ-nccl", "2.0.1 on gpu-2"),
        ({"facts": facts_with(nvml=healthy_nvml(driver_version="535.1"))}, "hosts-differ-driver", "535.1 on gpu-2"),
        ({"facts": facts_with(nvml=with_gpu(7, name="L4"))}, "hosts-differ-gpu-model", "L4"),
        ({"arguments": "others"}, "script-arguments-differ", "node 2 (gpu-2) are not those on node 0 (gpu-0)"),
        ({"script": "b", "host": "gpu-1"}, "hosts-differ-script", "node 2 (gpu-1)"),
    ],
)
def test_nodes_that_differ(changes: dict[str, Any], code: str, says: str) -> None:
    (finding,) = together(**changes)
    assert finding.code == code and says in finding.what
    of_versions = finding.severity is Severity.ERROR and code not in ("hosts-differ-script", "hosts-differ-sources")
    assert finding.fix.startswith("install the same version on all nodes; ") is of_versions
    by_hand = finding.fix.endswith(f"`--ignore {code}` on node 0 launches all the same")
    assert by_hand is (finding.severity is Severity.ERROR)


def test_the_arguments_that_count_are_those_of_node_0() -> None:
    (finding,) = all_together({rank: hello(rank, arguments=str(rank > 0)) for rank in range(3)}, {}, None, ())
    assert "on node 1 (gpu-1), node 2 (gpu-2) are not those on node 0" in finding.what


def test_who_was_turned_away_is_counted() -> None:
    for callers, said in ((1, "1 caller did not prove"), (2, "2 callers did not prove")):
        why = nodes_missing(3, ("node 2",), 60.0, "10.0.0.1:29500", callers).why
        assert why.startswith(said) and f"{'was' if callers == 1 else 'were'} turned away" in why


def launch(several: bool = True, **options: Any) -> Launch:
    made = healthy_launch(2, topology=topology(2, nnodes=2 if several else 1))
    shape = made.topology
    if several:
        address, port = Resolved("10.0.0.1", FLAG), Resolved(29500, FLAG)
        shape = replace(shape, node_rank=Resolved(1, FLAG), master_addr=address, master_port=port)
    return replace(made, topology=shape, options=Options(**options))


def test_when_a_roll_is_called() -> None:
    assert wanted(launch(), None) == TIMEOUT_S
    assert wanted(launch(), 120.0) == 120
    assert wanted(launch(), 0.0) is None
    assert wanted(launch(several=False), 30.0) is None
    assert wanted(healthy_launch(2, topology=topology(2, nnodes=2)), None) is None, "nobody knows where"
    elastic = launch()
    assert wanted(replace(elastic, topology=replace(elastic.topology, min_nodes=1)), None) is None
    assert wanted(launch(torchrun_arg=(Resolved("--rdzv-conf=is_host=1", FLAG),)), None) is None
    assert wanted(launch(torchrun_arg=(Resolved("--rdzv-conf=timeout=8", FLAG),)), None) == TIMEOUT_S


@pytest.mark.parametrize("port", [1024, 29500, 29511, 65535])
def test_node_0_names_another_port_where_its_own_is_taken(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = PortFact(port, free=False)
    monkeypatch.setattr("ddplaunch.cli.hosts.meet_nodes.probe_port", lambda _: taken)
    (typed,) = re.findall(r"`--master-port (\d+)`", str(_no_port(launch(), port, OSError()).fix))
    assert 1024 <= int(typed) < 65536 and int(typed) != port


def test_what_node_0_says_is_heeded() -> None:
    script = ("--", "train.py", "--rdzv-id=mine")  # whose argument is its own

    def heeded(verdict: Verdict, silent: bool = False, **options: Any) -> Launch:
        one = replace(launch(**options), argv=("python", "--rdzv-id=old", *script))
        return _heeded(
            Prepared(one, healthy_facts(), (), Path(), UNREAD, lambda name: replace(one, run_id=name)), verdict, silent
        )

    agreed = Verdict(True, rendezvous_id="fresh", run_id="theirs")
    assert (heeded(agreed).run_id, heeded(agreed).argv) == ("theirs", ("python", "--rdzv-id=fresh", *script))
    assert (
        heeded(agreed, run_id=Resolved("mine", FLAG)).run_id == heeded(Verdict(True)).run_id == healthy_launch().run_id
    )
    refused = Verdict(False, (error("nodes-missing", "node 1", why="w", fix="f"),))
    for silent, verdict in ((False, refused), (True, replace(refused, heard=False))):
        with pytest.raises(RefusedError, match="node 1"):
            heeded(verdict, silent)
    with pytest.raises(SystemExit, match="4"):
        heeded(refused, silent=True)  # node 0 says it


def test_slurm_names_the_nodes_of_one_task_each() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "gpu[1-2]"}
    assert _slurm_hosts(step, 2) == {0: "gpu1", 1: "gpu2"}
    for other in ({"SLURM_STEP_NUM_TASKS": "4"}, {"SLURM_STEP_NODELIST": "gpu1"}, {"SLURM_STEP_NODELIST": ""}):
        assert _slurm_hosts(step | other, 2) == {}


def test_few_lines_and_no_control_characters() -> None:
    stream, now = io.StringIO(), [0.0]
    progress = RollCallLine(stream, lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        missing = ("node 1 (\x1b[2J)", "node 2") if second < 5 else ("node 2",)
        progress.show(Status(3, missing, now[0], joined=3 - len(missing)))
    progress.show(Status(3, (), 25, joined=3))
    assert stream.getvalue().splitlines() == [
        "1 of 3 nodes joined, waiting for node 1 (\\x1b[2J), node 2",
        "2 of 3 nodes joined, waiting for node 2",
        "3 of 3 nodes joined",
    ]
    assert joined_text(Status(4, ("node 0",), 3, "no answer")) == "waiting for node 0; no answer"
    progress = RollCallLine(silent := io.StringIO())
    progress.show(Status(2, ("node 1",), 0.01, joined=1))
    progress.show(Status(2, (), 0.02, joined=2))
    assert silent.getvalue() == "", "all came at once"
