from __future__ import annotations

import dataclasses

import pytest

from ddplaunch.machine.facts import Facts
from ddplaunch.planning.launch import Launch, Missing, Passed, Placement, Target, Variable
from ddplaunch.planning.options import Options
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.script_report import DeclaredAt
from ddplaunch.ui.launch_view import device_text, launch_panel, number_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Resolved, Source
from tests.conftest import Golden
from tests.planning.sample_launch import FILES, cpu_only, facts, launch, two_nodes

RECORD = ".ddplaunch/runs/20261121-143012-x7k2q9"


@pytest.mark.parametrize(
    ("name", "terminal", "findings", "record"),
    [
        ("80", Terminal(80), (), RECORD),
        ("40", Terminal(40), (FILES,), "none: Read-only file system"),
        ("120-colour", Terminal(120, True), (FILES,), RECORD),
    ],
)
def test_panels(golden: Golden, name: str, terminal: Terminal, findings: tuple[Finding, ...], record: str) -> None:
    golden(f"panel-{name}", launch_panel(launch(), findings, terminal, facts=facts(), record=record))


def test_what_the_user_said_and_what_does_not_arrive(golden: Golden) -> None:
    """A launch whose learning rate does not arrive, with a batch that the user explained."""
    shown = launch(
        passed=(
            Passed("total_batch_size", "32", ("--batch-size", "32"), DeclaredAt("train.py", 8), "of all processes"),
        ),
        missing=(Missing("lr", "0.0004", "no option for it was recognized"),),
        doubts=(("lr", "not passed, train.py decides"), ("accum", "train.py:12 may decide the accumulation")),
    )
    golden("panel-said-80", launch_panel(shown, (), Terminal(80), facts=facts(), record=RECORD))


def panel(shown: Launch) -> str:
    return launch_panel(shown, (), Terminal(200))


@pytest.mark.parametrize(
    ("families", "shown"),
    [
        (("batch_size", "accum"), "batch 8? per GPU × 1? accumulation × 4 GPUs: not passed lr 0.0004 ="),
        (("lr",), "lr 0.0004? = 0.0001 × 4 (linear: batch 32 / 8): not passed steps"),
        (("lr", "world_size"), "× 4 GPUs?: not passed lr 0.0004? = 0.0001 × 4 (linear: batch 32 / 8) steps"),
        (("warmup_steps",), "steps 1875 steps per epoch, 2000? warmup steps: not passed pass"),
    ],
)
def test_no_number_is_claimed_that_may_not_train(families: tuple[str, ...], shown: str) -> None:
    text = launch_panel(launch(doubts=tuple((family, "not passed") for family in families)), (), Terminal(80))
    assert shown in " ".join(text.split()) and all(len(line) <= 80 for line in text.splitlines())


BASE_RATE = Resolved(0.0001, Source("script", "default at train.py:31"))
SCALED = dataclasses.replace(launch().numbers, base_lr=BASE_RATE)
FINAL = dataclasses.replace(SCALED, base_lr=None, lr=BASE_RATE)
ALONE = dataclasses.replace(FINAL, world_size=Resolved(1, Source("flag")))
SAME = dataclasses.replace(SCALED, lr_factor=Resolved(1.0, Source("computed")), lr=BASE_RATE)
BASED = dataclasses.replace(
    launch().numbers, base_batch_size=Resolved(512, Source("script", "train.py:40 scales from it"))
)
MADE_OF_IT = Passed("lr", "0.0008", ("--lr", "0.0008"), DeclaredAt("train.py", 31), "train.py:40 multiplies it by 0.5")
MANY = tuple(Variable(f"A{number}", "x" * 99, Source("flag", "--env"), "yours") for number in range(9))
PLACED = Placement(("0-3",) * 8, text="ranks 0-3 on NUMA node 0", shown=True)


def of_the_script(detail: str) -> Numbers:
    return dataclasses.replace(FINAL, lr=Resolved(0.0001, Source("script", detail)))


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (launch(passed=(MADE_OF_IT,)), "batch 32 / 8); the script gets 0.0008, train.py:40 multiplies it by 0.5\n"),
        (launch(passed=(MADE_OF_IT,)), "pass   --lr 0.0008 (train.py:31)"),
        (launch(numbers=BASED), "(linear: batch 32 / 512, train.py:40 scales from it)"),
        (launch(numbers=FINAL, receives=("lr",)), "31), not scaled: `--base-lr 0.0001` makes it 0.0004\n"),
        (launch(numbers=FINAL, receives=()), "(train.py:31), not scaled\n"),
        (launch(numbers=of_the_script("`--lr` after `--`"), receives=("lr",)), "after `--`), not scaled\n"),
        (launch(numbers=of_the_script("x, × 4 at t.py:9"), receives=("lr",)), "lr     0.0001 (x, × 4 at t.py:9)\n"),
        (launch(environment=MANY), f"env    A0={'x' * 39}…, "),
        (launch(environment=MANY), " and 3 more\n"),
        (launch(placement=PLACED), "cpus   ranks 0-3 on NUMA node 0\n"),
        (two_nodes(), "16 processes, 2 nodes of 8, this is node 0, rank 0 at node-1:29500, GPUs 0-7\n"),
        (cpu_only(), "train.py on 2 processes, this machine, CPU\n"),
        (launch(target=Target("module", "pkg.train")), "-m pkg.train on 4 processes"),
        (launch(options=Options(debug=Resolved(1, Source("flag")))), "debug  rank 1 waits for a debugger; in VS Code"),
        (launch(passed=(Passed("lr", "0.0004", (), None),)), "{lr} = 0.0004"),
        (launch(target=Target("script", "new\nline\x1b[2J\udcff.py")), "run    new\\nline\\x1b[2J\\xff.py on 4"),
    ],
)
def test_what_a_line_of_the_panel_says(shown: Launch, line: str) -> None:
    assert line in launch_panel(shown, (), Terminal(800))


@pytest.mark.parametrize(
    ("shown", "labels"),
    [
        (cpu_only(), ("batch", "lr", "steps", "pass", "record")),
        (launch(numbers=ALONE), ("lr",)),
        (launch(numbers=FINAL, doubts=(("lr", "?"),)), ("lr",)),
        (launch(numbers=SAME), ("lr",)),
        (launch(placement=Placement(text="not bound: one core")), ("cpus",)),
    ],
)
def test_what_changes_nothing_is_no_line(shown: Launch, labels: tuple[str, ...]) -> None:
    assert not {line[2:9].strip() for line in panel(shown).splitlines()} & {*labels}


VISIBLE = Variable("CUDA_VISIBLE_DEVICES", "GPU-00000001", Source("flag", "--gpus"), "the GPUs of this launch")
TWO_VISIBLE = dataclasses.replace(facts(), environment={"CUDA_VISIBLE_DEVICES": "1,2"})


@pytest.mark.parametrize(
    ("gpus", "variables", "machine", "text"),
    [
        (("0", "1", "3"), (), None, "GPUs 0-1,3"),
        (("3", "1", "2"), (), None, "GPUs 3,1-2"),
        (None, (), None, "every visible GPU"),
        (None, (), TWO_VISIBLE, "every visible GPU (2 × NVIDIA H100 80GB HBM3)"),
        (("GPU-00000001", "7"), (), None, "GPUs GPU-00000001, 7"),
        (("GPU-00000001",), (VISIBLE,), facts(), "GPU GPU-00000001 (1 × NVIDIA H100 80GB HBM3)"),
    ],
)
def test_gpus_in_the_order_of_local_ranks(
    gpus: tuple[str, ...] | None, variables: tuple[Variable, ...], machine: Facts | None, text: str
) -> None:
    assert device_text(launch(gpus=gpus, environment=variables), machine) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0004, "0.0004"), (1e-05, "1e-05"), (2.0, "2"), (60000, "60000"), (2.8284271247461903, "2.82843")],
)
def test_numbers_as_people_write_them(value: float, text: str) -> None:
    assert number_text(value) == text
