"""What memory a rank may have, and what it is measured to take: real torch under a limit of the kernel."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.agent.rank_site.ddplaunch_timeline import Memory
from ddplaunch.watch.phases import RankFile, read_phases
from tests.agent.plugin_runs import DEADLINE_S
from tests.hosts.launching import clean_environment, ddplaunch

MIB = 1 << 20
#: Tensors are of 8 MiB for each sample: of more than 32 MiB malloc gives back to the kernel what is free. Steps are
#: ended by hand, as the first optimizer imports what takes two seconds.
TRAINING = """
import argparse, ddplaunch, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1)
args = parser.parse_args()
model = torch.nn.Linear(1, 1, bias=False)
for step in range(3):
    loss = model(torch.full((args.batch_size << 21, 1), 1.0)).square().mean()
    loss.backward()
    model.weight.grad = None
    ddplaunch.step()
"""


def trained(folder: Path, memory: str, batch: int, start: str) -> tuple[RankFile, dict[str, Any]]:
    """Return what rank 0 wrote, and the outcome of the run."""
    (folder / "train.py").write_text(TRAINING)
    name = f"{memory}-{start}"
    words = ("--memory", memory, "--start", start, "--run-id", name, "--batch-size", str(batch), "--no-observe")
    command = ddplaunch("run", "1", "--device", "cpu", "--phases", *words, "--", "train.py")
    subprocess.run(command, cwd=folder, env=clean_environment(), timeout=DEADLINE_S, check=False)
    record = folder / ".ddplaunch" / "runs" / name
    files = read_phases(record / "node-0" / "attempt-0", [0])
    return files.get(0, RankFile({}, ())), json.loads((record / "outcome.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("start", "more_mib", "state"), [("cold", 8, "succeeded"), ("warm", -16, "failed")])
def test_what_a_rank_takes_is_what_its_limit_counts(tmp_path: Path, start: str, more_mib: int, state: str) -> None:
    file, outcome = trained(tmp_path, "2GiB", 8, start)
    assert outcome["state"] == "succeeded"
    assert file.facts["memory_limit_bytes"] == 2 << 30
    peak = file.lines[-1].peak_bytes
    assert peak is not None and peak > 8 * 8 * 3 * MIB
    _, limited = trained(tmp_path, f"{peak // MIB + more_mib}MiB", 8, start)
    assert limited["state"] == state
    if found := limited["diagnosis"]:
        assert found["code"] == "host-out-of-memory"
        assert f"`--memory {peak // MIB - 16}MiB`" in found["fixes"][0] and "--batch-size 4 " in found["fixes"][1]


def test_without_a_limit_it_is_what_was_resident() -> None:
    memory = Memory(on_gpu=False)
    assert memory.limit_bytes() is None
    least, peak = _resident_at_most(), memory.peak_bytes(1)
    assert peak is not None and least <= peak <= _resident_at_most()


def _resident_at_most() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024
