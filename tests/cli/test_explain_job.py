"""``explain`` asked about a Slurm job by its number: its newest run, its log, and what Slurm remembers of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.values.codec import plain
from tests.cli.cli_calls import Call
from tests.planning.test_submit import SCONTROL, put_in_front
from tests.records.fake_runs import outcome, record

CUT = "rank 0: epoch 1\nslurmstepd: error: *** STEP 12.0 ON vn1 CANCELLED AT 2026-11-21T11:21:58 ***\n"


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Slurm say that every job reached its time limit."""
    said = SCONTROL.format(state="TIMEOUT", reason="TimeLimit", code="0:15")
    put_in_front(tmp_path / "bin", monkeypatch, scontrol=f"cat <<'END'\n{said}END")


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("word", ["12", "slurm-12", "slurm-12.out"])
def test_a_log_that_was_cut_off_is_explained_by_what_slurm_remembers(call: Call, folder: Path, word: str) -> None:
    (folder / "slurm-12.out").write_text(CUT)
    said = call("explain", word)
    assert said.status == 1 and "error[time-limit]: job 12 reached its time limit" in said.out
    assert "evidence: scontrol show job 12: JobState=TIMEOUT Reason=TimeLimit" in said.out


def test_a_setup_that_failed_is_no_success(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = SCONTROL.format(state="FAILED", reason="NonZeroExitCode", code="127:0")
    put_in_front(folder / "bin", monkeypatch, scontrol=f"cat <<'END'\n{said}END")
    (folder / "slurm-12.out").write_text("slurm_script: line 9: module: command not found\n")
    said = " ".join(call("explain", "12").out.split())
    assert "error[unknown]: job 12 ended with exit code 127, and no failure of a run is recorded" in said
    assert "evidence: slurm-12.out: slurm_script: line 9: module: command not found" in said
    (folder / "slurm-12.out").write_text(CUT)
    assert "the job was cancelled: STEP 12.0" in " ".join(call("explain", "12").out.split()), "the log says more"


@pytest.mark.usefixtures("answers")
def test_the_newest_run_of_a_job_comes_before_its_log_and_a_number_alone_is_no_part_of_an_id(
    call: Call, folder: Path
) -> None:
    runs = folder / ".ddplaunch/runs"
    for age, name in enumerate(("slurm-12.0-r1", "slurm-12.0", "slurm-120.0", "20261212-120000-abcdef")):
        (runs / name).mkdir(parents=True)
        (runs / name / "run.json").write_text(json.dumps({"schema": 1, "run_id": name}))
        os.utime(runs / name / "run.json", (1_000_000 - age, 1_000_000 - age))
    assert json.loads(call("explain", "12", "--json").out)["run_id"] == "slurm-12.0-r1"
    said = call("explain", "999")
    assert said.status == 2 and "`999` is not a code, run or file" in said.err


def recorded(folder: Path, run_id: str, **environment: str) -> None:
    """Write the record of a run that failed."""
    place = record(folder / ".ddplaunch", run_id, 1.0, environment=environment)
    outcome(place, "failed", exit_status=1, diagnosis=plain(Diagnosis("out-of-gpu-memory", "observed", "", "", (), 0)))


def test_an_element_of_an_array_by_any_of_its_names_and_an_array_by_none(call: Call, folder: Path) -> None:
    for number, (run_id, task) in enumerate((("slurm-4.0", "0"), ("slurm-5.0", "1"), ("slurm-3.0", "2"))):
        recorded(folder, run_id, SLURM_ARRAY_JOB_ID="3", SLURM_ARRAY_TASK_ID=task)
        os.utime(folder / ".ddplaunch/runs" / run_id / "run.json", (1000 + number, 1000 + number))
    named = {"3_0": "slurm-4.0", "3_1": "slurm-5.0", "4": "slurm-4.0", "slurm-3_2": "slurm-3.0"}
    for word, run_id in named.items():
        assert json.loads(call("explain", word, "--json").out)["run_id"] == run_id
    said = call("explain", "3")
    assert said.status == 2 and "3 runs could be meant: `slurm-3.0`, `slurm-5.0`, `slurm-4.0`" in said.err
    assert call("explain", "3_7").status == 2 and call("explain", "3_[0-1]").status == 2


def test_the_log_of_a_job_is_explained_by_the_run_that_it_shows(call: Call, folder: Path) -> None:
    (folder / "job.out").write_text(f"ddplaunch slurm-7.0\n  run     train.py\n{CUT}")
    assert "the job was cancelled" in call("explain", "job.out").out
    recorded(folder, "slurm-7.0", SLURM_JOB_ID="7")
    assert "error[out-of-gpu-memory]" in call("explain", "job.out").out


REFUSED = """\
warning[cpus-short]: 2 processes on 1 of 2 CPUs
  why: a rank that waits for a CPU makes all others wait at the next collective
error[data-missing]: /data does not exist
  --> rank 3
  why: every rank would fail when it opens it
  fix: name the right path with `--data`; `ls /` shows what is
       there
       or: mount it

nothing was launched: 1 error. To launch all the same, add
  `--ignore data-missing`.
"""
ENDED = "srun: error: n1: task 0: Exited with exit code 4\nsrun: launch/slurm: _step_signal: Terminating StepId=7.0\n"


@pytest.mark.parametrize("after", ["", ENDED])
def test_a_launch_that_was_refused_in_a_job_is_explained_by_its_finding(call: Call, folder: Path, after: str) -> None:
    (folder / "slurm-7.out").write_text(f"module load cuda\n{REFUSED}{after}")
    for word in ("slurm-7.out", "7"):
        said = call("explain", word)
        assert said.status == 1 and said.out.startswith("error[data-missing]: /data does not exist\n"), said.out
        assert "\n  --> rank 3\n" in said.out, "the log is no host"
        assert "fix: name the right path with `--data`; `ls /` shows what is there\n       or: mount it\n" in said.out
    (folder / "slurm-8.out").write_text(REFUSED.replace("error[", "fault["))
    assert "data-missing" not in call("explain", "slurm-8.out").out.splitlines()[0]
