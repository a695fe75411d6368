"""Trials: where their scripts write, and real ones on the CPU that are measured, end early, fail and never step."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ddplaunch.agent.rank_site.ddplaunch_marks import redirect_writers
from ddplaunch.cli.prepare import prepare
from ddplaunch.cli.target import parse_target
from ddplaunch.cli.trials.measured_steps import Measure
from ddplaunch.cli.trials.trial import Change, Trial, Trials
from ddplaunch.cli.trials.trial_place import TrialPlace, files_here, prepare_place
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.planning.flag import DeviceWord
from ddplaunch.planning.options import Options
from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, ScriptReport
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.cli.cli_calls import Call, call

__all__ = ["call"]

BASE = Path("/base")
OUT = "/base/trials/x/output"


def place_of(words: list[str], report: ScriptReport | Unavailable) -> TrialPlace:
    return prepare_place(BASE, "x", words, report)


def declared(*flags: str, kind: str | None = None) -> DeclaredOption:
    return DeclaredOption(flags, DeclaredAt("train.py", 3), kind=kind)


@pytest.mark.parametrize(
    ("options", "words", "expected"),
    [
        (["--output-dir"], ["train.py", "--lr", "1"], ["train.py", "--output-dir", f"{OUT}/output-dir", "--lr", "1"]),
        (["--output_dir"], ["train.py", "--output_dir", "runs/a"], ["train.py", "--output_dir", f"{OUT}/output-dir"]),
        (["--out-dir"], ["train.py", "--out-dir=runs"], ["train.py", f"--out-dir={OUT}/out-dir"]),
        (["--save"], ["train.py"], ["train.py"]),
        (["--save"], ["train.py", "--save", "a/model.pt"], ["train.py", "--save", f"{OUT}/model.pt"]),
        (["--data-dir", "--lr", "--checkpoint-path"], ["train.py", "--data-dir", "x"], ["train.py", "--data-dir", "x"]),
        (["--output-dir"], ["-m", "pkg.train"], ["-m", "pkg.train", "--output-dir", f"{OUT}/output-dir"]),
        (
            ["--output-dir", "--logging-dir"],
            ["train.py"],
            ["train.py", "--output-dir", f"{OUT}/output-dir", "--logging-dir", f"{OUT}/logging-dir"],
        ),
    ],
)
def test_where_a_script_writes(options: list[str], words: list[str], expected: list[str]) -> None:
    report = ScriptReport("train.py", tuple(declared(each) for each in options))
    assert place_of(words, report).script == tuple(expected)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("path to output folder (default: none, current dir)", ["train.py", "--output", f"{OUT}/output"]),
        ("Output directory", ["train.py", "--output", f"{OUT}/output"]),
        ("where to write", ["train.py"]),
        ("output file, or the directory of it", ["train.py"]),
    ],
)
def test_the_help_of_an_option_says_that_it_is_a_folder(said: str, expected: list[str]) -> None:
    report = ScriptReport("train.py", (replace(declared("--output"), help=said),))
    assert place_of(["train.py"], report).script == tuple(expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["--output_dir", f"{OUT}/output-dir"]),
        (["--output_dir", "out"], ["--output_dir", f"{OUT}/output-dir"]),
        (
            ["--output-dir=out", "--logging_dir", "logs"],
            [f"--output-dir={OUT}/output-dir", "--logging_dir", f"{OUT}/logging-dir"],
        ),
        (["args.json"], ["args.json"]),  # all that its parser reads then
    ],
)
def test_where_a_trainer_of_hugging_face_writes(tmp_path: Path, words: list[str], expected: list[str]) -> None:
    """Its arguments have `--output_dir`, which no line of the script declares."""
    (tmp_path / "train.py").write_text(
        "from transformers import HfArgumentParser, TrainingArguments\nparser = HfArgumentParser(TrainingArguments)\n"
        "json = 'args.json' in sys.argv\n"
        "args = parser.parse_json_file('args.json') if json else parser.parse_args_into_dataclasses()\n"
    )
    (tmp_path / "args.json").write_text('{"output_dir": "out"}')
    report = read_script(tmp_path / "train.py", tmp_path, args=words)
    assert place_of(["train.py", *words], report).script == ("train.py", *expected)


def test_trackers_write_into_the_trials_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    variables = dict(place_of(["train.py"], Unavailable("not read")).variables)
    assert variables["WANDB_DIR"] == "/base/trials/x/trackers" and variables["WANDB_MODE"] == "offline"
    assert variables["MLFLOW_TRACKING_URI"] == "file:///base/trials/x/trackers/mlruns"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "WANDB_MODE" not in dict(place_of(["train.py"], Unavailable("not read")).variables)


def test_a_trials_folders_are_made_and_removed(tmp_path: Path) -> None:
    report = ScriptReport("train.py", (declared("--output-dir"), declared("--save")))
    place = prepare_place(tmp_path / ".ddplaunch", "x", ["train.py", "--save", "a/b.pt"], report)
    place.make()
    assert sorted(path.name for path in (place.folder / "output").iterdir()) == ["output-dir"]
    other = prepare_place(tmp_path / ".ddplaunch", "y", ["train.py"], report)
    other.make()
    place.remove()
    assert not place.folder.exists() and other.folder.exists()
    other.remove()
    assert not (tmp_path / ".ddplaunch" / "trials").exists()


def test_files_in_the_working_directory_without_records_and_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "runs/a", "records/run.json", "__pycache__/x.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files_here(Path("records")).keys() == {f"{tmp_path}/train.py", f"{tmp_path}/runs/a"}


def test_summary_writers_write_into_the_trials_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SummaryWriter:
        def __init__(self, log_dir: str | None = None, comment: str = "") -> None:
            self.seen = log_dir, comment

    module = ModuleType("torch.utils.tensorboard.writer")
    vars(module)["SummaryWriter"] = SummaryWriter
    monkeypatch.setitem(sys.modules, module.__name__, module)
    folder = tmp_path / "trackers" / "tensorboard"
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder))
    monkeypatch.delenv("DDPLAUNCH_TRIAL", raising=False)
    redirect_writers()
    assert SummaryWriter("logs/a").seen == ("logs/a", ""), "no trial"
    monkeypatch.setenv("DDPLAUNCH_TRIAL", "scale-x/1")
    redirect_writers()
    assert SummaryWriter().seen == (f"{folder}/runs", "")
    assert SummaryWriter("logs/a", comment="b").seen == (f"{folder}/a", "b")
    assert SummaryWriter(log_dir=f"{tmp_path}/output/x").seen == (f"{tmp_path}/output/x", "")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["scale", "1", "--steps", "0"], "`--steps 0` is too small"),
        (["scale", "1", "--seconds", "0"], "`--seconds 0` is too small"),
        (["fit", "1", "--steps", "-4"], "`--steps -4` is too small"),
        (["fit", "1", "--trials", "0"], "`--trials 0` is too small"),
        (["fit", "1", "--warmup-steps", "-1"], "`--warmup-steps -1` is too small"),
        (["fit", "2x2"], "`fit` tries batches on one machine, and this launch has several"),
        (["scale", "1,,2"], "`` is not a size"),
        (["scale", f"1,{4 * len(os.sched_getaffinity(0)) + 1}"], f"size {4 * len(os.sched_getaffinity(0)) + 1} is too"),
        (["scale", "1,2", "--gpus", "0"], "`--device cpu` contradicts `--gpus`"),
        (["fit", "1", "--gpus", "0"], "`--device cpu` contradicts `--gpus`"),
        (["scale", "1", "--lr", "0.1", "--base-lr", "0.1"], "`--lr 0.1` and `--base-lr 0.1` are both given"),
        (["fit", "1", "--lr", "0.1", "--base-lr", "0.1"], "`--lr 0.1` and `--base-lr 0.1` are both given"),
    ],
)
def test_what_measures_nothing_is_refused_before_a_trial(folder: Path, call: Call, words: list[str], what: str) -> None:
    said = call(*words, "--device", "cpu", "--", "train.py")
    assert said.status == 2 and said.err.startswith("error[") and what in said.err, said.err
    assert "\n  why: " in said.err and "\n  fix: " in said.err
    assert not (folder / ".ddplaunch").exists()


TRAIN = """
import argparse, os, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--output-dir", default="out")
parser.add_argument("--steps", type=int, default=100000)
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--batch-size", type=int, default=4)
arguments = parser.parse_args()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
os.makedirs(arguments.output_dir, exist_ok=True)
open(os.path.join(arguments.output_dir, "log"), "w").write("x")
open(f"beside-{os.environ['RANK']}", "w").write(os.environ["DDPLAUNCH_TRIAL"])
done = 0
while done < arguments.steps:
    for (batch,) in DataLoader(TensorDataset(torch.ones(64, 4)), arguments.batch_size):
        if done == arguments.steps:
            break
        if done == arguments.fail_at:
            raise ValueError("a wrong sample")
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        done += 1
        time.sleep(0.005)
dist.barrier()
os._exit(0)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trial(*words: str, processes: int = 2, timeout_s: float = 120, run_words: tuple[str, ...] = ()) -> Trial:
    flag = Source("flag", "--device")
    device: Resolved[DeviceWord] = Resolved("cpu", flag)
    measure = Measure(steps=30, seconds=None, timeout_s=timeout_s)
    script = ["train.py", *words]
    first = prepare(Options(device=device), parse_target(script))
    said = {"device": device, "start": Resolved("warm", flag), "timeout": Resolved("9m", flag)}
    change = Change(str(processes), str(processes), processes, said, run_words)
    results: list[Trial] = []

    def series() -> Generator[Change, Trial, None]:
        results.append((yield change))

    assert Trials("scale", first, script, None, measure, keep=False).run_all(series()) is False
    (result,) = results
    assert not [run for run in runs_in(process_table()) if run.run_id == result.run_id], "nothing is left"
    assert (result.problem is None) is bool(result.measured.ranks)
    return result


@pytest.mark.slow
def test_a_measured_trial_leaves_nothing_but_its_record(folder: Path) -> None:
    result = trial()
    measured = result.measured
    assert result.ending == "measured" and result.problem is None, result.findings
    assert [(rank.rank, rank.steps) for rank in measured.ranks] == [(0, 30), (1, 30)], "as many as asked for"
    assert measured.samples_per_s == pytest.approx(8 / measured.ranks[0].mean_s, rel=0.3)
    assert measured.ranks[0].step_s >= 0.005 and measured.peak_bytes
    assert set(result.changed_files) == {str(folder / f"beside-{rank}") for rank in (0, 1)}
    assert (folder / "beside-0").read_text() == result.run_id.replace(".", "/")
    assert sorted(path.name for path in folder.iterdir()) == [".ddplaunch", "beside-0", "beside-1", "train.py"]
    assert (result.record / "outcome.json").exists() and not (folder / ".ddplaunch" / "trials").exists()


@pytest.mark.slow
def test_what_keeps_a_trial_from_being_measured(folder: Path) -> None:
    short = trial("--steps", "6")
    assert short.ending == "ended" and 4 <= short.measured.steps <= 6
    enough = trial("--steps", "40")
    assert enough.problem is None and enough.measured.ranks
    failed = trial("--fail-at", "3")
    assert failed.ending == "failed" and failed.diagnosis is not None and failed.measured.ranks == ()
    assert failed.diagnosis.code == "script-exception" and "a wrong sample" in failed.diagnosis.what
    late = trial("--fail-at", "30")
    assert late.ending == "failed" and late.measured.steps >= 25 and late.problem is not None
    assert late.problem.code == "trial-failed"
    none = trial("--steps", "0", processes=1)
    assert none.ending == "ended" and none.measured.steps == 0
    (folder / "train.py").write_text("import time\ntime.sleep(600)\n")
    assert trial(processes=1, timeout_s=6).ending == "timed-out"
    refused = trial(run_words=("--data", "/no/such/data"))
    assert refused.ending == "refused"
    assert "data-missing" in [each.code for each in refused.findings]
