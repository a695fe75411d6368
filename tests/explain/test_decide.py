"""Root before cascade: which of several failures in one log is the cause."""

from __future__ import annotations

import pytest

from tests.explain.logs import diagnosed, explained, failed, lost, raised, summary

WATCHDOG = (
    "[rank{rank}]:[E1102 04:26:10.044118200 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran "
    "for 600031 milliseconds before timing out.\n"
)


def watchdog(rank: int, seq: int = 1644, op: str = "ALLREDUCE", numel: int = 4096) -> str:
    return WATCHDOG.format(rank=rank, seq=seq, op=op, numel=numel)


def test_a_ranks_own_exception_outranks_the_time_outs_of_the_others_whatever_the_order() -> None:
    own = raised(3, "KeyError: 'title'")
    for text in (own + watchdog(0) + watchdog(1) + watchdog(2), watchdog(0) + watchdog(1) + watchdog(2) + own):
        found = diagnosed(text + summary((1, -6, 11), (0, -6, 10)))
        assert (found.code, found.rank) == ("script-exception", 3)
        assert found.what == "KeyError: 'title' at train.py:31 in main"
        assert found.raised is not None and found.raised.frame == "train.py:31 in main"


def test_survivors_that_lost_a_peer_are_the_cascade() -> None:
    answer = explained(
        lost(0) + raised(1, "ValueError: bad sample") + lost(2) + failed(1, 0, 10) + summary((1, 1, 11), (0, 1, 10))
    )
    assert answer.diagnosis is not None and (answer.diagnosis.code, answer.diagnosis.rank) == ("script-exception", 1)
    assert {echo.rank for echo in answer.cascade} == {0, 2}
    assert answer.cascade[0].evidence.line == 4


def test_only_survivors_is_unknown_with_the_next_measurement() -> None:
    found = diagnosed(lost(0) + lost(1))
    assert (found.code, found.certainty) == ("unknown", "unknown")
    assert any("explain" in fix for fix in found.fixes)


def test_the_only_rank_here_that_lost_another_is_not_said_to_be_silent() -> None:
    found = diagnosed(lost(0) + failed(1, 0, 10))
    assert found.code == "unknown"
    assert found.what == "rank 0 ended with exit code 1 because it lost another rank, and that one says nothing here"
    assert "Connection closed by peer" in found.evidence[0].text
    assert "on each of the other nodes" in found.fixes[0]
    assert diagnosed(lost(2) + failed(1, 0, 10)).what == "rank 0 ended with exit code 1, and no line says why"


@pytest.mark.parametrize(
    ("code", "expected"), [(-9, "killed"), (-11, "segmentation-fault"), (-6, "aborted"), (3, "unknown")]
)
def test_an_exit_status_alone(code: int, expected: str) -> None:
    found = diagnosed(lost(0) + failed(code, 1, 11) + summary((0, -15, 10), (1, code, 11)))
    assert (found.code, found.rank) == (expected, 1)


def test_ranks_that_the_agent_stopped_are_no_cause() -> None:
    text = "W0 9 torch/x.py:1] Unable to shutdown process 12 via 15, forcefully exiting via 9\n"
    found = diagnosed(
        text + raised(0, "ValueError: x") + failed(1, 0, 10) + summary((2, -9, 12), (1, -15, 11), (0, 1, 10))
    )
    assert (found.code, found.rank) == ("script-exception", 0)


def test_the_rank_that_is_missing_among_the_time_outs_is_the_culprit() -> None:
    found = diagnosed("world_size=4\n" + watchdog(0) + watchdog(1) + watchdog(3))
    assert (found.code, found.rank) == ("collective-timeout", 2)


def test_a_time_out_explains_the_aborts_that_it_ends_in() -> None:
    text = watchdog(0) + watchdog(1) + failed(-6, 0, 10) + summary((1, -6, 11), (0, -6, 10))
    assert diagnosed(text).code == "collective-timeout"


def test_ranks_in_different_collectives_are_a_mismatch() -> None:
    assert diagnosed(watchdog(0) + watchdog(1, op="BROADCAST")).code == "collective-mismatch"
    assert diagnosed(watchdog(0) + watchdog(1, numel=8192)).code == "collective-mismatch"
    assert diagnosed(watchdog(0) + watchdog(1)).code == "collective-timeout"


def test_a_rank_that_was_done_while_others_waited_is_a_mismatch() -> None:
    found = diagnosed("rank 1 finished epoch 0 after 12 batches\n" + watchdog(0))
    assert (found.code, found.rank) == ("collective-mismatch", 1)
    assert diagnosed("rank 1 setup done\nrank 0 finished loading\n" + watchdog(0)).code == "collective-timeout"


def test_a_first_collective_that_never_completes_points_to_the_transport() -> None:
    assert diagnosed(watchdog(0, seq=1) + watchdog(1, seq=1)).code == "gpu-p2p-broken"
    assert diagnosed("world_size=3\n" + watchdog(0, seq=1) + watchdog(1, seq=1)).code == "collective-timeout"


def test_an_end_from_outside_counts_if_nothing_was_wrong_before() -> None:
    ended = "W1 10:55:17.9 3047 torch/distributed/elastic/api.py:7] Received 15 death signal, shutting down workers\n"
    assert diagnosed("step 3\n" + ended + raised(0, "ValueError: while saving")).code == "terminated"
    assert diagnosed(raised(0, "ValueError: before") + ended).code == "script-exception"
    late = ended + raised(0, "ValueError: printed late") + failed(1, 0, 10)
    assert diagnosed(late).code == "script-exception", "the agent saw a rank fail, so nobody had ended it yet"
    alone = diagnosed(failed(-15, 0, 10))
    assert (alone.code, alone.certainty) == ("terminated", "likely")


def test_a_specific_cause_beats_a_general_one() -> None:
    text = raised(0, "RuntimeError: something odd") + raised(
        1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )
    assert diagnosed(text).code == "cuda-out-of-memory"


def test_within_a_tier_the_first_failure_is_the_cause() -> None:
    errors = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "OSError: [Errno 24] Too many open files",
    )
    codes = ("cuda-out-of-memory", "too-many-open-files")
    for first, other in ((0, 1), (1, 0)):
        found = diagnosed(raised(2, errors[first]) + raised(5, errors[other]))
        assert (found.code, found.rank) == (codes[first], 2)


def test_an_error_that_was_survived_is_no_diagnosis() -> None:
    steps = "".join(f"step {step}/50 loss 0.5\n" for step in range(1, 51))
    healthy = raised(None, "OSError: [Errno 116] Stale file handle") + steps + "training finished\n"
    assert explained(healthy).diagnosis is None
    warned = "WARNING: could not load the optional plugin\n" + raised(
        None, "ModuleNotFoundError: No module named 'apex'"
    )
    assert explained(warned + steps + "done\n").diagnosis is None
    shell = raised(None, "OSError: disk") + "cleaning up\njob finished\n"
    assert diagnosed(shell).code == "script-exception", "a batch script says that after any end"


def test_healthy_logs_and_logs_that_just_end() -> None:
    steps = "".join(f"step {step} loss 0.5\n" for step in range(5))
    noise = "[rank0]:[W303 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before\n"
    assert explained(steps + "saved out/final.pt\n" + noise).diagnosis is None
    assert explained("").diagnosis is None
    assert explained(steps).diagnosis is None, "most healthy logs end like that"
    assert diagnosed("".join(f"step {step}/500 loss 0.5\n" for step in range(5))).code == "unknown"
    assert diagnosed("rank 0 step 0\nrank 1 step 0\n").code == "unknown"


def test_a_node_that_loses_the_store_after_the_work_is_no_failure() -> None:
    library = "/opt/env/lib/python3.11/site-packages/torch/distributed"
    noise = (
        f'Traceback (most recent call last):\n  File "{library}/run.py", line 9, in main\n    run(args)\n'
        f'  File "{library}/elastic/rendezvous/dynamic_rendezvous.py", line 1255, in num_nodes_waiting\n    sync()\n'
        "torch.distributed.elastic.rendezvous.RendezvousConnectionError: The connection to the C10d store has failed\n"
    )
    assert explained("step 1/2\nstep 2/2\nrank 0 done\n" + noise).diagnosis is None
    assert diagnosed("step 1/9\nstep 2/9\n" + noise).code == "unknown", "during the work somebody else was lost"
    assert diagnosed(noise.replace("num_nodes_waiting", "next_rendezvous")).code == "rendezvous-failed"


def test_a_restart_that_came_through_is_no_failure() -> None:
    first = lost(0) + raised(1, "RuntimeError: flaky") + failed(1, 1, 11)
    assert explained(first + "rank 0 step 5\nrank 0 step 10\nrank 0 step 15\n").diagnosis is None
    assert explained(first + "resumed from 5\nrank 0 done\n").diagnosis is None
    again = diagnosed(first + "rank 0 step 5\nrank 0 step 10\n" + lost(0) + failed(-9, 1, 12) + summary((1, -9, 12)))
    assert again.code in ("script-exception", "killed") and again.rank == 1


def test_two_ranks_that_fail_alike_name_none() -> None:
    assert diagnosed(raised(0, "ValueError: x") + raised(1, "ValueError: x")).rank is None
