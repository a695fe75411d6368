"""What cannot work by the source is refused before the start; what might work is not."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddplaunch.checks.mistakes import CHECKS, needs_of
from ddplaunch.planning.launch import Launch, Needs, Target
from ddplaunch.planning.options import Options
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, Mistake
from ddplaunch.values.resolved import Resolved, Source, SourceKind
from tests.checks.cases import fires, judged, silent
from tests.checks.healthy import FLAG, healthy_launch, healthy_script, healthy_torch, healthy_torch_import, topology
from tests.cli.cli_calls import Call

HERE = DeclaredAt("train.py", 7)


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("from no_such.a import b\nimport other_missing as x, torch\n", [("no_such", 1), ("other_missing", 2)]),
        ("try:\n    import no_such\nexcept ImportError: pass\nif x:\n    import no_such\n", []),
        ("import mine, pytest, space.inner, specless\n", []),
        ('"""\nimport no_such\n"""\n', []),
        ("import sys\nsys.path.insert(0, 'lib')\nimport no_such\n", []),
        ("import subprocess\nsubprocess.run(['pip', 'install', 'no_such'])\nimport no_such\n", []),
        ("import os\nos.system('pip install no_such')\nimport no_such\n", []),
        ("import no_such\nraise ImportError('`pip install x` first')\n", [("no_such", 1)]),
        ("from . import no_such\nfrom .no_such import a\n", []),
        ("import no_such\nif:\n", []),
    ],
)
def test_modules_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, lacks: list[tuple[str, int]]
) -> None:
    monkeypatch.setitem(sys.modules, "specless", ModuleType("specless"))  # as programs put it there; it may be anywhere
    (tmp_path / "mine.py").touch()
    (tmp_path / "space").mkdir()
    needs = needs_of(text, "train.py", [str(tmp_path)], on_cpu=False)
    assert [(name, at.line) for name, at in needs.lacks] == lacks


GPU = 'import torch\nimport torch.distributed as dist\ndef main():\n    dist.init_process_group("nccl")\n'
MAIN = "if __name__ == '__main__':\n    main()\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (GPU + MAIN, 4),
        (GPU, None),  # nothing calls it
        (GPU + "def other():\n    main()\nother()\n", 4),
        ("def a():\n    b()\ndef b():\n    a()\n    x.cuda()\na()\ny.cuda()\n", 5),
        ("class A:\n    def cuda_of(self):\n        x.cuda()\n", None),
        ("import torch\ntorch.cuda.set_device(0)\n", 2),
        ("x = x.to('cuda:0', non_blocking=True)\n", 1),
        ("dist.init_process_group(backend='nccl')\n", 1),
        (GPU + "    if dist.get_rank() == 0 or torch.distributed.get_rank():\n        print()\n" + MAIN, 4),
        ("device = torch.device('cuda', rank)\nx.to(device, True)\n", 2),
        ("def main(device):\n    x.to(device)\ndevice = f'cuda:{rank}'  # mine\nmain(device)\n", 2),
        ("device = 'cuda'\ndevice: str = args.on\nx.to(device)\n", None),
        ("call(\n    device = 'cuda',\n)\nx.to(device)\n", None),
        ("x = torch.nn.Linear(4, 1, device='cuda')\n", 1),
        ("scaler = torch.amp.GradScaler(device='cuda')\n", None),  # warns, and is switched off
        ("import torch\ntorch.cuda.manual_seed(1)\ntorch.cuda.empty_cache()\n", None),  # they do nothing without GPUs
        (GPU + "    use = torch.cuda.is_available()\n" + MAIN, None),
        (GPU + "    # or on the cpu\n" + MAIN, None),
        ("x = y.cuda() if ready else y\n", None),
        ("try:\n    x.cuda()\nexcept RuntimeError: pass\n", None),
        ("if args.gpu:\n    x.cuda()\n", None),
        ("def cuda(): pass\nthing.cuda()\n", None),
    ],
)
def test_where_cuda_is_used_whatever_happens(text: str, line: int | None) -> None:
    found_at = needs_of(text, "train.py", [], on_cpu=True).cuda
    assert (found_at and found_at.line) == line
    assert needs_of(text, "train.py", [], on_cpu=False).cuda is None


LACKING = healthy_launch(needs=Needs((("peft", HERE), ("trl", HERE))))
READS = healthy_script(needs_env=(("RANK", HERE), ("DATA", HERE)))
CPU_BUILD = healthy_torch(cuda=None)


def on_cpu(kind: SourceKind) -> Launch:
    return healthy_launch(needs=Needs(cuda=HERE), device=Resolved("cpu", Source(kind)))


OPTIONS = tuple(DeclaredOption((flag,), HERE) for flag in ("--batch-size", "--lr", "-v"))
READ, PART = healthy_script(options=OPTIONS), healthy_script(options=OPTIONS, complete=False)
NAMED_ALONE = replace(PART, options=(replace(OPTIONS[0], at=DeclaredAt("train.py", 0)),))
BARE, UNREAD = healthy_script(options=()), healthy_script(options=(), complete=False)
FIRE = healthy_script(options=(*OPTIONS, DeclaredOption(("--x",), HERE, parser="fire")))

VALUES: dict[str, tuple[str | None, tuple[str | None, ...]]] = {
    "--epochs": ("int", ()),
    "--amp": (None, ("fp16", "bf16")),
    "--lr": ("float", ()),
    "--steps": ("of_text", ()),
}
VALUES |= {"--k": (None, ("x", None)), "--to": ("int", ("1", "9"))}
TYPED = healthy_script(options=tuple(DeclaredOption((n,), HERE, kind=k, choices=c) for n, (k, c) in VALUES.items()))


def given(args: str) -> Launch:
    return healthy_launch(target=Target("script", "train.py", tuple(args.split())))


def meeting(at: str, launch: Launch | int = 8) -> dict[str, Any]:
    mistake = Mistake(HERE, "the_line(corrected)", at)
    return {"script": healthy_script(mistakes=(mistake,)), "launch": launch}


ONE = replace(healthy_launch(1), options=Options(nproc=Resolved(1, FLAG)))
NAMED = healthy_launch(topology=topology(8, master_port=Resolved(23456, FLAG)))
CASES = (
    fires("module-not-found", "train.py imports `peft` and 1 more, which … pip install peft` … py:7", launch=LACKING),
    fires("module-not-found", "the active environment is /v", launch=LACKING, environment={"VIRTUAL_ENV": "/v"}),
    silent("module-not-found"),
    fires("variable-not-set", "train.py reads the variable DATA, which … `--env DATA=VALUE` … py:7", script=READS),
    silent("variable-not-set", script=healthy_script(needs_env=(("DDPLAUNCH_LR", HERE), ("ROLE_NAME", HERE)))),
    fires("cuda-without-gpus", "train.py:7", launch=on_cpu("flag")),
    fires("cuda-without-gpus", "train.py:7", launch=on_cpu("detected"), torch=CPU_BUILD),
    silent("cuda-without-gpus", launch=on_cpu("detected")),
    fires("script-arguments", "did you mean `--batch-size`?", launch=given("--batch-sizes 16"), script=READ),
    fires("script-arguments", "`python train.py --help` lists", launch=given("--zebra=1"), script=READ),
    silent("script-arguments", launch=given("--batch 16384 --lr=1 --help -5e-4 -- --zebra"), script=READ),
    fires(
        "script-arguments", "`--epochs ten` is not of `type=int` … train.py:7", launch=given("--e ten"), script=TYPED
    ),
    fires("script-arguments", "`--amp fp8` is not one of fp16, bf16", launch=given("--amp=fp8"), script=TYPED),
    silent("script-arguments", launch=given("--epochs 010 --amp fp16 --lr 1e-3 --steps x --k z --to 9"), script=TYPED),
    silent("script-arguments", launch=given("--epochs ten"), script=replace(TYPED, options=TYPED.options * 2)),
    silent("script-arguments", launch=given("--epochs ten"), script=replace(TYPED, complete=False)),
    silent("script-arguments", launch=given("--zebra"), script=FIRE),
    silent("script-arguments", launch=given("--accum 2"), script=UNREAD),
    silent("script-arguments", launch=given("--accum 2"), script=NAMED_ALONE),
    silent("script-arguments", launch=given("--dry-run"), script=healthy_script(options=OPTIONS, unread=HERE)),
    fires("script-arguments", "put `--dry-run` before `--`", "warning", launch=given("--dry-run"), script=PART),
    fires("script-arguments", "put `--accum` before `--`", "warning", launch=given("--accum=2"), script=BARE),
    fires("rendezvous-in-script", "own MASTER_PORT=12 … the_line(c … py:7", "warning", **meeting("MASTER_PORT=12")),
    fires("rendezvous-in-script", "own MASTER_PORT=12, not", "warning", **meeting("MASTER_PORT=12", NAMED)),
    silent("rendezvous-in-script", "one process was asked for", **meeting("MASTER_PORT=12355", ONE)),
    silent("rendezvous-in-script", "the launch has it too", **meeting("tcp://127.0.0.1:23456", NAMED)),
    silent("rendezvous-in-script", "the launch has it too", **meeting("MASTER_PORT=23456", NAMED)),
)
test_fires_with_words_and_stays_silent_without = judged(*CASES)


def test_every_mistake_is_described_with_a_wrong_and_a_corrected_line() -> None:
    text = (Path(__file__).parents[2] / "docs" / "mistakes.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z-]+)` \| .+ \| .+ \|$", text.partition("## Found elsewhere")[0], re.M)
    assert listed == [check.code for check in CHECKS]


def test_a_launch_that_cannot_work_is_refused_before_the_start(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddplaunch.machine.gather._import", lambda _: lambda: healthy_torch_import())
    (folder / "doomed.py").write_text("import argparse, no_such_module\nargparse.ArgumentParser().parse_args()\n")
    said = call("run", "2", "--device", "cpu", "--", "doomed.py")
    assert said.status == 4 and "error[module-not-found]: doomed.py imports `no_such_module`" in said.err
    wrapped = call("run", "2", "--device", "cpu", "--dry-run", "--", "env", "A=1", "python", "doomed.py")
    assert wrapped.status == 0 and wrapped.err == "", "another interpreter may have it"
    assert "error[module-not-found]" in call("doctor", "2", "--device", "cpu", "--", "doomed.py").out
