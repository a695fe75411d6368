"""What Slurm says of a job that is ending, as 22.05 says it at that moment, and what it means."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddplaunch.hosts.slurm.job_reasons import diagnosis, first_state, why_ended
from ddplaunch.hosts.slurm.programs import JobState, epoch_s, parse_job

ENDING = """\
JobId=25 JobName=wrap
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:01:14 TimeLimit=00:01:00 TimeMin=N/A
   StartTime=2026-11-21T19:42:26 EndTime={end} Deadline=N/A
   PreemptEligibleTime=2026-11-21T19:42:26 PreemptTime={preempted}
   NodeList=vn1
"""
NOW_S = 1_795_290_220.0


def at(s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(s))


def ending(state: str, reason: str = "None", restarts: int = 0, end_s: float = NOW_S, preempted: str = "None") -> str:
    return ENDING.format(state=state, reason=reason, restarts=restarts, end=at(end_s), preempted=preempted)


@pytest.mark.parametrize(
    ("said", "code", "what"),
    [
        (ending("COMPLETING", "TimeLimit"), "time-limit", "job 25 reached its time limit"),
        (ending("RUNNING", end_s=NOW_S + 46), "time-limit", "46 s before the time limit of job 25"),
        (ending("COMPLETING", preempted="2026-11-21T19:40:53"), "terminated", "job 25 was preempted"),
        (ending("RUNNING", end_s=NOW_S + 9000, preempted="2026-11-21T19:40:53"), "terminated", "was preempted"),
        (ending("COMPLETING", restarts=1), "terminated", "was requeued"),
        (ending("COMPLETING"), "terminated", "job 25 was cancelled"),
        (ending("NODE_FAIL"), "scheduler-error", "job 25 lost a node"),
        (ending("OUT_OF_MEMORY", "OutOfMemory"), "host-out-of-memory", "more host memory"),
    ],
)
def test_each_end_has_its_words(said: str, code: str, what: str) -> None:
    found = diagnosis("25", parse_job(said), grace_s=30, now_s=NOW_S)
    assert found is not None and found.code == code and what in found.what
    assert (found.evidence[0].file, found.evidence[0].line) == ("scontrol show job 25", 0)
    assert "{" not in "".join(found.fixes)


@pytest.mark.parametrize(
    "said",
    [
        ending("RUNNING", end_s=NOW_S + 9000),
        ending("RUNNING", end_s=NOW_S - 1),
        ending("RUNNING").replace(at(NOW_S), "Unknown"),
        ending("FAILED", preempted="x"),
    ],
)
def test_slurm_is_not_accused_of_what_it_did_not_do(said: str) -> None:
    assert diagnosis("25", parse_job(said), grace_s=30, now_s=NOW_S) is None


def slurm_says(folder: Path, said: str, job: str = "25") -> dict[str, str]:
    """Return the environment of ``job``, of which scontrol says this, and of no other."""
    (folder / "scontrol").write_text(f"#!/bin/bash\n[ \"$*\" = 'show job {job}' ] && echo '{said}'\n")
    (folder / "scontrol").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "25"}


def test_a_job_of_an_array_asks_after_itself_and_outside_of_slurm_nobody_is_asked(tmp_path: Path) -> None:
    environ = slurm_says(tmp_path, ending("TIMEOUT"), "25_3")
    found = why_ended(environ | {"SLURM_ARRAY_JOB_ID": "25", "SLURM_ARRAY_TASK_ID": "3"}, 30, NOW_S)
    assert found is not None and found.what == "job 25_3 reached its time limit"
    assert found.evidence[0].text == "JobState=TIMEOUT Reason=None"
    assert why_ended(environ, 30, NOW_S) is None
    environ = slurm_says(tmp_path, ending("TIMEOUT"), "")
    assert why_ended({**environ, "SLURM_JOB_ID": ""}, 30, NOW_S) is None


@pytest.mark.parametrize(
    ("nodes", "left", "lost"),
    [
        ("vn[1-2]", "vn1", "its node vn2"),
        ("vn1", "(null)", "its node vn1"),
        ("vn[1-3]", "vn1", "a node"),
        ("", "vn1", "a node"),
    ],
)
def test_the_one_node_that_slurm_took_from_the_job_is_the_lost_one(
    tmp_path: Path, nodes: str, left: str, lost: str
) -> None:
    """Nodes that are through leave the list of a job that is ending, too."""
    said = ending("COMPLETING", "NodeDown").replace("NodeList=vn1", f"NodeList={left}")
    found = why_ended(slurm_says(tmp_path, said) | {"SLURM_JOB_NODELIST": nodes}, 30, NOW_S)
    assert found is not None and found.what == f"job 25 lost {lost}"
    assert found.evidence[0].text == "JobState=COMPLETING Reason=NodeDown"


def test_a_job_that_starts_again_by_itself_is_not_told_to() -> None:
    said = ending("TIMEOUT")
    for text, grace_s, words in (
        (said, 0.0, "or `--requeue --grace 120`"),
        (said.replace("Requeue=1", "Requeue=0"), 30.0, "or `--requeue --grace 120`"),
        (said, 30.0, "starts again by itself"),
    ):
        found = diagnosis("25", parse_job(text), grace_s=grace_s, now_s=NOW_S)
        assert found is not None and words in found.fixes[0]
    found = diagnosis("25", JobState("COMPLETING", restarts=2), restarts=2)  # requeued before this run of it
    assert found is not None and "was cancelled" in found.what
    assert epoch_s(at(NOW_S)) == NOW_S and epoch_s("N/A") is None and epoch_s("Unknown") is None


def test_a_job_that_runs_or_that_slurm_does_not_know_is_not_taken_back(tmp_path: Path) -> None:
    state = first_state("25", slurm_says(tmp_path, ending("RUNNING", "PartitionNodeLimit")))
    assert state is not None and state.state == "RUNNING"
    assert diagnosis("25", state) is None, "nor ended a while ago"
    assert first_state("26", slurm_says(tmp_path, ending("PENDING"))) is None
