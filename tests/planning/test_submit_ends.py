"""What is said of a submitted job until its end: why it waits, what ended it, and what ``--wait`` exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddplaunch.hosts.slurm import job_reasons as follow
from ddplaunch.hosts.slurm.job_reasons import ENDS, diagnosis, never, waits_for
from ddplaunch.hosts.slurm.programs import JobState, parse_job, parse_sacct
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.submit_view import changed_text, ended_finding, exit_status_of, state_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.codec import plain
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


def test_the_node_that_failed_first_decides_the_exit_status_of_wait(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = SCONTROL.format(state="FAILED", reason="NonZeroExitCode", code="143:0").replace(
        "/home/me/a", str(tmp_path)
    )
    scontrol = f"cat <<'END'\n{failed}END"
    programs(tmp_path / "bin", monkeypatch, sbatch="cat >/dev/null; echo 12", scontrol=scontrol)
    monkeypatch.setattr(follow, "_SETTLE_S", 0.01)
    run = folder / ".ddplaunch/runs/slurm-12.0"
    (run / "node-1").mkdir(parents=True)
    rank = {"rank": 3, "local_rank": 1, "host": "n1", "ended_by": "itself", "exit_code": 42, "ended_s": 5.0}
    attempt = {"attempt": 0, "started_s": 1.0, "ended_s": 9.0, "failed": True, "diagnosis": None, "ranks": [rank]}
    outcome = {"schema": 1, "state": "failed", "exit_status": 42, "node": 1, "ended_s": 9.0, "first_failed_rank": 3}
    (run / "node-1/outcome.json").write_text(json.dumps({**outcome, "attempts": [attempt]}))
    (run / "outcome.json").write_text(json.dumps({**outcome, "node": 0, "exit_status": 1, "attempts": []}))
    answer = call("submit", "2x4", "--wait", "--", "train.py")
    told = " ".join(answer.err.split())
    assert answer.status == 42 and "job 12 failed with exit status 42 on node 1" in told
    assert "`ddplaunch explain slurm-12.0`" in told
    (run / "node-1/outcome.json").write_text("{")
    (run / "outcome.json").unlink()
    assert call("submit", "2x4", "--wait", "--", "train.py").status == 143
    limit = diagnosis("12", JobState("TIMEOUT"))
    assert limit is not None
    (run / "outcome.json").write_text(json.dumps({**outcome, "state": "terminated", "diagnosis": plain(limit)}))
    answer = call("submit", "2x4", "--wait", "--", "train.py")
    assert answer.status == 143 and "error[time-limit]: job 12 reached its time limit" in answer.err


def test_the_state_of_a_job_is_read_past_a_directory_that_looks_like_one() -> None:
    state = parse_job(SCONTROL.format(state="RUNNING", reason="None", code="0:0"))
    assert (state.state, state.reason, state.nodes, state.ended) == ("RUNNING", "", "vn[1-2]", False)
    assert state.log == "/home/me/a JobState=FAILED b/slurm-12.out"
    assert state_text(state) == "running on vn[1-2]"
    pending = parse_job(SCONTROL.format(state="PENDING", reason="Resources", code="0:0"))
    assert state_text(pending) == "pending (Resources): waits until enough is free"


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("COMPLETED|0:0|n1", 0, None),
        ("FAILED|42:0|n1", 42, "exit status 42"),
        ("FAILED|0:9|n1", 137, "exit status 137"),
        ("TIMEOUT|0:0|n1", 1, "reached its time limit"),
        ("OUT_OF_MEMORY|0:125|n1", 253, "more host memory"),
        ("NODE_FAIL|1:0|n1", 1, "lost a node"),
        ("CANCELLED by 1000|0:15|n1", 143, "was cancelled"),
        ("PREEMPTED|0:15|n1", 143, "was preempted"),
    ],
)
def test_how_a_job_ended_is_the_exit_status_and_a_sentence(line: str, status: int, said: str | None) -> None:
    state = parse_sacct(line)
    finding = ended_finding("12", state)
    assert state.ended and exit_status_of(state) == status
    assert finding is None if said is None else finding is not None and said in finding.what


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("PartitionNodeLimit", "not that many nodes"),
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
    job = ("12", "vn[1-2]")
    findings = [ended_finding(job[0], JobState(state, nodes=job[1])) for state in (*ENDS, "FAILED")]
    waits = ("Resources", "Priority", "Dependency", "BeginTime", "JobHeldUser", "AssocGrpGRES", "PartitionConfig")
    shown = [finding_text(finding, Terminal(80)) for finding in findings if finding is not None]
    shown += ["".join(changed_text(job[0], JobState("PENDING", reason), Terminal(80)) for reason in waits)]
    golden("slurm-ends", "\n".join(shown))
