"""Which rank waited in which collective, and how many ranks there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddplaunch.explain.decide.collectives import Stuck, Waited, first_never_done, stuck, waited_in, world_size
from ddplaunch.explain.read.scan import scan
from tests.explain.logs import TORCH, lines_of, lost, raised, summary

(LINE,) = lines_of("a line")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("world_size=4\n[rank9]: x", 4),
        ("NCCL INFO comm 0x5 nranks 3", 3),
        ("torchrun --nproc_per_node=2", 2),
        ("worker_count=2 group_rank=0 world_size=16", 16),
        ("the world is large\n[rank3]: x", 4),
        (summary((5, 1, 9)), 6),
        ("words", None),
        ("world_size=1000001", None),
        ("[rank1000000]: x", None),
    ],
)
def test_the_number_of_ranks_is_what_is_printed_else_that_of_the_highest_rank(text: str, size: int | None) -> None:
    assert world_size(scan(lines_of(text))) == size


def test_the_first_wait_of_each_rank_counts_with_its_group() -> None:
    late = "[rank{0}]:[E1102 x.cpp:6] [PG ID {1} PG GUID 0 Rank {0}] Watchdog caught collective operation timeout: "
    late += "WorkNCCL(SeqNum={2}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=6000) ran for 6001 ms\n"
    counts = "[rank1]: last enqueued NCCL work: {}, last completed NCCL work: {}\n"
    gloo = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 6000ms for recv operation"
    frame = f'[rank2]:   File "{TORCH}/autograd/graph.py", line 841, in _engine_run_backward\n[rank2]:     run()\n'
    text = late.format(1, 0, 8) + late.format(1, 5, 9) + counts.format(9, 7) + counts.format(9, 8)
    text += "[rank0]: OpType=ALLREDUCE\n" + raised(2, gloo).replace("[rank2]: Runtime", f"{frame}[rank2]: Runtime")
    waits = stuck(scan(lines_of(text + raised(None, gloo) + raised(3, "RuntimeError: Timed out"))))
    assert (waits.completed, waits.world_size, waits.absent) == ({1: 7}, 4, (0, 3))
    watched, waited = waits.waited
    assert (watched.rank, watched.described, watched.group) == (1, "ALLREDUCE (number 8, 4 elements)", "0 PG GUID 0")
    assert (waited.rank, waited.described, waited.frame) == (2, "a collective of backward", "train.py:31 in main")
    assert (waited.source, waited.group) == ("step()", "0 PG GUID 0"), "the only group that is named"
    both = stuck(scan(lines_of(late.format(1, 0, 8) + late.format(3, 7, 8) + text.partition("[rank0]: Op")[2])))
    assert [wait.group for wait in both.waited] == ["0 PG GUID 0", "", "7 PG GUID 0"]


def test_a_first_collective_never_ends_where_all_ranks_wait_in_it() -> None:
    waits = Stuck(tuple(Waited(rank, LINE, 1, "ALLREDUCE") for rank in range(2)), {0: 0, 1: -1}, 2, ())
    assert first_never_done(waits) is True
    second = (waits.waited[0], replace(waits.waited[1], seq=2))
    for other in (
        replace(waits, waited=waits.waited[:1], world_size=1),
        replace(waits, waited=second),
        replace(waits, world_size=3),
        replace(waits, completed={0: 0, 1: 1}),
    ):
        assert first_never_done(other) is False


def test_a_rank_waited_where_its_last_exception_was_raised_except_in_a_thread() -> None:
    ignored = "[rank1]: Exception ignored in: <function x>\n" + raised(1, "OSError: pipe")
    thread = "[rank1]: Exception in thread Thread-1:\n" + raised(1, "KeyError: 'queue'")
    scanned = scan(lines_of(raised(1, "KeyError: 'first'") + lost(1) + ignored + thread + lost(2)))
    call, frame, line = waited_in(scanned, 1)
    assert (call, frame) == ("", "train.py:31 in main")
    assert line is not None and line.text.startswith("RuntimeError: [../third_party/gloo") and line.speaker.rank == 1
    assert waited_in(scanned, 0) == ("", "", None)
