from __future__ import annotations

import dataclasses

import pytest

from ddplaunch.launch.launch import Launch, Passed, Target
from ddplaunch.ui.launch_view import device_text, launch_panel, number_text
from ddplaunch.ui.terminal import Terminal
from tests.conftest import Golden
from tests.launch.sample_launch import FILES, cpu_only, facts, launch, two_nodes

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


def test_two_nodes_name_this_one_and_where_rank_0_is() -> None:
    text = launch_panel(two_nodes(), (), Terminal(200))
    assert "train.py on 16 processes, 2 nodes of 8, this is node 0, rank 0 at node-1:29500, GPUs 0-7\n" in text
    assert "128 = 8 per GPU × 1 accumulation × 16 GPUs" in text


def test_what_was_not_asked_for_is_not_there() -> None:
    text = launch_panel(cpu_only(), (), Terminal(80))
    assert "train.py on 2 processes, this machine, CPU\n" in text
    assert [label for label in ("batch", "  lr", "steps", "pass", "record") if label in text] == []


def test_without_unicode_it_is_ascii() -> None:
    text = launch_panel(launch(), (FILES,), Terminal(80, unicode=False), facts=facts(), record=RECORD)
    assert text.isascii()
    assert "32 = 8 per GPU x 1 accumulation x 4 GPUs" in text


def test_one_process_is_one_process() -> None:
    topology = dataclasses.replace(
        launch().topology, nproc_per_node=dataclasses.replace(launch().topology.nproc_per_node, value=1)
    )
    assert "on 1 process, this machine, GPU 3\n" in launch_panel(
        launch(topology=topology, gpus=("3",)), (), Terminal(80)
    )


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        (("0", "1", "3"), "GPUs 0-1,3"),
        (("3", "1", "2"), "GPUs 3,1-2"),
        (None, "every visible GPU"),
        (("GPU-00000001", "7"), "2 GPUs: GPU-00000001, 7"),
    ],
)
def test_gpus_in_the_order_of_local_ranks(gpus: tuple[str, ...] | None, text: str) -> None:
    assert device_text(launch(gpus=gpus)) == text


def test_models_are_named_where_nvml_knows_them() -> None:
    assert device_text(launch(gpus=("GPU-00000001",)), facts()) == "1 GPU: GPU-00000001 (1 × NVIDIA H100 80GB HBM3)"
    assert device_text(launch(gpus=("9",)), facts()) == "GPU 9"


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
