"""Stacks, from a process to the place that a person would name, and what it says of a hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.agent.guard.hang_report import describe, hangs, time_is_up
from ddplaunch.agent.rank_site import taking_part
from ddplaunch.explain.decide.flight import Flight
from ddplaunch.explain.diagnosis import Diagnosis, Evidence, Frame
from ddplaunch.explain.stacks.hang import IMPORTED_ANEW, NoProgress, hang_diagnosis, located, with_ended_parts
from ddplaunch.explain.stacks.parse import RankStack, ThreadStack, calls_of, groups, place_of
from ddplaunch.hosts.local.rank_stacks import SIGNAL, LiveRank, take_stacks
from ddplaunch.machine.processes.process_table import read_process
from ddplaunch.ui.explain_view import stack_text
from ddplaunch.values.finding import ExitStatus
from tests.agent.guarded import Guarded, until
from tests.cli.cli_calls import Call

TORCH = "/v/lib/python3.11/site-packages/torch"
ALL_REDUCE = (
    Frame(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"),
    Frame(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
)
BARRIER = (Frame(f"{TORCH}/distributed/distributed_c10d.py", 5356, "barrier"),)
LOADER = (
    Frame("/usr/lib/python3.11/selectors.py", 415, "select"),
    Frame(f"{TORCH}/utils/data/dataloader.py", 725, "__next__"),
)
WAITS = Frame("/usr/lib/python3.11/threading.py", 629, "wait")
BACKWARD = (
    Frame(f"{TORCH}/autograd/graph.py", 841, "_engine_run_backward"),
    Frame(f"{TORCH}/_tensor.py", 630, "backward"),
)


def rank(number: int, *inner: Frame, line: int = 88, where: str = "main", **more: Any) -> RankStack:
    own = (Frame("/home/me/train.py", line, where), Frame("/home/me/train.py", 99, "<module>"))
    return RankStack(number, 100 + number, (ThreadStack("", (*inner, *own)),), **more)


def still(busy: dict[int, float] | None = None, left: dict[int, str] | None = None) -> NoProgress:
    return NoProgress(240.0, busy or {}, left or {}, "node-1")


@pytest.mark.parametrize(
    ("inner", "text", "kind"),
    [
        (ALL_REDUCE, "all_reduce at train.py:88", "collective"),
        (LOADER, "DataLoader.__next__ at train.py:88", "loader"),
        (BACKWARD, "backward at train.py:88", "backward"),
        ((), "train.py:88 in main", "own"),
        ((Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load"),), "import at train.py:88", "own"),
        ((*ALL_REDUCE, Frame(f"{TORCH}/nn/parallel/distributed.py", 1, "forward")), "all_reduce at train.py:88", None),
        ((*BARRIER, Frame(f"{TORCH}/distributed/distributed_c10d.py", 9, "init_process_group")), None, "meeting"),
    ],
)
def test_a_place_is_the_users_own_line_and_what_it_called(
    inner: tuple[Frame, ...], text: str | None, kind: str | None
) -> None:
    place = place_of(rank(0, *inner))
    assert place.text == text or text is None
    assert place.kind == kind or kind is None


def test_a_stack_that_is_not_known_is_no_place_and_the_odd_one_out_comes_first() -> None:
    assert not place_of(RankStack(0, 1)).needs_others
    found = groups([*(rank(each, *ALL_REDUCE) for each in range(3)), rank(3, *LOADER), RankStack(4, 1, problem="?")])
    assert [group.ranks for group in found] == [(3,), (0, 1, 2), (4,)] and found[2].place.kind == "unknown"


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    found = hang_diagnosis([*(rank(each, *ALL_REDUCE) for each in range(3)), rank(3, line=41, where="load")], still())
    assert (found.code, found.certainty, found.rank, found.host) == ("collective-timeout", "likely", 3, "node-1")
    assert (
        found.what
        == "rank 3 is at train.py:41 in load, and ranks 0-2 have waited in all_reduce at train.py:88 for 4 min"
    )
    assert (found.evidence[0].file, found.evidence[0].line) == ("/home/me/train.py", 41)
    found = hang_diagnosis([rank(0, *ALL_REDUCE)], still(left={1: "exit status 0"}))
    assert (found.code, found.rank) == ("collective-timeout", 1)
    assert found.what.startswith("rank 1 ended (exit status 0), and rank 0 has waited in all_reduce")


@pytest.mark.parametrize(
    ("suspect", "words"),
    [
        (RankStack(1, 9, state="T"), "is stopped, by SIGSTOP"),
        (RankStack(1, 9, state="D", kernel="nfs_wait"), "(`nfs_wait`) for a disk or a file server"),
        (rank(1, line=41, kernel="anon_pipe_read", reads="/data/fifo"), "reads from `/data/fifo`"),
        (rank(1, line=41, kernel="wait_for_partner"), "waits for input"),
        (rank(1, *LOADER), "its DataLoader workers, which send nothing"),
        (rank(1, line=41, kernel="sk_wait_data"), "over the network"),
        (rank(1, line=41, kernel="locks_lock_inode_wait"), "the lock of a file that another process holds"),
        (rank(1, line=41, kernel="poll_schedule_timeout.constprop.0"), "until a socket or pipe has something for it"),
        (rank(1, line=41, kernel="pipe_write"), "from which nobody reads (`pipe_write`)"),
        (rank(1, *LOADER, workers=(rank(-1, line=16, where="item"),)), "one is at train.py:16 in item"),
        (rank(1, line=41, kernel="do_wait", workers=(rank(-1, line=9, where="work"),)), "one is at train.py:9 in work"),
        (rank(1, line=41, kernel="do_wait", workers=(rank(-1, WAITS, line=9),)), "one is in wait at train.py:9"),
    ],
)
def test_what_keeps_the_rank_is_said(suspect: RankStack, words: str) -> None:
    found = hang_diagnosis([rank(0, *ALL_REDUCE), suspect], still())
    assert words in found.why and found.rank == 1 and found.fixes


def test_a_rank_that_waits_for_a_lock_has_started_no_program_and_one_that_computes_is_in_a_loop() -> None:
    for kernel in ("futex_do_wait", "futex_wait_queue"):
        found = hang_diagnosis([rank(0, *ALL_REDUCE), rank(1, line=41, kernel=kernel)], still())
        assert "program" not in found.why and "a lock, a queue, another thread" in found.fixes[0]
        assert found.why.startswith("rank 1 waits for a lock or another thread; ")
    found = hang_diagnosis([rank(0, *ALL_REDUCE), rank(1, line=41)], still(busy={1: 0.97}))
    assert found.why.startswith("rank 1 computes (97% of a core)")
    ends = RankStack(1, 9, (ThreadStack("", (Frame("/usr/lib/python3.11/threading.py", 1590, "_shutdown"),)),))
    found = hang_diagnosis([ends], still())
    assert found.why == "rank 1 has come to its end, and waits for a thread or process of its own that does not"
    assert "`daemon=True`" in found.fixes[0]
    assert "come to its end" not in hang_diagnosis([rank(1, ends.main[0])], still()).why


def test_different_collectives_are_a_mismatch_and_the_same_one_is_none() -> None:
    found = hang_diagnosis([rank(0, *ALL_REDUCE), rank(1, *BARRIER)], still())
    assert (found.code, found.rank) == ("collective-mismatch", None)
    assert "rank 0 has waited in all_reduce at train.py:88 and rank 1 has waited in barrier" in found.what
    same = hang_diagnosis([rank(0, *ALL_REDUCE), rank(1, *ALL_REDUCE)], still())
    assert same.code == "collective-timeout" and same.rank is None
    init = Frame(f"{TORCH}/distributed/distributed_c10d.py", 9, "init_process_group")
    apart = hang_diagnosis([rank(0, *BARRIER, init), rank(1, *BARRIER, init)], still())
    assert (apart.code, apart.rank) == ("rendezvous-failed", None) and "leave them to the launcher" in apart.fixes[0]
    assert "batches" not in str(apart) and "turn of a loop" not in apart.why
    backward = hang_diagnosis([rank(0, *ALL_REDUCE), rank(1, *BACKWARD)], still())
    assert backward.code == "collective-mismatch" and "batches" in backward.why


def test_a_hang_without_collectives_or_without_others() -> None:
    waits = (Frame(f"{TORCH}/cuda/streams.py", 231, "synchronize"),)
    for busy in ({}, {0: 1.0}):  # asleep, or spinning
        found = hang_diagnosis([rank(0, *waits)], still(busy=busy))
        assert (found.code, found.rank, found.why) == ("hang", 0, "rank 0 waits for its GPU")
    for others in (replace(still(), elsewhere=True), still(left={1: "exit status 0"})):
        assert hang_diagnosis([rank(0, *waits)], others).code == "collective-timeout"
    naps = [rank(each, line=41, kernel="hrtimer_nanosleep") for each in (0, 1)]
    for stacks, busy, named in (
        ([rank(0), rank(1)], {}, None),
        ([rank(0), rank(1), rank(2, line=41)], {}, 2),
        ([rank(0), rank(1, line=41), rank(2, line=41)], {0: 1.0}, 0),
        (naps, {}, None),
    ):
        found = hang_diagnosis(stacks, still(busy=busy))
        assert (found.code, found.rank) == ("hang", named)
        assert ("longer `--hang-timeout`" in found.fixes[-1]) == (stacks == naps)
    assert found.why == "ranks 0, 1 sleep"
    unseen = hang_diagnosis([RankStack(0, 1, problem="not asked"), RankStack(1, 2)], still())
    assert unseen.certainty == "unknown" and "not asked" in unseen.why


WAITING, ALONE = rank(0, *ALL_REDUCE), rank(1, line=41)
OTHER, WORKS = rank(1, *BARRIER), rank(0, line=90)
STARTS = (Frame("/usr/lib/python3.11/subprocess.py", 1264, "wait"),)
SHELL = [(RankStack(0, 5, problem="no Python", programs=(number,)), rank(1, *ALL_REDUCE)) for number in (7, 7, 8)]


@pytest.mark.parametrize(
    ("looks", "idle", "without_steps", "with_steps"),
    [
        # what spins hangs in collectives that are not the same; in the same one, steps tell
        ([(WAITING, OTHER)] * 5, (), True, True),
        ([(WAITING, OTHER)] * 4, (), False, False),
        ([*[(WAITING, OTHER)] * 4, (rank(0, line=90, where="save"), OTHER)], (), False, False),
        ([(WAITING, rank(1, *ALL_REDUCE))] * 5, (), False, True),
        # what computes may take any time
        ([(WORKS, ALONE)] * 5, (), False, False),
        # what does nothing and waits for no other is a hang: NCCL waits by spinning, and so does `loss.item()`
        ([(WAITING, ALONE)] * 3, (0, 1), True, True),
        ([(WAITING, ALONE)] * 2, (0, 1), False, False),
        ([(WAITING, ALONE)] * 5, (1,), True, True),
        ([(WAITING, rank(1, *LOADER))] * 3, (0, 1), True, True),
        ([*[(WAITING, ALONE)] * 2, (rank(0, line=90, where="next"), ALONE)], (0, 1), False, False),
        ([(WAITING, rank(1, where=name)) for name in ("forward", "norm", "loss")], (0, 1), False, False),
        # a script that starts other programs gets on, and a program that computes is work
        (SHELL, (0, 1), False, False),
        (SHELL[:1] * 3, (0, 1), True, True),
        ([(WAITING, rank(1, *STARTS, line=41))] * 5, (0,), False, False),
        ([(WAITING, rank(1, line=41, kernel="do_wait"))] * 5, (0, 1), True, True),
    ],
)
def test_what_stands_still(
    looks: list[tuple[RankStack, ...]], idle: tuple[int, ...], without_steps: bool, with_steps: bool
) -> None:
    assert hangs(looks, frozenset(idle), stepped=False) is without_steps
    assert hangs(looks, frozenset(idle), stepped=True) is with_steps


def test_an_ended_thread_is_named_before_what_the_ranks_wait_for() -> None:
    hang = hang_diagnosis([rank(0, *ALL_REDUCE), rank(1, line=41)], replace(still(), steps=12))
    found = with_ended_parts(hang, [(1, "thread", "ValueError: bad at data.py:9 in load")])
    assert found.why.startswith("a thread of rank 1 was ended by ValueError: bad at data.py:9 in load: ")
    assert found.why.endswith("; the last optimizer step was number 12")
    assert "rank 1's thread" in found.fixes[0]
    again = f"RuntimeError: context has already been set {IMPORTED_ANEW}"
    spawned = with_ended_parts(hang, [(0, "process", again)])
    assert spawned.why.startswith("a process of rank 0 was ended by RuntimeError: context")
    assert '`if __name__ == "__main__":`' in spawned.fixes[0]


@pytest.mark.parametrize(("code", "named"), [("rendezvous-in-script", True), ("few-threads", False)])
def test_ranks_that_never_met_are_told_by_what_the_launch_had_warned_of(tmp_path: Path, code: str, named: bool) -> None:
    warned = {"code": code, "what": "the script meets at 29500", "why": "torchrun is elsewhere", "fix": "`setdefault`"}
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "findings": [warned]}))
    folder, meets = str(tmp_path / "node-0" / "attempt-0"), Frame(ALL_REDUCE[0].file, 9, "init_process_group")
    for inner, told in (((meets,), named), (ALL_REDUCE, False)):
        stacks = (rank(0, *inner), rank(1, *inner))
        hang = describe(stacks, {}, 240.0, {}, 0, "node-1", folder)
        for found in (hang, time_is_up(stacks, 60.0, folder)):
            assert found.what.endswith(": the script meets at 29500") == told
            assert (found.fixes == ("`setdefault`",)) == ("torchrun is elsewhere" in found.why) == told


def called(number: int, line: int) -> RankStack:
    """Where a rank called its last collective, as the flight recorder has it."""
    return replace(rank(number, *ALL_REDUCE, line=line), pid=0)


def test_ranks_that_waited_in_different_calls_for_one_that_did_not_come_are_no_mismatch() -> None:
    what = "rank 0 waited in broadcast (from train.py:10), rank 1 in all_reduce (from train.py:11)"
    found = Diagnosis("collective-mismatch", "observed", what, "ranks pair up", ("look for an order",))
    stacks = [rank(0, *BARRIER), rank(1, *ALL_REDUCE), rank(2, line=9, kernel="hrtimer_nanosleep")]
    told = located(found, stacks, None)
    assert (told.code, told.rank) == ("collective-timeout", 2)
    assert told.what == f"rank 2 did not come to a collective: {what}"
    assert told.why.startswith("rank 2 was at train.py:9 in main; rank 2 sleeps") and "pair up" not in told.why
    for there in (stacks[:2], [stacks[0], rank(1, line=11)]):  # all wait; the one that is elsewhere has given up
        assert located(found, there, None).code == "collective-mismatch"
    unnamed = Diagnosis("collective-timeout", "observed", "gloo: no answer in time", "gloo waits", ("`stacks`",))
    both = located(unnamed, [rank(0, *ALL_REDUCE), *(rank(each, line=9) for each in (1, 3))], None)
    assert both.what == "ranks 1, 3 did not come to a collective: gloo: no answer in time" and both.rank is None
    assert both.fixes == ("look at what `/home/me/train.py:9` waits for: a lock, a queue, another thread",)
    apart = located(unnamed, [rank(0, *ALL_REDUCE), rank(1, line=9), rank(3, line=7, kernel="hrtimer_nanosleep")], None)
    assert apart.rank is None and "rank 3 sleeps" in apart.why
    told_by = replace(unnamed, evidence=(Evidence("node-0/attempt-0/rank-1.err", 3, "gloo"),))  # timed out itself
    assert located(told_by, [rank(0, *ALL_REDUCE), rank(1, line=9)], None).what == unnamed.what
    ends = RankStack(1, 9, (ThreadStack("", (Frame("/usr/lib/python3.11/weakref.py", 666, "_exitfunc"),)),), state="R")
    vain = replace(unnamed, what="rank 1 did not come", rank=1)
    assert located(vain, [rank(0, *ALL_REDUCE), ends], None) == vain  # it raised an exception at the same time
    ours = (Frame(f"/opt/ddplaunch/agent/rank_site/{name}.py", 9, "through") for name in ("sitecustomize", "fresh"))
    through = RankStack(1, 9, (ThreadStack("", tuple(ours)),))
    assert not calls_of(through) and located(vain, [rank(0, *ALL_REDUCE), through], None) == vain
    hook = RankStack(1, 9, (ThreadStack("", (Frame(f"{TORCH}/distributed/c10d_logger.py", 9, "hook"),)),))
    assert located(unnamed, [rank(0, *ALL_REDUCE), hook], None).what == unnamed.what


def test_a_collective_that_failed_names_who_did_not_join_and_where_each_was() -> None:
    words = "rank 1 did not come to all_reduce; rank 0 waited in vain"
    found = Diagnosis("collective-timeout", "likely", words, "a collective needs all ranks", ("look",), None)
    recorded = Flight("rank 1 did not join all_reduce (number 2); rank 0 did", (1,), (called(0, 44), called(1, 30)))
    told = located(found, (), recorded)
    assert told.rank == 1 and "rank 1 did not join all_reduce (number 2); rank 0 did" in told.what
    assert told.why.startswith("rank 1 had called its last collective as all_reduce at train.py:30; ")
    places = [(each.line, each.text) for each in told.evidence]
    assert places == [(44, "rank 0: all_reduce at train.py:44"), (30, "rank 1: all_reduce at train.py:30")]
    asleep = rank(1, line=41, where="load", kernel="hrtimer_nanosleep")
    live = located(found, (rank(0, *ALL_REDUCE), asleep), recorded)
    assert live.why.startswith("rank 1 was at train.py:41 in load; rank 1 sleeps; ") and "41" in live.fixes[0]
    assert located(found, (rank(0, *ALL_REDUCE),), None) == found  # nothing tells
    named = replace(found, rank=1)
    other = rank(2, line=90, where="report")  # on its way out
    assert located(named, (other, asleep), None).evidence[0].text == "rank 1: train.py:41 in load"


def test_a_collective_that_every_rank_had_called_is_not_blamed_on_one_of_them() -> None:
    words = "one rank was late, stuck or gone"
    found = Diagnosis("collective-timeout", "observed", "ALLREDUCE did not complete", words, ("`py-spy`", "look"), None)
    recorded = Flight("ranks 0, 1 joined all_reduce (number 2), and its end is not recorded", everyone=2)
    told = located(found, (rank(0, *ALL_REDUCE), rank(1, *ALL_REDUCE)), recorded)
    assert told.why.startswith("all 2 ranks had called it") and told.fixes[1:] == ("look",)
    assert told.evidence[-1].text == "ranks 0, 1: all_reduce at train.py:88"
    assert located(found, (), replace(recorded, everyone=0)).why == words  # one without a dump may be the one
    alone = replace(recorded, everyone=1)
    assert located(found, (), alone).why.startswith("the run has one process, and that had called it: its GPU")


def test_a_collective_that_failed_says_what_kept_the_rank_that_did_not_join() -> None:
    found = Diagnosis("collective-timeout", "observed", "rank 1 did not come", "needs all", ("look",), 1)
    stopped = located(found, [rank(0, *ALL_REDUCE), RankStack(1, 9, state="T")], None)
    assert "rank 1 is stopped, by SIGSTOP" in stopped.why and "SIGSTOP" in stopped.fixes[0]
    assert not stopped.evidence
    new_group = Frame(ALL_REDUCE[0].file, 5500, "new_group")
    elsewhere = located(found, [rank(0, *ALL_REDUCE), rank(1, new_group, line=20)], None)
    assert elsewhere.why.startswith("rank 1 was in new_group at train.py:20; ")
    assert "`if` on the rank" in elsewhere.fixes[0]
    starts = located(found, [rank(0, *ALL_REDUCE), rank(1, line=41, kernel="do_wait")], None)
    assert "waits for a program that it has started" in starts.why


# Each says that it is up where it stays.
LOOP = "def turn():\n    print('up', flush=True)\n    while True:\n        pass\nturn()\n"
READS = "import os\nprint('up', flush=True); os.read(0, 1)\n"
THREADS = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    "print('up', flush=True); time.sleep(60)\n"
)


@contextmanager
def running(program: str, *, shows: bool = True, shell: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process that stands where a rank does."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        ["/bin/sh", "-c", '"$@"; true', "sh", *command] if shell else command,
        env={**environ, **(taking_part(environ, DDPLAUNCH_STACKS="1") if shows else {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def asked(process: subprocess.Popen[str], number: int = 0) -> LiveRank:
    seen = read_process(process.pid)
    assert seen
    return LiveRank(number, process.pid, seen.start_ticks)


def test_ranks_show_where_they_are_and_go_on() -> None:
    with running(LOOP) as loop, running(READS) as reads, running(THREADS) as threads:
        until(lambda: take_stacks([asked(reads)])[0].reads, "it reads")
        for _ in range(2):  # the second time as well
            one, two, three = take_stacks([asked(loop), asked(reads, 1), asked(threads, 2)])
            assert [frame.function for frame in one.main] == ["turn", "<module>"]
            assert (one.source, one.problem) == ("faulthandler", "")
            assert two.main[0] == Frame("<string>", 2, "<module>") and two.reads.startswith("pipe:")
            assert [thread.frames[-1].function for thread in three.threads] == ["<module>", "_bootstrap"]
        assert [each.poll() for each in (loop, reads, threads)] == [None] * 3
        reads.communicate("x")  # the read that was interrupted twice still gets what comes
        assert reads.returncode == 0
    assert "turn" in stack_text(one) and "reading pipe:" in stack_text(two)


def test_what_has_not_prepared_for_the_signal_is_not_sent_it() -> None:
    caught = f"import signal\nsignal.signal({SIGNAL}, lambda *_: print('hit', flush=True))\n"
    with running(LOOP, shell=True) as process:  # a rank that is a shell script
        (one,) = take_stacks([asked(process)])
        assert one.main[0].function == "turn" and one.pid != process.pid
    with running(LOOP, shows=False, shell=True) as process:
        (one,) = take_stacks([asked(process)])
        assert [read_process(pid).command[-1] for pid in one.programs] == [LOOP], "what it started is told"  # type: ignore[union-attr]
    with running(caught + READS, shows=False) as process:  # somebody's own handler of the same signal
        (one,) = take_stacks([asked(process)])
        assert not one.threads and "`--no-stacks`" in one.problem
        assert process.communicate("x")[0] == ""


def test_a_pid_that_was_given_out_again_is_left_alone_and_a_stopped_rank_is_not_waited_for() -> None:
    with running(READS) as process:
        before = asked(process)
        (one,) = take_stacks([LiveRank(0, before.pid, before.start_ticks - 1)])
        assert not one.threads and one.problem == "it has ended"
        process.send_signal(19)
        until(lambda: (seen := read_process(process.pid)) and seen.state == "T", "stopped")
        (one,) = take_stacks([before])
        assert one.state == "T" and not one.threads and "it is stopped" in one.problem
        assert place_of(one).text == "stopped by a signal"
    (gone,) = take_stacks([before])
    assert gone.problem == "it has ended"


def test_the_command_shows_the_odd_one_out_first(tmp_path: Path, call: Call) -> None:
    with Guarded(tmp_path, subprocess.DEVNULL, subprocess.DEVNULL) as one:
        one.environment.update(LOCAL_RANK="0", **taking_part({}, DDPLAUNCH_STACKS="1"))
        one.attempt([THREADS, LOOP, THREADS])
        until(lambda: all(one.file(f"attempt-0/rank-{each}.out") for each in range(3)), "they run")
        said = call("stacks", one.run_id, "--full")
        assert said.status == ExitStatus.DONE, said.err
        head, columns, first, second = said.out.splitlines()[:4]
        assert head.startswith(f"{one.run_id}: 3 ranks here, in 2 places") and "where" in columns
        assert "rank 1" in first and " in turn" in first and "ranks 0, 2" in second
        assert "in _bootstrap" in said.out  # every thread
        value = json.loads(call("stacks", one.run_id, "--json").out)
        assert [group["ranks"] for group in value["groups"]] == [[1], [0, 2]]
        assert value["ranks"][1]["threads"][0]["frames"][0]["function"] == "turn"
        assert all(process.poll() is None for process in one.ranks.values())


def test_the_command_says_what_is_missing_and_disturbs_nobody(tmp_path: Path, call: Call) -> None:
    with Guarded(tmp_path, subprocess.DEVNULL, subprocess.DEVNULL) as one:
        one.environment.update(LOCAL_RANK="0")
        one.attempt([THREADS])
        until(lambda: one.file("attempt-0/rank-0.out") == b"up\n", "it runs")
        said = call("stacks", one.run_id)
        assert said.status == ExitStatus.FINDINGS
        assert "warning[stacks-unavailable]" in said.err and "`--no-stacks`" in said.err
        assert one.ranks[0].poll() is None
    assert call("stacks", one.run_id).status == ExitStatus.USAGE
