"""Calls the command line in this process, which then launches nothing, or in a new one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ddplaunch.checks.all_checks import run_all
from ddplaunch.checks.check import CheckOutcome
from ddplaunch.cli import prepare
from ddplaunch.cli.main import main
from ddplaunch.values.finding import ExitStatus

TRAIN = """
import argparse
import sys
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--lr", type=float)
parser.add_argument("--note")
arguments, rest = parser.parse_known_args()
dist.init_process_group("gloo")
line = f"rank {dist.get_rank()} of {dist.get_world_size()}: {arguments.batch_size} {arguments.note} {rest}"
sys.stdout.write(line + "\\n")  # one write: the ranks share the pipe
sys.stdout.flush()
dist.barrier()  # a rank that leaves early breaks the connections that others are still making
dist.destroy_process_group()
"""
#: How a script begins that uses DistributedDataParallel or an optimizer: both import torch's compiler, which takes as
#: long as torch itself. It gets a stand-in.
NO_COMPILER = """
import sys, torch, unittest.mock
sys.modules["torch._dynamo"] = torch._dynamo = unittest.mock.MagicMock(disable=lambda call, *_, **__: call)
"""
#: Variables of whoever runs the tests that would change a launch or how it is shown.
_FOREIGN = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE")


@dataclass(frozen=True)
class Said:
    """What a call answered."""

    status: int
    out: str
    err: str


Call = Callable[..., Said]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of the test, with a ``train.py``."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "train.py").write_text(TRAIN)
    monkeypatch.chdir(place)
    for name in (*_FOREIGN, "DDPLAUNCH_DIR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return place


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """``call("run", "4", …)`` runs ``main`` in ``folder``; a launch, a failed check and a bug fail the test."""

    def launched(*_: object) -> NoReturn:
        raise AssertionError("something was launched")

    crashes: list[str] = []

    def checked(*values: Any) -> tuple[CheckOutcome, ...]:
        outcomes = run_all(*values)
        crashes.extend(f"{each.check.code}: {each.reason}" for each in outcomes if each.status == "crashed")
        return outcomes

    monkeypatch.setattr(os, "execve", launched)
    monkeypatch.setattr(prepare, "run_all", checked)

    def run(*words: str, bug: bool = False) -> Said:
        with pytest.raises(SystemExit) as end:
            main(words)
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int) and not crashes, crashes
        assert (end.value.code == ExitStatus.BUG) is bug, err
        return Said(end.value.code, out, err)

    return run


def spawn(
    words: Sequence[str | bytes], cwd: Path, environment: Mapping[str, str] | None = None, shell: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Run ``python -m ddplaunch WORDS`` in a new process, with ``shell`` (redirections) behind it if given."""
    command: list[str | bytes] = [sys.executable, "-m", "ddplaunch", *words]
    if shell:
        command = ["bash", "-c", f'"$@" {shell}', "bash", *command]
    clean = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    package = str(Path(__file__).parents[2])
    return subprocess.run(
        command,
        cwd=cwd,
        env={**clean, "PYTHONPATH": package, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=240,
        check=False,
    )
