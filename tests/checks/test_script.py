"""The script and numbers families, on described reports and on real sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddplaunch.checks.script import CHECKS
from ddplaunch.launch.launch import Launch, Passed, Target
from ddplaunch.launch.options import Options
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.read import read_script
from ddplaunch.script.report import DeclaredAt, DeclaredOption, Import, ScriptReport
from ddplaunch.values.finding import Severity
from ddplaunch.values.resolved import Resolved, Source
from tests.checks.cases import found, silent_when_healthy
from tests.checks.healthy import FLAG, healthy_launch, healthy_script

HERE = DeclaredAt("train.py", 7)
LOCAL_RANK = DeclaredOption(("--local_rank",), HERE, required=True)


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


def test_script_syntax_error() -> None:
    finding = found(CHECKS, "script-syntax-error", script=healthy_script(syntax_error="line 3: invalid syntax"))
    assert finding and finding.severity is Severity.ERROR
    assert finding.what == "train.py does not compile: line 3: invalid syntax"


def test_script_spawns_processes() -> None:
    report = healthy_script(spawns=HERE, reads_env=())
    finding = found(CHECKS, "script-spawns-processes", script=report)
    assert finding and finding.severity is Severity.ERROR and finding.where == ("train.py:7",)
    aware = found(CHECKS, "script-spawns-processes", script=healthy_script(spawns=HERE, reads_env=("LOCAL_RANK",)))
    assert aware and aware.severity is Severity.WARNING
    assert found(CHECKS, "script-spawns-processes", launch=healthy_launch(1), script=report) is None


def test_script_demands_local_rank() -> None:
    report = healthy_script(options=(LOCAL_RANK,), demands_local_rank=HERE)
    launch = healthy_launch(target=Target("script", "train.py", ("--name", "a b")))
    finding = found(CHECKS, "script-demands-local-rank", launch=launch, script=report)
    assert finding and "`--local_rank`" in finding.what
    assert finding.where == ("train.py:7",)
    optional = healthy_script(options=(DeclaredOption(("--local_rank",), HERE),))
    assert found(CHECKS, "script-demands-local-rank", script=optional) is None


def test_the_shell_line_for_local_rank_runs_as_printed() -> None:
    """Pasted into a shell, with echo in python's place, it passes the arguments and the rank on unharmed."""
    import subprocess

    report = healthy_script(options=(LOCAL_RANK,), demands_local_rank=HERE)
    launch = healthy_launch(target=Target("script", "train.py", ("--name", "it's 'a b'")))
    finding = found(CHECKS, "script-demands-local-rank", launch=launch, script=report)
    assert finding
    line = finding.fix.partition("`-- ")[2].removesuffix("`").replace("exec python", "exec echo", 1)
    said = subprocess.run(["sh", "-c", line], env={"LOCAL_RANK": "5", "PATH": "/usr/bin:/bin"}, capture_output=True)
    assert said.stdout.decode() == "train.py --name it's 'a b' --local_rank 5\n"


def test_script_never_initialises() -> None:
    bare = healthy_script(initialises=None)
    finding = found(CHECKS, "script-never-initialises", script=bare)
    assert finding and finding.severity is Severity.WARNING and "8 ranks" in finding.why
    for report in (
        healthy_script(initialises=None, framework="lightning"),
        healthy_script(initialises=None, complete=False),
        healthy_script(initialises=None, spawns=HERE),
        healthy_script(initialises=None, syntax_error="line 3"),
    ):
        assert found(CHECKS, "script-never-initialises", script=report) is None
    assert found(CHECKS, "script-never-initialises", launch=healthy_launch(1), script=bare) is None


@pytest.mark.parametrize(
    ("args", "fires"),
    [
        (("--batch-size", "32", "--batch-size=64"), True),
        (("--batch-size", "32", "--batch-size=32"), False),
        (("--batch-size", "32"), False),
        (("--batch-size", "32", "--", "--batch-size", "64"), False),
        (("--tag", "a", "--tag", "b"), False),
    ],
)
def test_option_given_twice(args: tuple[str, ...], fires: bool) -> None:
    options = (*healthy_script().options, DeclaredOption(("--tag",), HERE))
    launch = healthy_launch(target=Target("script", "train.py", args))
    finding = found(CHECKS, "option-given-twice", launch=launch, script=healthy_script(options=options))
    assert (finding is not None) is fires
    if finding:
        assert finding.what == "`--batch-size` is given 2 times, with 32 and 64"
        assert finding.where == ("train.py:31",)


def test_the_same_number_in_another_spelling_is_no_contradiction() -> None:
    report = healthy_script(options=(DeclaredOption(("--lr",), HERE, meaning="lr"),))
    launch = healthy_launch(target=Target("script", "train.py", ("--lr", "1e-3", "--lr", "0.001")))
    assert found(CHECKS, "option-given-twice", launch=launch, script=report) is None


@pytest.mark.parametrize(
    ("target", "behind"),
    [
        (Target("executable", "torchrun", ("--nproc-per-node", "8", "train.py", "--lr", "1")), "-- train.py --lr 1`"),
        (Target("executable", "/opt/env/bin/accelerate", ("launch", "train.py")), "-- train.py`"),
        (Target("module", "torch.distributed.launch", ("train.py",)), "-- train.py`"),
        (Target("executable", "python3", ("-m", "torch.distributed.run", "my train.py")), "-- 'my train.py'`"),
        (Target("executable", "deepspeed", ()), "-- train.py`"),
    ],
)
def test_script_is_launcher(target: Target, behind: str) -> None:
    finding = found(CHECKS, "script-is-launcher", launch=healthy_launch(target=target))
    assert finding and finding.fix.endswith(f"`ddplaunch run 8 {behind}")


@pytest.mark.parametrize(
    "target",
    [
        Target("script", "torchrun_me.py", ()),
        Target("module", "my.launcher", ()),
        Target("executable", "python", ("train.py", "-m", "torch.distributed.run")),
        Target("executable", "bash", ("train.sh",)),
        None,
    ],
)
def test_script_is_no_launcher(target: Target | None) -> None:
    assert found(CHECKS, "script-is-launcher", launch=healthy_launch(target=target)) is None


def read(folder: Path, source: str) -> ScriptReport:
    (folder / "train.py").write_text(source)
    return read_script(folder / "train.py", folder, ())


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import torch\nmodel = torch.nn.Linear(1, 1)\n", "script-never-initialises"),
        ("def (:\n", "script-syntax-error"),
        (
            "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(print, nprocs=4)\n",
            "script-spawns-processes",
        ),
        (
            "import argparse\nimport torch.distributed as dist\np = argparse.ArgumentParser()\n"
            "p.add_argument('--local-rank', type=int, required=True)\np.parse_args()\n"
            "dist.init_process_group('gloo')\n",
            "script-demands-local-rank",
        ),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')\n", None),
    ],
)
def test_on_real_sources(tmp_path: Path, source: str, code: str | None) -> None:
    report = read(tmp_path, source)
    codes = [check.code for check in CHECKS if found(CHECKS, check.code, script=report)]
    assert codes == ([] if code is None else [code])


def numbered(**numbers: Any) -> Launch:
    resolved: dict[str, Any] = {name: Resolved(value, FLAG) for name, value in numbers.items()}
    return healthy_launch(8, numbers=Numbers(world_size=Resolved(8, FLAG), **resolved))


def test_dataset_smaller_than_batch() -> None:
    finding = found(CHECKS, "dataset-smaller-than-batch", launch=numbered(dataset_size=100, global_batch_size=256))
    assert finding and finding.what == "the dataset has 100 samples, one effective batch 256"
    assert "`--batch-size 12 --accum 1` makes one step of 96 samples" in finding.fix
    tiny = found(CHECKS, "dataset-smaller-than-batch", launch=numbered(dataset_size=3, global_batch_size=256))
    assert tiny and "at most 3 processes" in tiny.fix


@pytest.mark.parametrize(
    "numbers", [{"dataset_size": 256, "global_batch_size": 256}, {"dataset_size": 1}, {"global_batch_size": 256}]
)
def test_dataset_large_enough_or_unknown(numbers: dict[str, int]) -> None:
    assert found(CHECKS, "dataset-smaller-than-batch", launch=numbered(**numbers)) is None


LARGE = {"lr": 0.8, "base_lr": 0.1, "lr_factor": 8.0, "lr_scaling": "linear"}


def test_lr_factor_large() -> None:
    finding = found(CHECKS, "lr-factor-large", launch=numbered(**LARGE))
    assert finding and finding.what == "the learning rate is 8 times the base one, 0.8, with no warmup"


@pytest.mark.parametrize(
    "change", [{"lr_factor": 4.0}, {"lr_scaling": "sqrt"}, {"base_warmup": 500}], ids=lambda change: next(iter(change))
)
def test_lr_factor_with_a_remedy(change: dict[str, Any]) -> None:
    assert found(CHECKS, "lr-factor-large", launch=numbered(**{**LARGE, **change})) is None


def test_lr_that_is_final_is_not_judged() -> None:
    assert found(CHECKS, "lr-factor-large", launch=numbered(lr=0.8)) is None


DEAF = healthy_script(options=())


def giving(option: str, number: str, value: float, **replace: Any) -> Launch:
    said = Resolved(value, Source("flag", "--" + option.replace("_", "-")))
    options: dict[str, Any] = {option: said}
    numbers: dict[str, Any] = {number: said}
    world = Resolved(8, Source("flag"))
    return healthy_launch(8, options=Options(**options), numbers=Numbers(world_size=world, **numbers), **replace)


BATCH = giving("batch_size", "batch_size", 8)


@pytest.mark.parametrize(
    ("option", "number", "value", "unseen"),
    [
        ("batch_size", "batch_size", 8, "`--batch-size 8`"),
        ("global_batch_size", "batch_size", 8, "the batch size 8 from `--global-batch-size 8`"),
        ("accum", "accum", 4, "`--accum 4`"),
        ("lr", "lr", 0.1, "`--lr 0.1`"),
        ("base_lr", "lr", 0.8, "the learning rate 0.8 from `--base-lr 0.8`"),
        ("base_warmup", "warmup_steps", 500, "the warmup of 500 steps from `--base-warmup 500`"),
    ],
)
def test_a_number_for_a_script_that_listens_nowhere(option: str, number: str, value: float, unseen: str) -> None:
    finding = found(CHECKS, "number-not-received", launch=giving(option, number, value), script=DEAF)
    assert finding and finding.severity is Severity.WARNING
    assert finding.what == f"train.py will not see {unseen}: it has no such option"
    assert f"{{{number}}}" in finding.fix and f"ddplaunch.current().{number}" in finding.fix


@pytest.mark.parametrize(
    "script",
    [
        healthy_script(),
        healthy_script(options=(DeclaredOption(("--total-batch",), HERE, meaning="global_batch_size"),)),
        healthy_script(options=(), complete=False),
        healthy_script(options=(), syntax_error="line 3: invalid syntax"),
        healthy_script(options=(), reads_env=("DDPLAUNCH_BATCH_SIZE",)),
        healthy_script(options=(), imports=(Import("ddplaunch", HERE),)),
    ],
    ids=["declared", "global batch", "incomplete", "broken", "environment", "current()"],
)
def test_a_script_that_may_listen(script: ScriptReport) -> None:
    assert found(CHECKS, "number-not-received", launch=BATCH, script=script) is None


def test_a_placeholder_delivers() -> None:
    passed = (Passed("batch_size", "8", (), None),)
    assert (
        found(CHECKS, "number-not-received", launch=giving("batch_size", "batch_size", 8, passed=passed), script=DEAF)
        is None
    )


def test_an_accumulation_of_one_changes_nothing() -> None:
    assert found(CHECKS, "number-not-received", launch=giving("accum", "accum", 1), script=DEAF) is None
