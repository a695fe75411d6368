"""What is said of a submitted job: why it waits, and what ended it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplaunch.hosts.slurm.job_reasons import diagnosis, never, waits_for
from ddplaunch.hosts.slurm.programs import JobState, parse_job, parse_sacct, words
from ddplaunch.ui.explain_view import as_finding
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.submit_view import state_text
from ddplaunch.ui.terminal import Terminal
from tests.cli.cli_calls import Call, call, folder
from tests.conftest import Golden
from tests.planning.test_submit import SCONTROL, programs

__all__ = ["call", "folder"]  # fixtures


def test_a_job_that_can_never_start_is_taken_back(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = SCONTROL.format(state="PENDING", reason="PartitionNodeLimit", code="0:0")
    programs(
        tmp_path / "bin",
        monkeypatch,
        sbatch="cat >/dev/null; echo 12",
        scontrol=f"cat <<'END'\n{pending}END",
        scancel='echo "$@" > cancelled',
    )
    answer = call("submit", "9x4", "--", "train.py")
    assert answer.status == 4 and "error[slurm-job-cannot-start]" in answer.err
    assert Path("cancelled").read_text() == "12\n"


def test_the_state_of_a_job_is_read_past_a_directory_that_looks_like_one() -> None:
    state = parse_job(SCONTROL.format(state="RUNNING", reason="None", code="0:0"))
    assert (state.state, state.reason, state.nodes) == ("RUNNING", "", "vn[1-2]")
    assert state.log == "/home/me/a JobState=FAILED b/slurm-12.out"
    assert state_text(state) == "running on vn[1-2]"
    pending = parse_job(SCONTROL.format(state="PENDING", reason="Resources", code="0:0"))
    assert state_text(pending) == "pending (Resources): waits until enough is free"
    assert parse_sacct("CANCELLED by 1000|n1") == JobState("CANCELLED", nodes="n1")


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("PartitionNodeLimit", "fewer nodes"),
        ("AssocMaxGRESPerJob", "the account's limit of GPUs for one job is lower"),
        ("QOSMaxNodePerJobLimit", "the QOS's limit of nodes for one job is lower"),
        ("QOSMaxWallDurationPerJobLimit", "the QOS's limit of time for one job is lower"),
        ("QOSMaxMemoryPerNode", "the QOS's limit of memory for one node is lower"),
    ],
)
def test_what_no_waiting_cures(reason: str, why: str) -> None:
    said = never(reason)
    assert said is not None and why in said


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("AssocGrpGRES", "it starts when other jobs end"),
        ("QOSMaxJobsPerUserLimit", "it starts when other jobs end"),
        ("AssocGrpCPUMinutesLimit", "hours are used up"),
        ("ReqNodeNotAvail,_UnavailableNodes:vn[1-2]", "`sinfo -R`"),
        ("BeginTime", "two minutes"),
        ("Unheard", ""),
    ],
)
def test_what_a_job_waits_for(reason: str, why: str) -> None:
    assert why in waits_for(reason) and never(reason) is None


def test_every_end_and_every_wait_reads_well(golden: Golden) -> None:
    found = [diagnosis("12", JobState(state, status="127")) for state in (*words()["ends"], "COMPLETED")]
    assert found[-1] is None, "Slurm had no part in it"
    waits = ("Resources", "Priority", "Dependency", "BeginTime", "JobHeldUser", "AssocGrpGRES", "PartitionConfig")
    shown = [finding_text(as_finding(each, None), Terminal(80)) for each in found if each is not None]
    shown += ["".join(f"{state_text(JobState('PENDING', reason))}\n" for reason in waits)]
    golden("slurm-ends", "\n".join(shown))
