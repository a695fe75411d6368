"""Trials: where their scripts write, and real ones on the CPU that are measured, end early, fail and never step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ddplaunch.agent.rank_site import ddplaunch_marks
from ddplaunch.agent.rank_site.ddplaunch_marks import redirect_writers
from ddplaunch.cli.trials.trial_orders import (
    Measuring,
    TrialOrder,
    WrittenOutside,
    command_of,
    make_folders,
    places_of,
    redirected,
)
from ddplaunch.cli.trials.trial_runs import TrialResult, run_trial
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, ScriptReport
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.cli.cli_calls import Call, call
from tests.records.fake_runs import StartRun, start_run

__all__ = ["call", "start_run"]

_OUT = Path("/out")
OTHERS = "0123"
GROUP = f"scale-test-{os.getpid()}"  # that nobody else on the machine has


def declared(*flags: str, kind: str | None = None) -> DeclaredOption:
    return DeclaredOption(flags, DeclaredAt("train.py", 3), kind=kind)


@pytest.mark.parametrize(
    ("options", "words", "expected"),
    [
        (["--output-dir"], ["train.py", "--lr", "1"], ["train.py", "--output-dir", "/out", "--lr", "1"]),
        (["--output_dir"], ["train.py", "--output_dir", "runs/a"], ["train.py", "--output_dir", "/out"]),
        (["--out-dir"], ["train.py", "--out-dir=runs"], ["train.py", "--out-dir=/out"]),
        (["--save"], ["train.py"], ["train.py"]),
        (["--save"], ["train.py", "--save", "a/model.pt"], ["train.py", "--save", "/out/model.pt"]),
        (["--data-dir", "--lr", "--checkpoint-path"], ["train.py", "--data-dir", "x"], ["train.py", "--data-dir", "x"]),
        (["--output-dir"], ["-m", "pkg.train"], ["-m", "pkg.train", "--output-dir", "/out"]),
        (["--output-dir"], ["train.py", "--o={trial_dir}/a"], ["train.py", "--o=/out/a"]),
        (
            ["--output-dir", "--logging-dir"],
            ["train.py"],
            ["train.py", "--output-dir", "/out/output-dir", "--logging-dir", "/out/logging-dir"],
        ),
    ],
)
def test_where_a_script_writes(options: list[str], words: list[str], expected: list[str]) -> None:
    report = ScriptReport("train.py", tuple(declared(each) for each in options))
    assert redirected(words, _OUT, report) == tuple(expected)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("path to output folder (default: none, current dir)", ["train.py", "--output", "/out"]),
        ("Output directory", ["train.py", "--output", "/out"]),
        ("where to write", ["train.py"]),
        ("output file, or the directory of it", ["train.py"]),
    ],
)
def test_the_help_of_an_option_says_that_it_is_a_folder(said: str, expected: list[str]) -> None:
    report = ScriptReport("train.py", (replace(declared("--output"), help=said),))
    assert redirected(["train.py"], _OUT, report) == tuple(expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["--output_dir", "/out/output-dir"]),
        (["--output_dir", "out"], ["--output_dir", "/out/output-dir"]),
        (
            ["--output-dir=out", "--logging_dir", "logs"],
            ["--output-dir=/out/output-dir", "--logging_dir", "/out/logging-dir"],
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
    assert redirected(["train.py", *words], _OUT, report) == ("train.py", *expected)


def test_the_command_of_a_trial(tmp_path: Path) -> None:
    flag = Source("flag", "--batch-size")
    said = {"batch_size": Resolved(8, flag), "timeout": Resolved("9m", flag), "max_restarts": Resolved(3, flag)}
    order = TrialOrder("scale-x", "2x4", "2x4", said, ("train.py", "--steps", "9"), ("--profile", "big"))
    words = command_of(order, places_of(order, {}, tmp_path), Unavailable("not read"))
    assert words[words.index("run") :][:6] == ["run", "2x4", "--run-id", "scale-x.2x4", "--phases", "--profile"]
    assert (
        "DDPLAUNCH_TRIAL=scale-x/2x4" in words
        and f"WANDB_DIR={tmp_path}/.ddplaunch/trials/scale-x.2x4/trackers" in words
    )
    assert words[-6:] == ["--batch-size", "8", "--", "train.py", "--steps", "9"]
    assert "--timeout" not in words and "--max-restarts" not in words


def test_folders_are_there_for_the_files_that_a_script_is_told_to_write(tmp_path: Path) -> None:
    words = ("train.py", "--save={trial_dir}/models/last.pt", "--logs", "{trial_dir}/logs")
    order = TrialOrder("scale-x", "1", "1", {}, words)
    places = places_of(order, {}, tmp_path)
    make_folders(command_of(order, places, Unavailable("not read")), places)
    assert sorted(path.name for path in places.output.iterdir()) == ["logs", "models"]
    assert not list((places.output / "models").iterdir())


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


def test_what_ranks_write_elsewhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    elsewhere.mkdir()
    here.mkdir()
    (elsewhere / "old").write_text("")
    os.utime(elsewhere / "old", (1e9, 1e9))
    monkeypatch.chdir(here)
    places = places_of(TrialOrder("scale-x", "1", "1", {}, ("train.py",)), {}, here)
    outside = WrittenOutside(TrialOrder("scale-x", "1", "1", {}, ("train.py",)), places)
    attempt = places.record / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    code = f"""
import os, sys, types
sys.path.insert(0, {str(Path(ddplaunch_marks.__file__).parent)!r})
import ddplaunch_marks
torch = types.ModuleType("torch.serialization")
torch.save = lambda obj, f: os.system(f"echo {{obj}} > {{f}}")  # a file that Python does not open
sys.modules["torch.serialization"] = torch
ddplaunch_marks.note_writes({str(attempt / "rank-0.written")!r})
open("log.txt", "w").close()
open({str(elsewhere / "log.txt")!r}, "a").close()
open({str(elsewhere / "old")!r}).close()
open({str(elsewhere / "gone")!r}, "w").close()
os.remove({str(elsewhere / "gone")!r})
open({str(elsewhere / "part")!r}, "wb").close()
os.replace({str(elsewhere / "part")!r}, {str(elsewhere / "whole")!r})
open({str(attempt / "own")!r}, "w").close()
os.makedirs({str(elsewhere / "a" / "b")!r})
os.system({"echo > " + str(elsewhere / "a" / "b" / "weights")!r})
torch.save("x", {str(elsewhere / "model.pt")!r})
"""
    for trial in ({}, {"DDPLAUNCH_TRIAL": "scale-x/1"}):
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **trial}, check=True)
        names = [os.path.relpath(path, tmp_path) for path in outside.found()]
        assert names[-1] == "here/log.txt" and "elsewhere/old" not in names and len(names) == (5 if trial else 1), names
        shutil.rmtree(elsewhere / "a")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["scale", "1", "--steps", "0"], "`--steps 0` measures nothing"),
        (["scale", "1", "--seconds", "0"], "`--seconds 0` measures nothing"),
        (["fit", "1", "--steps", "-4"], "`--steps -4` measures nothing"),
        (["fit", "1", "--trials", "0"], "`--trials 0` measures nothing"),
        (["fit", "1", "--warmup-steps", "-1"], "`--warmup-steps` is -1, less than 0"),
        (["fit", "2x2"], "`fit` tries batches on one machine, and this launch has several"),
        (["scale", "1,,2"], "`1,,2` names an empty size"),
        (["scale", f"1,{4 * len(os.sched_getaffinity(0)) + 1}"], f"size {4 * len(os.sched_getaffinity(0)) + 1} is too"),
        (["fit", f"{4 * len(os.sched_getaffinity(0)) + 1}"], "processes is too much for"),
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


def trial(*words: str, processes: str = "2", timeout_s: float = 120, run_words: tuple[str, ...] = ()) -> TrialResult:
    report = ScriptReport("train.py", (declared("--output-dir"),))
    measuring = Measuring(seconds=1.0, timeout_s=timeout_s)
    said = {"device": Resolved("cpu", Source("flag", "--device")), "start": Resolved("warm", Source("flag", "--start"))}
    order = TrialOrder(GROUP, processes, processes, said, ("train.py", *words), run_words, measuring=measuring)
    result = run_trial(order, report)
    left = [run for run in runs_in(process_table()) if run.run_id == order.run_id and run.launch != OTHERS]
    assert not left, "nothing is left"
    return result


@pytest.mark.slow
def test_a_measured_trial_leaves_nothing_but_its_record(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, start_run: StartRun
) -> None:
    """A run of the same id, of another directory, lives on."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    other = start_run("x", ranks=1, cwd=elsewhere, DDPLAUNCH_RUN_ID=f"{GROUP}.2", DDPLAUNCH_LAUNCH=OTHERS)
    shutil.rmtree(folder / "bin")
    result = trial()
    assert other.launcher.poll() is None and len(other.session_pids) == 1
    assert result.status == "measured" and result.world_size == 2, result.findings
    assert [rank.rank for rank in result.ranks] == [0, 1] and all(rank.steps >= 5 for rank in result.ranks)
    assert result.step_s and result.step_s >= 0.005 and result.samples_per_s and result.peak_bytes
    assert result.samples_per_s == pytest.approx(8 / result.ranks[0].mean_s, rel=0.3)
    assert set(result.outside) == {str(folder / f"beside-{rank}") for rank in (0, 1)}
    assert (folder / "beside-0").read_text() == f"{GROUP}/2"
    assert sorted(path.name for path in folder.iterdir()) == [".ddplaunch", "beside-0", "beside-1", "train.py"]
    assert (result.record / "outcome.json").exists() and not (folder / ".ddplaunch" / "trials").exists()


@pytest.mark.slow
def test_what_keeps_a_trial_from_being_measured(folder: Path) -> None:
    short = trial("--steps", "6")
    assert short.status == "ended" and short.exit_status == 0 and 4 <= short.steps_seen <= 6
    enough = trial("--steps", "40")
    assert enough.status == "measured" and enough.exit_status == 0 and enough.step_s
    failed = trial("--fail-at", "3")
    assert failed.status == "failed" and failed.diagnosis is not None and failed.ranks == ()
    assert failed.diagnosis.code == "script-exception" and "a wrong sample" in failed.diagnosis.what
    none = trial("--steps", "0", processes="1")
    assert none.status == "ended" and none.steps_seen == 0
    (folder / "train.py").write_text("import time\ntime.sleep(600)\n")
    assert trial(processes="1", timeout_s=6).status == "no-steps"
    refused = trial(run_words=("--data", "/no/such/data"))
    assert refused.status == "refused" and refused.exit_status == 4
    assert "data-missing" in [each.code for each in refused.findings]
