from __future__ import annotations

import dataclasses

import pytest

from ddplaunch.planning.launch import Launch, Missing, Passed, Placement, Target, Variable
from ddplaunch.script.script_report import DeclaredAt
from ddplaunch.ui.launch_view import device_text, launch_panel, number_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.resolved import Resolved, Source
from tests.conftest import Golden
from tests.planning.sample_launch import FILES, cpu_only, facts, launch, two_nodes

RECORD = ".ddplaunch/runs/20261121-143012-x7k2q9"


def test_at_80_columns(golden: Golden) -> None:
    text = launch_panel(launch(), (), Terminal(80), facts=facts(), record=RECORD)
    assert len(text.splitlines()) <= 10
    golden("panel-80", text)


def test_at_40_columns_with_a_finding(golden: Golden) -> None:
    text = launch_panel(launch(), (FILES,), Terminal(40), facts=facts(), record="none: Read-only file system")
    assert max(map(len, text.splitlines())) <= 40
    golden("panel-40", text)


def test_at_120_columns_in_colour(golden: Golden) -> None:
    golden("panel-120-colour", launch_panel(launch(), (FILES,), Terminal(120, True), facts=facts(), record=RECORD))


def test_what_the_user_said_and_what_does_not_arrive(golden: Golden) -> None:
    """A launch whose learning rate does not arrive, with a batch that the user explained."""
    shown = launch(
        passed=(
            Passed("total_batch_size", "32", ("--batch-size", "32"), DeclaredAt("train.py", 8), "of all processes"),
        ),
        missing=(Missing("lr", "0.0004", "no option for it was found"),),
        doubts=(("lr", "not passed, train.py decides"), ("accum", "train.py:12 decides the accumulation")),
    )
    golden("panel-said-80", launch_panel(shown, (), Terminal(80), facts=facts(), record=RECORD))


@pytest.mark.parametrize(
    ("families", "shown"),
    [
        ((), "batch 32 = 8 per GPU × 1 accumulation × 4 GPUs lr 0.0004 ="),
        (("batch_size",), "batch 8? per GPU × 1 accumulation × 4 GPUs: not passed lr 0.0004 ="),
        (("batch_size", "accum"), "batch 8? per GPU × 1? accumulation × 4 GPUs: not passed lr 0.0004 ="),
        (("lr",), "lr 0.0004? = 0.0001 × 4 (linear: batch 32 / 8): not passed steps"),
        (("warmup_steps",), "steps 1875 steps per epoch, 2000? warmup steps: not passed pass"),
    ],
)
def test_no_number_is_claimed_that_may_not_train(families: tuple[str, ...], shown: str) -> None:
    doubts = tuple((family, "not passed") for family in families)
    assert shown in " ".join(launch_panel(launch(doubts=doubts), (), Terminal(80)).split())
    assert all(len(line) <= 80 for line in launch_panel(launch(doubts=doubts), (), Terminal(80)).splitlines())


def test_what_the_script_makes_the_rate_of_stands_beside_it() -> None:
    own = Passed("lr", "0.0008", ("--lr", "0.0008"), DeclaredAt("train.py", 31), "train.py:40 multiplies it by 0.5")
    text = " ".join(launch_panel(launch(passed=(own,)), (), Terminal(80)).split())
    assert "(linear: batch 32 / 8); the script gets 0.0008, train.py:40 multiplies it by 0.5 steps" in text
    assert "pass --lr 0.0008 (train.py:31)" in text
    based = Resolved(512, Source("script", "train.py:40 scales from it"))
    numbers = dataclasses.replace(launch().numbers, base_batch_size=based)
    assert "(linear: batch 32 / 512, train.py:40 scales from it)" in launch_panel(
        launch(numbers=numbers), (), Terminal(200)
    )


def test_a_learning_rate_of_the_script_is_said_to_be_its_own() -> None:
    own = Resolved(0.0001, Source("script", "default at train.py:31"))
    scaled = dataclasses.replace(launch().numbers, base_lr=own)
    text = launch_panel(launch(numbers=scaled), (), Terminal(200))
    assert "lr     0.0004 = 0.0001 × 4 (linear: batch 32 / 8)\n" in text
    final = dataclasses.replace(launch().numbers, base_lr=None, lr=own)
    text = launch_panel(launch(numbers=final, receives=("lr",)), (), Terminal(200))
    assert "lr     0.0001 (train.py:31), not scaled: `--base-lr 0.0001` makes it 0.0004\n" in text
    assert "(train.py:31), not scaled\n" in launch_panel(launch(numbers=final, receives=()), (), Terminal(200))
    for detail, shown in (
        ("`--lr` after `--`", "(`--lr` after `--`), not scaled"),
        ("x, × 4 at t.py:9", "(x, × 4 at t.py:9)"),
    ):
        numbers = dataclasses.replace(final, lr=Resolved(0.0001, Source("script", detail)))
        assert f"lr     0.0001 {shown}\n" in launch_panel(launch(numbers=numbers, receives=("lr",)), (), Terminal(200))
    alone = dataclasses.replace(final, world_size=Resolved(1, Source("flag")))
    assert "  lr  " not in launch_panel(launch(numbers=alone), (), Terminal(200)), "one rank changes nothing"
    assert "  lr  " not in launch_panel(launch(numbers=final, doubts=(("lr", "?"),)), (), Terminal(200))
    same = dataclasses.replace(scaled, lr_factor=Resolved(1.0, Source("computed")), lr=own)
    assert "  lr  " not in launch_panel(launch(numbers=same), (), Terminal(200))


def test_the_environment_names_what_was_asked_for_or_measured() -> None:
    text = launch_panel(launch(), (), Terminal(200))
    assert "  env    OMP_NUM_THREADS=4, NCCL_IB_DISABLE=1, WANDB_API_KEY=***, PET_NNODES removed\n" in text
    many = tuple(Variable(f"A{number}", "x" * 99, Source("flag", "--env"), "yours") for number in range(9))
    text = launch_panel(launch(environment=many), (), Terminal(800))
    assert f"A0={'x' * 39}…, " in text and "A5=" in text and "and 3 more" in text


def test_two_nodes_name_this_one_and_where_rank_0_is() -> None:
    text = launch_panel(two_nodes(), (), Terminal(200))
    assert "train.py on 16 processes, 2 nodes of 8, this is node 0, rank 0 at node-1:29500, GPUs 0-7\n" in text
    assert "128 = 8 per GPU × 1 accumulation × 16 GPUs" in text


def test_what_was_not_asked_for_is_not_there() -> None:
    text = launch_panel(cpu_only(), (), Terminal(80))
    assert "train.py on 2 processes, this machine, CPU\n" in text
    assert [label for label in ("batch", "  lr", "steps", "pass", "record") if label in text] == []


def test_where_ranks_run_is_a_line_if_it_was_decided() -> None:
    text = "ranks 0-3 on NUMA node 0, ranks 4-7 on NUMA node 1, as their GPUs"
    shown = launch_panel(launch(placement=Placement(("0-3",) * 8, text=text, shown=True)), (), Terminal(80))
    (line,) = [line for line in shown.splitlines() if line.startswith("  cpus ")]
    assert line == f"  cpus   {text}" and len(line) <= 80
    assert "cpus" not in launch_panel(launch(placement=Placement(text="not bound: one core")), (), Terminal(80))


def test_one_process_is_one_process() -> None:
    topology = dataclasses.replace(
        launch().topology, nproc_per_node=dataclasses.replace(launch().topology.nproc_per_node, value=1)
    )
    assert "on 1 process, this machine, GPU 3\n" in launch_panel(
        launch(topology=topology, gpus=("3",)), (), Terminal(80)
    )


def test_what_cuda_visible_devices_hides_is_not_counted() -> None:
    ten = dataclasses.replace(facts(), environment={"CUDA_VISIBLE_DEVICES": "1,2"})
    assert device_text(launch(gpus=None, environment=()), ten).startswith("every visible GPU (2 × ")


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        (("0", "1", "3"), "GPUs 0-1,3"),
        (("3", "1", "2"), "GPUs 3,1-2"),
        (None, "every visible GPU"),
        (("GPU-00000001", "7"), "GPUs GPU-00000001, 7"),
    ],
)
def test_gpus_in_the_order_of_local_ranks(gpus: tuple[str, ...] | None, text: str) -> None:
    assert device_text(launch(gpus=gpus)) == text


def test_models_are_named_where_nvml_knows_them() -> None:
    one = Variable("CUDA_VISIBLE_DEVICES", "GPU-00000001", Source("flag", "--gpus"), "the GPUs of this launch")
    text = device_text(launch(gpus=("GPU-00000001",), environment=(one,)), facts())
    assert text == "GPU GPU-00000001 (1 × NVIDIA H100 80GB HBM3)"
    assert device_text(launch(gpus=("9",)), None) == "GPU 9"


@pytest.mark.parametrize("name", ["bad\x1b[2Jname.py", "new\nline.py", "\udcff.py"])
def test_a_script_of_any_name(name: str) -> None:
    text = launch_panel(launch(target=Target("script", name)), (), Terminal(80))
    text.encode("utf-8")
    assert len(text.splitlines()) == len(launch_panel(launch(), (), Terminal(80)).splitlines())
    assert "\x1b" not in text


def test_module_and_placeholder() -> None:
    one: Launch = launch(target=Target("module", "pkg.train"), passed=(Passed("lr", "0.0004", (), None),))
    text = launch_panel(one, (), Terminal(80))
    assert "-m pkg.train on 4 processes" in text
    assert "{lr} = 0.0004" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0004, "0.0004"), (1e-05, "1e-05"), (2.0, "2"), (60000, "60000"), (2.8284271247461903, "2.82843")],
)
def test_numbers_as_people_write_them(value: float, text: str) -> None:
    assert number_text(value) == text


def test_ranks_that_may_not_meet_are_marked_with_one_reason() -> None:
    clause = "no process group was seen in what could be read"
    text = launch_panel(launch(doubts=(("lr", clause), ("world_size", clause))), (), Terminal(200))
    assert "× 4 GPUs?: no process group was seen in what could be read" in text and " = 8 per GPU" not in text
    assert "0.0004? = 0.0001 × 4 (linear" in text and text.count(clause) == 1
