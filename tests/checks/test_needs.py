"""What cannot work by the source is refused before the start; what might work is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplaunch.checks.mistakes import CHECKS, needs_of
from ddplaunch.planning.launch import Needs, Target
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, ScriptReport
from ddplaunch.values.resolved import Resolved, Source
from tests.checks.cases import found, silent_when_healthy
from tests.checks.healthy import healthy_facts, healthy_launch, healthy_script, healthy_torch
from tests.cli.cli_calls import Call, call, folder

__all__ = ["call", "folder"]
HERE = DeclaredAt("train.py", 7)


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("import os\nimport no_such\n", [("no_such", 2)]),
        ("from no_such.a import b\nimport other_missing as x, torch\n", [("no_such", 1), ("other_missing", 2)]),
        ("try:\n    import no_such\nexcept ImportError: pass\nif x:\n    import no_such\n", []),
        ("import mine, pytest, space.inner\n", []),
        ('"""\nimport no_such\n"""\n', []),
        ("import sys\nsys.path.insert(0, 'lib')\nimport no_such\n", []),
        ("import subprocess\nsubprocess.run(['pip', 'install', 'no_such'])\nimport no_such\n", []),
        ("from . import no_such\nfrom .no_such import a\n", []),
        ("import no_such\nif:\n", []),
    ],
)
def test_modules_that_are_missing(tmp_path: Path, text: str, lacks: list[tuple[str, int]]) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "space").mkdir()
    needs = needs_of(text, "train.py", [str(tmp_path)], on_cpu=False)
    assert [(name, at.line) for name, at in needs.lacks] == lacks


GPU = 'import torch\nimport torch.distributed as dist\ndef main():\n    dist.init_process_group("nccl")\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (GPU, 4),
        ("import torch\ntorch.cuda.set_device(0)\n", 2),
        ("model = Net().cuda()\n", 1),
        ("x = x.to('cuda:0', non_blocking=True)\n", 1),
        ("dist.init_process_group(backend='nccl')\n", 1),
        ("import torch\ntorch.cuda.manual_seed(1)\ntorch.cuda.empty_cache()\n", None),  # they do nothing without GPUs
        (GPU + "    use = torch.cuda.is_available()\n", None),
        (GPU + "    # or on the cpu\n", None),
        ("x = y.cuda() if ready else y\n", None),
        ("try:\n    x.cuda()\nexcept RuntimeError: pass\n", None),
        ("if args.gpu:\n    x.cuda()\n", None),
        ("def cuda(): pass\nthing.cuda()\n", None),
        ("'model.cuda()'\n", None),
    ],
)
def test_where_cuda_is_used_whatever_happens(text: str, line: int | None) -> None:
    found_at = needs_of(text, "train.py", [], on_cpu=True).cuda
    assert (found_at and found_at.line) == line
    assert needs_of(text, "train.py", [], on_cpu=False).cuda is None


def test_a_missing_module_is_refused() -> None:
    launch = healthy_launch(needs=Needs((("peft", HERE), ("trl", HERE))))
    finding = found(CHECKS, "module-not-found", launch=launch)
    assert finding and finding.severity.value == "error" and finding.where == ("train.py:7",)
    assert finding.what.startswith("train.py imports `peft` and 1 more, which") and "pip install peft`" in finding.fix


@pytest.mark.parametrize(
    ("device", "cuda", "fires"), [("flag", "12.8", True), ("detected", None, True), ("detected", "12.8", False)]
)
def test_cuda_is_refused_where_there_is_certainly_none(device: str, cuda: str | None, fires: bool) -> None:
    launch = healthy_launch(needs=Needs(cuda=HERE), device=Resolved("cpu", Source(device)))  # type: ignore[arg-type]
    finding = found(CHECKS, "cuda-without-gpus", healthy_facts(torch=healthy_torch(cuda=cuda)), launch)
    assert (finding is not None) is fires
    on_gpus = healthy_launch(needs=Needs(cuda=HERE))
    assert found(CHECKS, "cuda-without-gpus", launch=on_gpus) is None


OPTIONS = tuple(DeclaredOption((flag,), HERE) for flag in ("--batch-size", "--lr", "-v"))


@pytest.mark.parametrize(
    ("args", "script", "fix"),
    [
        (("--batch-sizes", "16"), healthy_script(options=OPTIONS), "did you mean `--batch-size`?"),
        (("--zebra=1",), healthy_script(options=OPTIONS), "`python train.py --help` lists its options"),
        (("--batch", "16", "--lr=1", "--help", "-5", "--", "--zebra"), healthy_script(options=OPTIONS), None),
        (("--zebra",), healthy_script(options=OPTIONS, complete=False), None),
        (("--zebra",), healthy_script(options=()), None),
        (("--dry-run",), healthy_script(options=OPTIONS), "put `--dry-run` before `--`: it is an option of ddplaunch"),
        (("--accum=2",), healthy_script(options=()), "put `--accum` before `--`: it is an option of ddplaunch"),
        (("--accum", "2"), healthy_script(options=(), complete=False), None),
        (
            ("--dry-run",),
            healthy_script(options=OPTIONS, complete=False),
            "put `--dry-run` before `--`: it is an option of ddplaunch",
        ),
        (("--zebra",), healthy_script(options=(*OPTIONS, DeclaredOption(("--x",), HERE, parser="fire"))), None),
    ],
)
def test_an_argument_that_argparse_will_refuse(args: tuple[str, ...], script: ScriptReport, fix: str | None) -> None:
    launch = healthy_launch(target=Target("script", "train.py", args))
    finding = found(CHECKS, "script-arguments", launch=launch, script=script)
    assert (finding and finding.fix) == fix
    certain = script.complete and script.options
    assert finding is None or finding.severity.value == ("error" if certain else "warning")


def test_a_launch_that_cannot_work_is_refused_before_the_start(call: Call, folder: Path) -> None:
    (folder / "doomed.py").write_text("import argparse, no_such_module\nargparse.ArgumentParser().parse_args()\n")
    said = call("run", "2", "--device", "cpu", "--", "doomed.py")
    assert said.status == 4 and "error[module-not-found]: doomed.py imports `no_such_module`" in said.err
    wrapped = call("run", "2", "--device", "cpu", "--dry-run", "--", "env", "A=1", "python", "doomed.py")
    assert wrapped.status == 0 and wrapped.err == "", "another interpreter may have it"
    assert "error[module-not-found]" in call("doctor", "2", "--device", "cpu", "--", "doomed.py").out
