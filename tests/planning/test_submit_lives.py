"""Jobs followed through preemption, lost nodes, requeues and refusals, with a stateful stand-in for Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddplaunch.hosts.slurm import job_reasons as follow
from tests.cli.cli_calls import Call, Said, call, folder
from tests.hosts.fake_slurm import FakeSlurm

__all__ = ["call", "folder"]  # fixtures

Submit = Callable[..., tuple[Said, FakeSlurm]]


pytestmark = pytest.mark.slow


@pytest.fixture
def submit(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Submit with these options to a cluster where jobs live through ``story``, and wait."""
    for name, value_s in {"_FIRST_POLL_S": 0.02, "_LAST_POLL_S": 0.02, "_LOG_POLL_S": 0.01, "_SETTLE_S": 0.02}.items():
        monkeypatch.setattr(follow, name, value_s)

    def run(story: str, *words: str, forgetful: bool = False) -> tuple[Said, FakeSlurm]:
        slurm = FakeSlurm(tmp_path / "slurm", story)
        monkeypatch.setenv("PATH", f"{slurm.folder}:{os.environ['PATH']}")
        if forgetful:
            slurm.forget()
        return call("submit", "2x4", *words, "--wait", "--", "train.py"), slurm

    return run


@pytest.mark.parametrize("fate", ["preempt", "lose"])
def test_a_job_with_requeue_lives_again(submit: Submit, fate: str) -> None:
    said, slurm = submit(f"run run signal wind-down {fate} run complete", "--requeue")
    assert said.status == 0 and said.out.splitlines() == ["life 0", "life 0", "life 1"]
    assert "pending (BeginTime)" in said.err and said.err.count("running on vn[1-2]") == 2
    assert (slurm.jobs["1"]["state"], slurm.jobs["1"]["restarts"]) == ("COMPLETED", 1)


@pytest.mark.parametrize(
    ("fate", "code", "status", "forgetful"),
    [
        ("preempt", "slurm-preempted", 143, False),
        ("lose", "slurm-node-fail", 1, False),
        ("exceed", "slurm-timeout", 143, False),
        ("exceed", "slurm-timeout", 143, True),
        ("swell", "slurm-out-of-memory", 253, True),
        ("fail", "slurm-failed", 143, False),
    ],
)
def test_a_job_without_it_ends_with_a_name_for_why(
    submit: Submit, fate: str, code: str, status: int, forgetful: bool
) -> None:
    said, _ = submit(f"queue run {fate}", forgetful=forgetful)
    assert said.status == status and f"error[{code}]: job 1 " in said.err


def test_a_controller_that_is_silent_for_a_while_is_waited_for(submit: Submit) -> None:
    said, _ = submit("run silent silent fail")
    assert said.status == 143 and said.err.count("running on vn[1-2]") == 1


def test_a_controller_that_stays_silent_is_a_finding(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_SILENCE_S", 0.2)
    said, _ = submit("run silent")
    assert said.status == 4 and "error[slurm-unanswered]: Slurm said nothing of job 1" in said.err


def test_a_qos_that_says_no_leaves_no_job(submit: Submit) -> None:
    said, slurm = submit("run complete", "--qos", "gold")
    assert said.status == 4 and "sbatch refused the job: Invalid qos specification" in said.err
    assert "sacctmgr show associations" in said.err and slurm.jobs == {}


@pytest.mark.parametrize("reason", ["QOSMaxGRESPerJob", "AssocMaxNodePerJobLimit", "PartitionNodeLimit"])
def test_a_limit_that_no_waiting_cures_takes_the_job_back(submit: Submit, reason: str) -> None:
    for story in (reason, f"Resources {reason}"):  # at once, or while it waits
        said, slurm = submit(story)
        assert said.status == 4 and f"job 1 can never start: {reason}" in said.err
        assert slurm.jobs["1"]["state"] == "CANCELLED"


def test_a_limit_of_all_jobs_together_is_waited_for(submit: Submit) -> None:
    said, _ = submit("queue AssocGrpGRES run complete")
    assert said.status == 0 and "pending (AssocGrpGRES): a limit of the account" in " ".join(said.err.split())
