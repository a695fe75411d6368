"""Trials: where their scripts write, and how one ends whose launch is a child that writes what ranks would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

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
from ddplaunch.values.variable_names import TRIAL
from tests.cli.cli_calls import Call


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
    monkeypatch.setenv("NCCL_DEBUGG", "INFO")
    refused = call("fit", "1", "--device", "cpu", "--", "train.py")
    assert refused.status == 4 and "trials cannot be kept from changing files here" in refused.err
    assert "warning[misspelt-variable]" in refused.err, "what its launch is warned of stands before it"
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trial(timeout_s: float) -> Trial:
    flag = Source("flag", "--device")
    device: Resolved[DeviceWord] = Resolved("cpu", flag)
    measure = Measure(steps=100, seconds=None, timeout_s=timeout_s)
    script = ["train.py"]
    first = prepare(Options(device=device), parse_target(script))
    by_the_trial = ("nproc", "nnodes", "run_id", "run_dir", "phases", "timeout", "show", "verbose", "max_restarts")
    said = {"device": device, "start": Resolved("warm", flag), **dict.fromkeys(by_the_trial, Resolved("9m", flag))}
    change = Change("1", 1, said)
    results: list[Trial] = []
    began_s = time.monotonic()

    def series() -> Generator[Change, Trial, None]:
        results.append((yield change))

    interrupted = Trials("scale", first, TypedLaunch({}, script), measure, in_place=True).run_all(series())
    (result,) = results
    assert interrupted is (result.ending == "interrupted")
    assert not [run for run in runs_in(process_table()) if run.run_id == result.run_id], "nothing is left"
    assert (result.problem is None) is bool(result.measured.ranks) and result.took_s < time.monotonic() - began_s + 1
    return result


#: What a launch does, in short: it writes ``steps`` into its record, or the facts of a rank without any.
CHILD = """
import json, os, pathlib, signal, sys, time
def steps(number, **facts):
    attempt = pathlib.Path(sys.argv[1], "node-0", "attempt-0")
    attempt.mkdir(parents=True)
    lines = [[step, 1e9 + step, 1, *[1e5] * 6, facts.get("samples", 8), 1 << 20, None] for step in range(1, number + 1)]
    found = dict(severity="warning", what="x", why="y", fix="z", where=[])
    findings = [dict(found, code=code) for code in ("replicas-differ", "hung")]
    pathlib.Path(sys.argv[1], "node-0", "observed.json").write_text(json.dumps({"schema": 1, "findings": findings}))
    (attempt / "rank-0.phases.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in (facts, *lines)))
def fails(what):
    diagnosis = {"code": "script-exception", "certainty": "observed", "what": what, "why": "it raised", "fixes": []}
    told = {"schema": 1, "run_id": "x", "host": "", "node": 0, "state": "failed", "exit_status": 1, "ended_s": 1e9}
    pathlib.Path(sys.argv[1], "outcome.json").write_text(json.dumps({**told, "diagnosis": diagnosis}))
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("does", "ending", "code", "says"),
    [
        ("steps(200); time.sleep(60)", "measured", "", ""),
        ("steps(200, samples=None); time.sleep(60)", "measured", "", ""),
        ("steps(6)", "ended", "trial-ended-early", "ended after 6 steps, too few … or `--steps 5`"),
        ("", "ended", "trial-ended-early", "ended after 0 steps … `ddplaunch.step(samples=…)`"),
        ("steps(6); sys.exit(4)", "failed", "trial-failed", "failed after 6 steps … nothing in its output … explain"),
        ("steps(30); fails('Errno 18')", "failed", "trial-failed", "failed after 30 steps: Errno 18 it raised"),
        (f"steps(6); fails({os.strerror(18)!r})", "failed", "trial-failed", "cross-device … only root can rename a"),
        ("sys.exit(4)", "refused", "trial-refused", "the launch is refused … `ddplaunch plan 1 … -- train.py`"),
        ("sys.exit(2)", "refused", "trial-refused", "the launch is refused"),
        ("sys.exit(1)", "failed", "trial-failed", "failed after 0 steps"),
        ("steps(0, empty_epochs=16); time.sleep(50)", "timed-out", "trial-without-samples", "`drop_last=True`"),
        ("time.sleep(60)", "timed-out", "trial-without-steps", "0 steps in … `--timeout 30m` waits longer"),
        ("os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)", "interrupted", "trial-interrupted", "after 0 steps"),
    ],
)
def test_how_a_trial_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, does: str, ending: str, code: str, says: str
) -> None:
    started: list[list[str]] = []

    def start(words: list[str], report: Path, *, inside: list[str]) -> subprocess.Popen[bytes]:
        started.append(words)
        assert report.parent.is_dir()
        record = Path(words[words.index("--run-dir") + 1], "runs", words[words.index("--run-id") + 1])
        return subprocess.Popen([*inside, sys.executable, "-SE", "-c", CHILD + does, str(record)])

    monkeypatch.setattr("ddplaunch.cli.trials.trial.start_run", start)
    over = trial(timeout_s=2 if code == "trial-without-steps" else 60)
    assert over.ending == ending and (over.problem.code if over.problem else "") == code
    assert replace(over, effective_batch=8).samples_per_s == (None if code else pytest.approx(80))
    assert over.samples_per_s == (None if code or "None" in does else pytest.approx(80)), "by the samples alone"
    assert [finding.code for finding in over.observed] == ["replicas-differ"] * does.startswith("steps")
    told = "" if over.problem is None else f"{over.problem.what} {over.problem.why} {over.problem.fix}"
    assert all(part in told for part in says.split(" … ")), told
    ((*words, script),) = started
    assert words[:3] == ["run", "1x1", "--run-id"] and words[4] == "--phases" and script == "train.py"
    assert f"{TRIAL}={words[3].replace('.', '/')}" in words and "--start" in words
    assert not {"9m", "--verbose"} & {*words} and words.count("--phases") == 1, "what a trial decides for itself"
