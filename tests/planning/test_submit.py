"""``ddplaunch submit`` for Slurm: the batch script that people read, and what is refused before there is one."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import ddplaunch.cli.commands.launch.submit
from ddplaunch.hosts.slurm.job_reasons import diagnosis, first_state, waits_for
from ddplaunch.hosts.slurm.programs import JobState, parse_job, parse_sacct, words
from ddplaunch.planning.job.submission import job_name, parse_time
from ddplaunch.ui.explain_view import as_finding
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.submit_view import directive_text, state_text
from ddplaunch.ui.terminal import Terminal
from tests.cli.cli_calls import Call
from tests.conftest import Golden

Programs = Callable[..., None]

SCONTROL = """\
JobId=12 JobName=train
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   RunTime=00:00:02 TimeLimit=00:05:00 TimeMin=N/A
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}
   NodeList=vn[1-2]
   Command=(null)
   WorkDir=/home/me/a JobState=FAILED b
   StdOut=/home/me/a JobState=FAILED b/slurm-12.out
"""


@pytest.fixture(autouse=True)
def one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name ddplaunch alike on every machine."""
    monkeypatch.setattr(ddplaunch.cli.commands.launch.submit, "program", lambda: ("/opt/env/bin/ddplaunch",))


def put_in_front(place: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    """Write shell programs of these names into ``place``, which comes first on PATH."""
    place.mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    for name, text in texts.items():
        (place / name).write_text(f"#!/bin/bash\n{text}\n")
        (place / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """``programs(srun="exit 1")`` puts shell programs of these names in front of PATH."""
    return partial(put_in_front, tmp_path / "bin", monkeypatch)


def asked_of(state: str, reason: str = "None") -> str:
    """Return a scontrol that tells of job 12."""
    return f"cat <<'END'\n{SCONTROL.format(state=state, reason=reason, code='0:0')}END"


FULL = (
    *("--nodes", "2", "--gpus-per-node", "4", "--time", "24:00:00", "--partition", "gpu", "--mem", "200G"),
    *("--cpus-per-task", "32", "--sbatch-arg=--account=lab", "--sbatch-arg=--constraint='h100&nvlink'"),
    *("--sbatch-arg", "--exclude node7", "--sbatch-arg=--comment='it\"s 5% \\ #1'"),
    *("--setup", "module load cuda/12.8", "--setup", "source ~/env.sh", "--requeue", "--grace", "120"),
    *("--batch-size", "8", "--base-lr", "1e-4", "--env", "NOTE=a b", "--no-stacks", "--profile", "big"),
)


def test_every_option_has_its_place_in_the_script(call: Call, folder: Path, golden: Golden) -> None:
    (folder / "ddplaunch.toml").write_text("[profiles.big]\nbase-warmup = 4\n")
    said = call("submit", *FULL, "--dry-run", "--", "train.py", "--epochs", "20", "it's", "$HOME", "a\nb")
    assert (said.status, said.err) == (0, "")
    golden("submit-full", said.out)
    said = call("submit", "4", "--dry-run", "--", "train.py")
    assert said.status == 0
    golden("submit-short", said.out)
    # directives are quoted only where Slurm needs it
    assert directive_text("-Ch100&nvlink") == '-C"h100&nvlink"'
    assert "\n" not in directive_text("--comment=a\nrm -rf ~")


def test_the_script_is_shell_and_hands_every_argument_on(call: Call, tmp_path: Path, programs: Programs) -> None:
    hostile = ["a b", "$HOME", "it's", '"', "`id`", "a\nb", "\\", "*", "é"]
    text = call("submit", "2x4", "--setup", "export X=1", "--dry-run", "--", "train.py", *hostile).out
    programs(srun='shift 3; printf "%s\\0" "$@" > words')
    subprocess.run(["bash", "-c", text], cwd=tmp_path, check=True)
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    assert words == ["/opt/env/bin/ddplaunch", "run", "4", "--", "train.py", *hostile]


@pytest.mark.parametrize(("limit", "requeued"), [("0:1:6", True), ("24:00:00", False)])
def test_a_failure_at_the_time_limit_is_requeued_and_an_early_one_is_not(
    call: Call, tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, limit: str, requeued: bool
) -> None:
    text = call("submit", "2", "--time", limit, "--grace", "1", "--requeue", "--dry-run", "--", "train.py").out
    programs(srun="exit 143", scontrol='echo "$@" > asked')
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, check=False)
    assert done.returncode == 143
    assert (tmp_path / "asked").exists() == requeued


def test_srun_gets_nothing_of_the_job_in_which_it_was_submitted(
    call: Call, tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ("submit", "2", "--mem", "9G", "--cpus-per-task", "4", "--dry-run", "--", "train.py")
    assert "unset" not in call(*typed).out, "outside of a job nothing is inherited"
    for name in ("JOB_ID", "CPU_BIND", "TRES_PER_TASK", "MEM_PER_NODE", "CPUS_PER_TASK"):
        monkeypatch.setenv(f"SLURM_{name}", "7")
    programs(srun='env > seen; echo "$@" > typed')
    subprocess.run(["bash", "-c", call(*typed).out], cwd=tmp_path, check=True)
    assert re.findall("SLURM_.*=7", (tmp_path / "seen").read_text()) == ["SLURM_JOB_ID=7"]
    assert "--cpus-per-task=4" in (tmp_path / "typed").read_text(), "srun is told what the job itself asked for"


def test_a_setup_line_that_fails_ends_the_job(call: Call, tmp_path: Path, programs: Programs) -> None:
    text = call("submit", "2", "--setup", "false", "--dry-run", "--", "train.py").out
    programs(srun="touch started")
    assert subprocess.run(["bash", "-c", text], cwd=tmp_path, check=False).returncode == 1
    assert not (tmp_path / "started").exists()


def test_a_missing_script_and_a_missing_sbatch_are_findings(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error[script-not-found]" in call("submit", "2", "--", "nowhere.py").err
    assert "error[script-missing]" in call("submit", "2").err
    monkeypatch.setenv("PATH", "/nowhere")
    answer = call("submit", "2", "--", "train.py")
    assert answer.status == 4 and "error[sbatch-missing]" in answer.err


@pytest.mark.parametrize(
    ("spoken", "fix"),
    [
        ("Batch job submission failed: Invalid partition name specified", "sinfo -s"),
        ("Batch job submission failed: Requested node configuration is not available", "%G"),
        ('unrecognized option "--x"', "sbatch --help"),
        ("", "--dry-run"),
    ],
)
def test_what_sbatch_refuses_is_told_in_its_words_with_a_fix(
    call: Call, programs: Programs, spoken: str, fix: str
) -> None:
    more = '\nTry "sbatch --help" for more' if "option" in spoken else ""
    text = f"sbatch: error: a warning of it\nsbatch: error: {spoken}{more}" if spoken else ""
    programs(sbatch=f"cat >/dev/null; printf '%s' '{text}' >&2; exit 1")
    answer = call("submit", "2", "--", "train.py")
    told = " ".join(answer.err.split())
    what = spoken.removeprefix("Batch job submission failed: ") or "it printed no message"
    assert answer.status == 4 and answer.out == ""
    assert f"error[sbatch-failed]: sbatch refused the job: {what}" in told and fix in told


def test_a_job_is_submitted_with_its_id_on_stdout(call: Call, folder: Path, programs: Programs) -> None:
    programs(sbatch='cat > got; echo "$@" > options; echo "12;cluster"', scontrol=asked_of("RUNNING"))
    answer = call("submit", "2x4", "--", "train.py")
    assert (answer.status, answer.out) == (0, "12\n")
    assert "submitted job 12: train.py on 2 nodes with 4 GPUs each\n  now     running on vn[1-2]\n" in answer.err
    assert "tail -F '/home/me/a JobState=FAILED b/slurm-12.out'" in answer.err and "scancel 12" in answer.err
    assert "#SBATCH --nodes=2" in (folder / "got").read_text()
    assert (folder / "options").read_text() == "--parsable\n"
    for array in ("--array=0-3", "-a 0-3"):  # every job of an array has a log of its own
        answer = call("submit", "2x4", "--sbatch-arg", array, "--", "train.py")
        assert "submitted array job 12" in answer.err and f"{folder}/slurm-12_INDEX.out" in answer.err
        assert "#SBATCH --output=slurm-%A_%a.out" in (folder / "got").read_text()


def test_a_job_that_can_never_start_is_taken_back(call: Call, folder: Path, programs: Programs) -> None:
    programs(
        sbatch="cat >/dev/null; echo 12",
        scontrol=asked_of("PENDING", "PartitionNodeLimit"),
        scancel='echo "$@" > cancelled',
    )
    answer = call("submit", "9x4", "--", "train.py")
    assert answer.status == 4 and "error[slurm-job-cannot-start]" in answer.err
    assert (folder / "cancelled").read_text() == "12\n"


@pytest.mark.parametrize(
    ("first", "patience_s", "then"),
    [("Priority", 60.0, "RUNNING"), ("Priority", -1.0, "PENDING"), ("Resources", 60.0, "PENDING")],
)
def test_a_job_is_looked_at_until_slurm_has(
    programs: Programs, tmp_path: Path, first: str, patience_s: float, then: str
) -> None:
    later = asked_of("RUNNING")
    programs(scontrol=f"if mkdir {tmp_path}/asked; then\n{asked_of('PENDING', first)}\nelse\n{later}\nfi")
    state = first_state("12", os.environ, patience_s)
    assert state is not None and state.state == then


def test_the_state_of_a_job_is_read_past_a_directory_that_looks_like_one() -> None:
    state = parse_job(SCONTROL.format(state="RUNNING", reason="None", code="0:0"))
    assert (state.state, state.reason, state.nodes) == ("RUNNING", "", "vn[1-2]")
    assert state.log == "/home/me/a JobState=FAILED b/slurm-12.out"
    assert parse_sacct("CANCELLED by 1000|n1") == JobState("CANCELLED", nodes="n1")


@pytest.mark.parametrize(
    ("reason", "why", "cured"),
    [
        ("PartitionNodeLimit", "fewer nodes", False),
        ("AssocMaxGRESPerJob", "the limit of GPUs for one job or node, of the account or QOS, is lower", False),
        ("QOSMaxNodePerJobLimit", "the limit of nodes for one job, of the account or QOS, is lower", False),
        ("QOSMaxJobsPerUserLimit", "it starts when other jobs end", True),
        ("AssocGrpCPUMinutesLimit", "hours are used up", True),
        ("ReqNodeNotAvail,_UnavailableNodes:vn[1-2]", "`sinfo -R`", True),
        ("Unheard", "", True),
    ],
)
def test_what_waiting_cures(reason: str, why: str, cured: bool) -> None:
    never = waits_for(reason, "never")
    assert (not never) is cured and why in (never or waits_for(reason))


def test_every_end_and_every_wait_reads_well(golden: Golden) -> None:
    found = [diagnosis("12", JobState(state, status="127")) for state in (*words()["ends"], "COMPLETED")]
    assert found[-1] is None, "Slurm had no part in it"
    waits = ("Resources", "Priority", "Dependency", "BeginTime", "JobHeldUser", "AssocGrpGRES", "PartitionConfig")
    shown = [finding_text(as_finding(each, None), Terminal(80)) for each in found if each is not None]
    shown += ["".join(f"{state_text(JobState('PENDING', reason))}\n" for reason in waits)]
    golden("slurm-ends", "\n".join(shown))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("24:00:00", 86400), ("2-0", 172800), ("1-12:30", 131400), ("1-00:00:01", 86401)],
)
def test_time_limits_in_slurms_spellings(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("text", "name"),
    [("src/My_Train.py", "my-train"), ("pkg.train", "pkg-train"), ("7b.py", "job-7b"), ("é.py", "job")],
)
def test_job_names_are_what_every_cluster_takes(text: str, name: str) -> None:
    assert job_name(text) == name
