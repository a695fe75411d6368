"""`ddplaunch fit`: real trials with little memory for a rank, and what is made of trials that are over at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.cli.trials.measured_steps import MeasuredSteps
from ddplaunch.cli.trials.trial import Change, Trial, Trials
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.watch.phases import RankPhases
from tests.cli.cli_calls import NO_COMPILER, Call
from tests.hosts.launching import clean_environment, ddplaunch

BEGINNING = """
import argparse, torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--grad-accum", type=int, default=1)
args = parser.parse_args()
dist.init_process_group("gloo")
"""
TRAINING = f"""
{BEGINNING}
{NO_COMPILER}
model = torch.nn.Linear(16, 1 << 19, bias=False)  # a sample takes some 40 MiB
optimizer = torch.optim.SGD(model.parameters(), args.lr)
data = torch.utils.data.TensorDataset(torch.randn(1000, 16))
for _ in range(400):
    for (batch,) in torch.utils.data.DataLoader(data, args.batch_size, drop_last=True):
        (torch.relu(model(batch)) * 2).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_the_largest_batch_is_found_in_few_trials(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = ("1", "--device", "cpu", "--memory", "600MiB", "--batch-size", "4", "--steps", "5")
    command = ddplaunch("fit", *words, "--start", "warm", "--json", "--", "train.py")  # cold takes twice as long
    environ = clean_environment(NO_COLOR="1", COLUMNS="120", OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    best = found["best"]
    assert best["peak_bytes"] <= 0.9 * (600 << 20) and best["limit_bytes"] == 600 << 20
    assert 2 <= len(found["trials"]) <= 8 and best["batch"] > 4
    assert found["command"]["words"][:2] == ["ddplaunch", "run"]
    assert f"{found['fastest']['batch']}" in found["command"]["words"]


MIB = 1 << 20
RANK = RankPhases(0, 10, 0.1, 0.1, 0.1, 0.1, {}, None, None, {})
NOTHING = MeasuredSteps((), ({"memory_limit_bytes": 600 * MIB},), 0, True, None, 0)
ENOUGH = replace(NOTHING, ranks=(RANK,), steps=10, peak_bytes=100 * MIB)
OF_3 = replace(ENOUGH, facts=({"loader": {"batch_size": 3, "samples": 1000}},))
RAISED = Diagnosis("script-exception", "observed", "RuntimeError: could not create a primitive", "", (), 0)


@pytest.fixture
def fit(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``fit(over, …)`` is the JSON of a search whose trials are over at once, as ``over`` says of each batch."""

    def search(over: Mapping[int, tuple[Any, MeasuredSteps]], *words: str) -> Any:
        def at_once(trials: Trials, change: Change) -> Trial:
            ending, measured = over[change.said["batch_size"].value]
            assert "accum" not in change.said
            trial = Trial(change, Path(change.name), ending, measured, 8, diagnosis=RAISED)
            return replace(trial, problem=trials._problem(trial))

        monkeypatch.setattr(Trials, "_run", at_once)
        (folder / "train.py").write_text(TRAINING)
        said = call("fit", "2", "--device", "cpu", "--memory", "600MiB", *words, "--json", "--", "train.py")
        found = json.loads(said.out)
        assert said.status == (found["problem"] is not None)
        return found

    return search


def test_any_failure_where_memory_ends_is_one_of_memory(fit: Callable[..., Any]) -> None:
    """As of oneDNN, which says `could not create a primitive` when malloc gives it nothing."""
    for peak, ran in ((590, [False, True]), (100, [])):
        failed = replace(NOTHING, peak_bytes=peak * MIB)
        found = fit({5: ("failed", failed), 1: ("measured", ENOUGH)}, "--global-batch-size", "10")
        assert [each["tried"]["ran"] for each in found["trials"]] == ran
        assert (found["problem"] or {"code": ""})["code"] == ("" if ran else "trial-failed")
        assert not ran or found["trials"][0]["note"] == "failed (script-exception) where memory ends"


def test_an_effective_batch_is_kept_exactly(fit: Callable[..., Any]) -> None:
    over = dict.fromkeys((4, 2, 1), ("measured", ENOUGH))
    found = fit(over, "--global-batch-size", "8", "--batch-size", "4", "--accum", "1", "--lr", "0.1")
    assert [(each["accum"], each["tried"]["batch"]) for each in found["trials"]] == [(1, 4), (2, 2)]
    command = found["command"]
    text = " ".join(command["words"])
    assert command["same"] and command["effective"] == 8
    assert " --lr 0.1 " in text and "base-" not in text, "the effective batch is the same, and so is the rate"
    assert f" --batch-size {command['batch']} --accum {4 // command['batch']} -- train.py" in text


def test_a_script_that_ends_early_has_its_memory_measured(fit: Callable[..., Any]) -> None:
    found = fit({40: ("ended", replace(NOTHING, steps=1, peak_bytes=100 * MIB))}, "--batch-size", "40")
    (only,) = found["trials"]  # more than 40 make no step
    assert only["note"] == "it ended after 1 step"
    assert found["best"]["peak_bytes"] == 100 * MIB and found["best"]["batch"] == found["most"] == 40


@pytest.mark.parametrize(
    ("ending", "measured", "code", "words"),
    [
        ("measured", OF_3, "batch-not-taken", "its DataLoader has one of 3"),
        ("timed-out", replace(NOTHING, empty_epochs=16), "trial-without-samples", "`drop_last=True` leaves nothing"),
    ],
)
def test_a_first_trial_that_tells_nothing_ends_the_search(
    fit: Callable[..., Any], ending: str, measured: MeasuredSteps, code: str, words: str
) -> None:
    problem = fit({64: (ending, measured)}, "--batch-size", "64")["problem"]
    assert problem["code"] == code and words in problem["what"] + problem["why"]
