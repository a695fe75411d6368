"""A whole launch decided from options, facts and script, without a machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddplaunch.machine.facts import Facts
from ddplaunch.planning.current import Current, current
from ddplaunch.planning.launch import Launch, Target
from ddplaunch.planning.options import Options
from ddplaunch.planning.resolve import Situation, resolve
from ddplaunch.planning.settings import Settings
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, ScriptReport
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.healthy import healthy_facts, healthy_torch
from tests.planning.test_topology import said

TRAIN = Target("script", "train.py", ("--epochs", "3"))
SCRIPT = ScriptReport(
    "train.py",
    (
        DeclaredOption(("--batch-size",), DeclaredAt("train.py", 5), default="64", meaning="batch_size"),
        DeclaredOption(("--lr",), DeclaredAt("train.py", 6), meaning="lr"),
    ),
    code=(("train.py", "0123"),),
)
NO_GPU = Unavailable("`libnvidia-ml.so.1` is not installed")


SITUATION = Situation(
    facts=healthy_facts(),
    script=SCRIPT,
    environ={},
    pairs=(),
    selection=None,
    python=("python", "-P"),
    run_id="run-1",
    record="/runs/run-1",
)


def decide(options: Options, facts: Facts | None = None, **changes: Any) -> Launch:
    return resolve(options, TRAIN, replace(SITUATION, facts=facts or healthy_facts(), **changes))


def variables(launch: Launch) -> dict[str, str]:
    return {each.name: each.value for each in launch.environment if each.value is not None}


HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
ROCM = {"torch": healthy_torch(cuda=None, hip="6.2")}


@pytest.mark.parametrize(
    ("typed", "facts", "environ", "device", "nproc"),
    [
        ({"nproc": "auto"}, {}, {}, "cuda", 8),
        ({}, {}, {"CUDA_VISIBLE_DEVICES": "1,3"}, "cuda", 2),
        ({"nproc": "auto"}, {}, HIDDEN, "cpu", 1),
        ({}, {"nvml": NO_GPU}, {}, "cpu", 1),
        ({"nproc": "2"}, {"torch": healthy_torch(cuda=None)}, {}, "cpu", 2),
        ({"nproc": "2"}, {"torch": Unavailable("torch is not installed")}, {}, "cpu", 2),
        ({"nproc": "2"}, ROCM, {}, "cuda", 2),
        ({"nproc": "2"}, {**ROCM, "nvml": NO_GPU}, {}, "cuda", 2),  # in WSL2 nothing reports AMD's GPUs
        ({"nproc": "2"}, ROCM, HIDDEN, "cpu", 2),
        ({"nproc": "2", "device": "cuda"}, {"nvml": NO_GPU}, {}, "cuda", 2),
    ],
)
def test_device_and_processes_follow_torch_and_what_is_visible(
    typed: dict[str, str], facts: dict[str, Any], environ: dict[str, str], device: str, nproc: int
) -> None:
    launch = decide(said(**typed), healthy_facts(**facts), environ=environ)
    assert (launch.device.value, launch.topology.nproc_per_node.value) == (device, nproc)
    pairs = tuple((name, value, Source("flag", "--env")) for name, value in environ.items())
    by_env = decide(said(**typed), healthy_facts(**facts), pairs=pairs)
    assert (by_env.device, by_env.topology) == (launch.device, launch.topology)


@pytest.mark.parametrize(
    ("typed", "facts", "environ", "code"),
    [
        ({"device": "cuda"}, {"nvml": NO_GPU}, {}, "no-gpu-to-count"),
        ({"device": "cuda"}, {}, HIDDEN, "no-gpu-to-count"),
        ({"memory": "8G"}, {}, {}, "usage"),
        ({"nproc": "2", "show": "2"}, {}, {}, "usage"),
        ({"on_hang": "stop"}, {}, {}, "usage"),
        ({}, {}, {"MASTER_PORT": "65536"}, "usage"),
    ],
)
def test_what_contradicts_itself_is_refused(
    typed: dict[str, str], facts: dict[str, Any], environ: dict[str, str], code: str
) -> None:
    with pytest.raises(UsageError) as caught:
        decide(said(**typed), healthy_facts(**facts), environ=environ)
    assert caught.value.findings[0].code == code


@pytest.mark.parametrize(("nodes", "told"), [("2", "gpu-a 29500"), ("1:2", ""), ("1", "")])
def test_nodes_learn_of_each_others_end_unless_the_launch_goes_on(nodes: str, told: str) -> None:
    options = said(nnodes=nodes, nproc="2", **({} if nodes == "1" else {"node_rank": 0, "master_addr": "gpu-a"}))
    settings = variables(decide(options, plugin="here"))["DDPLAUNCH_AGENT"]
    assert Settings.from_json(settings).others == told


def test_numbers_reach_arguments_environment_and_current_alike() -> None:
    launch = decide(said(nproc="4", batch_size=16, base_lr=1e-4, dataset_size=6400))
    assert launch.argv[-7:] == ("train.py", "--batch-size", "16", "--lr", "0.0004", "--epochs", "3")
    assert "--rdzv-id=run-1" in launch.argv and launch.numbers.world_size == Resolved(4, Source("flag"))
    environment = variables(launch)
    assert environment["DDPLAUNCH_LR"] == "0.0004"
    assert environment["DDPLAUNCH_GLOBAL_BATCH_SIZE"] == "64"
    ours = {"run_id": "run-1", "batch_size": 16, "accum": 1, "global_batch_size": 64, "world_size": 4, "nproc": 4}
    more = {"nnodes": 1, "lr": 4e-4, "lr_factor": 4.0, "steps_per_epoch": 100, "dataset_size": 6400}
    half = decide(said(nproc="2", batch_size=12, base_lr=1e-4, base_batch_size=16))
    assert current(variables(half)).lr_factor == 1.5
    assert current(environment) == Current(**ours, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "script", "batch"),
    [({"nproc": "4"}, SCRIPT, 256), ({"nproc": "2", "batch_size": 4}, Unavailable("no script was named"), 8)],
)
def test_a_batch_of_the_script_is_not_passed_again(
    options: dict[str, Any], script: ScriptReport | Unavailable, batch: int
) -> None:
    launch = decide(said(**options), script=script)
    assert launch.numbers.global_batch_size is not None and launch.numbers.global_batch_size.value == batch
    assert launch.passed == ()


def test_several_nodes_share_an_id_that_one_node_does_not_invent() -> None:
    options = said(nnodes="2", node_rank=0, master_addr="gpu-a", nproc="2")
    first, second = decide(options, run_id="a"), decide(options, run_id="b")
    identity = [word for word in first.argv if word.startswith("--rdzv-id=")]
    assert identity and identity == [word for word in second.argv if word.startswith("--rdzv-id=")]
    assert first.numbers.world_size == Resolved(4, Source("computed", "2 nodes × 2"))
    given = decide(replace(options, run_id=Resolved("mine", Source("flag"))))
    assert "--rdzv-id=mine" in given.argv


def test_outside_of_a_launch_current_is_a_single_process() -> None:
    assert current({}) == Current()
    assert current({}).asdict() == {"world_size": 1, "nproc": 1, "nnodes": 1}
    for broken in ("[]", "x"):  # no silent default
        with pytest.raises(ValueError):
            current({"DDPLAUNCH_PLAN": broken})
