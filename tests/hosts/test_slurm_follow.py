"""Following a job with a stateful stand-in for Slurm, which has states that a small real one does not come into."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddplaunch.hosts.slurm import follow as slurm_follow
from ddplaunch.hosts.slurm.follow import follow
from ddplaunch.hosts.slurm.programs import JobState, job_state, with_end_of_job
from ddplaunch.values.finding import RefusedError

#: Each call tells the next line of ``states`` (``STATE REASON EXITCODE``), the last one again and again, and writes to
#: the log as a job would; a line ``silent`` is a controller that does not answer.
SCONTROL = """\
[ "$1 $2 $3" = "show job 12" ] || { echo "unexpected: $*" >> unexpected; exit 2; }
read -r state reason code < states
[ "$(wc -l < states)" -gt 1 ] && sed -i 1d states
[ "$state" = silent ] && exit 1
[ "$state" = RUNNING ] && echo "step $reason" >> job.log
printf '   JobState=%s Reason=%s\\n   ExitCode=%s\\n   NodeList=vn1\\n' "$state" "$reason" "$code"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the stand-in; write ``states`` into it."""
    for name, text in {"scontrol": SCONTROL, "scancel": 'echo "$*" >> cancelled', "sacct": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm_follow, "_FIRST_POLL_S", 0.05)
    monkeypatch.setattr(slurm_follow, "_LOG_POLL_S", 0.02)
    monkeypatch.setattr(slurm_follow, "_SETTLE_S", 0.05)
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}


def watch(place: Path, *states: str) -> tuple[JobState, bytes, list[str]]:
    """Follow job 12 through these states; return the last, its log, and what was told in between."""
    (place / "states").write_text("".join(f"{state}\n" for state in states))
    log, told = bytearray(), list[str]()
    log_of_job = place / "job.log"
    ended = follow("12", log_of_job, environment(place), log.extend, lambda state: told.append(state.state))
    assert not (place / "unexpected").exists()
    return ended, bytes(log), told


def test_a_requeued_job_is_followed_through_its_second_life(slurm: Path) -> None:
    states = ("PENDING Resources 0:0", "RUNNING one 0:0", "SIGNALING None 0:0", "COMPLETING None 0:0")
    again = ("PENDING BeginTime 0:0", "RUNNING two 0:0", "COMPLETED None 0:0")
    ended, log, told = watch(slurm, *states, *again)
    assert ended.state == "COMPLETED" and told == ["PENDING", "RUNNING", "PENDING", "RUNNING"]
    assert log == b"step one\nstep two\n"


@pytest.mark.parametrize("last", ["TIMEOUT None 0:0", "NODE_FAIL None 1:0", "OUT_OF_MEMORY OutOfMemory 0:125"])
def test_what_slurm_ended_is_ended(slurm: Path, last: str) -> None:
    assert watch(slurm, "RUNNING one 0:0", last)[0].state == last.split()[0]


def test_a_controller_that_is_silent_for_a_while_is_waited_for(slurm: Path) -> None:
    ended, _, told = watch(slurm, "RUNNING one 0:0", "silent", "silent", "FAILED NonZeroExitCode 42:0")
    assert (ended.exit_code, told) == (42, ["RUNNING"])


def test_a_controller_that_stays_silent_is_a_finding(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_follow, "_SILENCE_S", 0.2)
    with pytest.raises(RefusedError) as caught:
        watch(slurm, "silent")
    assert caught.value.findings[0].code == "slurm-unanswered"


def test_a_job_that_becomes_hopeless_while_it_waits_is_taken_back(slurm: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        watch(slurm, "PENDING Resources 0:0", "PENDING PartitionTimeLimit 0:0")
    assert caught.value.findings[0].code == "slurm-job-cannot-start"
    assert (slurm / "cancelled").read_text() == "12\n"


def test_accounting_answers_for_a_job_that_the_controller_forgot(slurm: Path) -> None:
    (slurm / "states").write_text("silent\n")
    (slurm / "sacct").write_text("#!/bin/bash\necho 'CANCELLED by 1000|0:15|vn[1-2]'\n")
    assert job_state("12", environment(slurm)) == JobState("CANCELLED", signal=15, nodes="vn[1-2]")


def test_the_end_of_a_job_is_asked_for_once(slurm: Path) -> None:
    (slurm / "squeue").write_text('#!/bin/bash\n[ "$*" = "-h -j 12 -o %e" ] && echo 2030-01-02T03:04:05\n')
    (slurm / "squeue").chmod(0o755)
    asked = with_end_of_job({**environment(slurm), "SLURM_JOB_ID": "12"})
    assert int(asked["SLURM_JOB_END_TIME"]) > 1_890_000_000
    for other in ({}, {"SLURM_JOB_ID": "12", "SLURM_PROCID": "1"}, {"SLURM_JOB_ID": "13"}):
        assert "SLURM_JOB_END_TIME" not in with_end_of_job({**environment(slurm), **other})
