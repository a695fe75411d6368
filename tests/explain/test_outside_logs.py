"""Evidence from outside the logs: how ranks ended, what the kernel and the cgroup say."""

from __future__ import annotations

import pytest

from ddplaunch.explain.diagnosis import LogSource, RankEnd, RunFacts
from ddplaunch.explain.explain_logs import explain_texts
from tests.explain.logs import diagnosed, explained, lost, raised

KILLED = (RankEnd(0, "a", exit_code=1, ended_by="launcher"), RankEnd(1, "a", signal="SIGKILL", ended_by="itself"))


def test_a_killed_rank_with_an_oom_kill_ran_out_of_host_memory() -> None:
    plain = diagnosed(lost(0), RunFacts(ranks=KILLED, state="failed"))
    assert (plain.code, plain.rank, plain.certainty) == ("killed", 1, "likely")
    counted = diagnosed(lost(0), RunFacts(ranks=KILLED, state="failed", oom_kills=1))
    assert (counted.code, counted.rank, counted.certainty) == ("host-out-of-memory", 1, "observed")
    assert any(each.file == "memory.events" for each in counted.evidence)
    line = "[1.5] Out of memory: Killed process 88 (python3) total-vm:612214400kB, anon-rss:241880160kB, file-rss:0kB"
    assert diagnosed(lost(0), RunFacts(ranks=KILLED, state="failed", dmesg=(line,))).code == "host-out-of-memory"


def test_the_kernel_is_not_asked_where_the_log_decides() -> None:
    facts = RunFacts(ranks=(RankEnd(0, "a", exit_code=1, ended_by="itself"),), state="failed", oom_kills=1)
    assert diagnosed(raised(0, "ValueError: x"), facts).code == "script-exception"


def test_sigbus_with_a_full_shared_memory() -> None:
    ranks = (RankEnd(0, "a", signal="SIGBUS", ended_by="itself"),)
    full = RunFacts(ranks=ranks, state="failed", shm_free_bytes=1 << 20, shm_size_bytes=64 << 20)
    assert diagnosed("", full).code == "shm-too-small"
    assert (
        diagnosed("", RunFacts(ranks=ranks, state="failed", shm_free_bytes=60 << 20, shm_size_bytes=64 << 20)).code
        == "unknown"
    )


@pytest.mark.parametrize(("number", "name"), [(15, "SIGTERM"), (2, "SIGINT"), (1, "SIGHUP")])
def test_a_signal_to_the_launcher(number: int, name: str) -> None:
    found = diagnosed(raised(0, "KeyboardInterrupt"), RunFacts(state="terminated", signal=number))
    assert found.code == "terminated" and name in found.what


def test_torchrun_killed() -> None:
    assert "torchrun was killed" in diagnosed("step 3\n", RunFacts(state="killed")).what


def test_a_run_that_succeeded_is_silent_whatever_it_printed() -> None:
    assert explained(raised(0, "ValueError: x"), RunFacts(state="succeeded")).diagnosis is None


def test_the_rank_that_ended_first_is_the_cause_of_failures_in_several_files() -> None:
    sources = [
        LogSource(f"rank-{rank}.err", raised(None, f"ValueError: of {rank}").encode(), rank, "a") for rank in (0, 1)
    ]
    ends = (RankEnd(0, "a", 1, None, 12.5, "launcher"), RankEnd(1, "a", 1, None, 11.0, "itself"))
    found = explain_texts(sources, RunFacts(ranks=ends, state="failed")).diagnosis
    assert found is not None and found.raised is not None and found.raised.message == "of 1"
    assert found.evidence[0].file == "rank-1.err"


def test_what_a_rank_prints_that_was_only_stopped_is_not_the_cause() -> None:
    text = raised(0, "MyLibraryError: a peer is gone")
    assert diagnosed(text, RunFacts(ranks=KILLED, state="failed")).code == "killed"
    own = (RankEnd(0, "a", exit_code=1, ended_by="itself"), RankEnd(1, "a", signal="SIGTERM", ended_by="launcher"))
    assert diagnosed(text, RunFacts(ranks=own, state="failed")).code == "script-exception"
