"""Trials: where their scripts write, and real ones on the CPU that are measured, end early, fail and never step."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planted import PLANTED
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.cli.prepare import prepare
from ddplaunch.cli.target import parse_target
from ddplaunch.cli.trials.measured_steps import Measure
from ddplaunch.cli.trials.trial import Change, Trial, Trials
from ddplaunch.cli.trials.trial_place import TrialPlace, make_place
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.planning.flag import DeviceWord
from ddplaunch.planning.options import Options
from ddplaunch.values.resolved import Resolved, Source
from tests.cli.cli_calls import NO_COMPILER, Call


def test_a_trials_folders_are_outside_of_the_tree_and_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / "src").mkdir()
    monkeypatch.chdir(tmp_path / "project" / "src")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for cache in ("", tmp_path / "cache", tmp_path / "project" / "cache"):  # the last is a part of the tree
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        place = make_place(Path(".ddplaunch"), "x", in_place=False)
        assert place.tree == tmp_path / "project" and place.records == Path.cwd() / ".ddplaunch"
        assert place.folder is not None and place.folder.is_dir() and place.tree not in place.folder.parents
        assert cache or tmp_path / "home" / ".cache" in place.folder.parents
        place.remove()
        assert not place.folder.exists() and not place.temporary.exists()
    place = make_place(Path(".ddplaunch"), "x", in_place=True)
    assert place.folder is None and place.command() == [] and place.changes() == ()
    place.remove()


def test_trackers_reach_for_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TrialPlace(None, tmp_path, tmp_path, tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert place.variables["WANDB_MODE"] == "offline"
    assert place.variables["MLFLOW_TRACKING_URI"] == f"file://{tmp_path}/mlruns"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "WANDB_MODE" not in place.variables


def test_what_cannot_be_tried_is_said_at_once(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other.py").write_text("import torch\nprint(torch.zeros(1))\n")
    refused = call("fit", "1", "--device", "cpu", "--", "other.py")
    assert refused.status == 4 and "error[batch-not-taken]" in refused.err
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1"}.items():
        monkeypatch.setenv(name, value)
    refused = call("fit", "1", "--device", "cpu", "--", "train.py")
    assert refused.status == 4 and "trials cannot be kept from changing files here" in refused.err
    assert "`--in-place`" in refused.err and not (folder / ".ddplaunch").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["scale", "1", "--steps", "0"], "`--steps 0` is less than 1"),
        (["fit", "1", "--steps", "-4"], "`--steps -4` is less than 1"),
        (["fit", "2x2"], "`fit` tries batches on one machine, and this launch has several"),
        (["scale", "1,,2"], "`SIZES ` is not a number of processes"),
        (["scale", "2x2"], "`SIZES 2x2` is not a number of processes"),
        (["scale", "9" * 5000], "is not a number of processes"),
        (["scale", f"1,{4 * len(os.sched_getaffinity(0)) + 1}"], f"size {4 * len(os.sched_getaffinity(0)) + 1} is too"),
        (["fit", "1", "--headroom=95"], "`--headroom 95`"),
    ],
)
def test_what_measures_nothing_is_refused_before_a_trial(folder: Path, call: Call, words: list[str], what: str) -> None:
    said = call(*words, "--device", "cpu", "--", "train.py")
    assert said.status == 2 and said.err.startswith("error[") and what in said.err, said.err
    assert "\n  why: " in said.err and "\n  fix: " in said.err
    assert not (folder / ".ddplaunch").exists()


FAILS = "    if done == 30:\n        raise OSError(18, 'Invalid cross-device link')\n    optimizer.zero_grad"
TRAIN = NO_COMPILER + PLANTED.replace("    optimizer.zero_grad", FAILS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trial(processes: int = 2, timeout_s: float = 120, **more: Any) -> Trial:
    flag = Source("flag", "--device")
    device: Resolved[DeviceWord] = Resolved("cpu", flag)
    measure = Measure(steps=100, seconds=None, timeout_s=timeout_s)
    script = ["train.py"]
    first = prepare(Options(device=device), parse_target(script))
    said = {"device": device, "start": Resolved("warm", flag), "timeout": Resolved("9m", flag), **more}
    change = Change(str(processes), processes, said)
    results: list[Trial] = []

    def series() -> Generator[Change, Trial, None]:
        results.append((yield change))

    assert Trials("scale", first, TypedLaunch({}, script), measure, in_place=False).run_all(series()) is False
    (result,) = results
    assert not [run for run in runs_in(process_table()) if run.run_id == result.run_id], "nothing is left"
    assert (result.problem is None) is bool(result.measured.ranks)
    return result


@pytest.mark.slow
def test_what_keeps_a_trial_from_being_measured(folder: Path) -> None:
    late = trial()
    assert late.ending == "failed" and late.measured.steps >= 20 and late.problem is not None
    assert late.diagnosis is not None and late.diagnosis.code == "script-exception" and late.measured.ranks == ()
    assert late.problem.code == "trial-failed" and "only root can rename a folder" in late.problem.why
    (folder / "train.py").write_text("import time\ntime.sleep(600)\n")
    assert trial(processes=1, timeout_s=6).ending == "timed-out"
    refused = trial(data=(Resolved("/no/such/data", Source("flag", "--data")),))
    assert refused.ending == "refused"
    assert "data-missing" in [each.code for each in refused.findings]
