"""Where ranks are by their stacks, and what a hang is said to come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.explain.decide.flight import Flight
from ddplaunch.explain.diagnosis import Diagnosis, Frame
from ddplaunch.explain.stacks.hang import NoProgress, ended_part, hang_diagnosis, located, with_ended_parts
from ddplaunch.explain.stacks.parse import (
    RankStack,
    ThreadStack,
    at_text,
    calls_of,
    dumped_calls,
    evidence_of,
    from_faulthandler,
    groups,
    is_at_its_end,
    is_through,
    place_of,
    waits_for_program,
)
from tests.explain.logs import TORCH, lines_of, raised
from tests.explain.test_traceback import tracebacks

OWN, TOP = Frame("/w/train.py", 41, "load"), Frame("/w/train.py", 9, "<module>")
REDUCE = Frame(f"{TORCH}/distributed/distributed_c10d.py", 3, "all_reduce")
BARRIER = Frame(f"{TORCH}/distributed/distributed_c10d.py", 5, "barrier")
STARTS = Frame("/usr/lib/python3.11/subprocess.py", 12, "wait")
SHUTDOWN = Frame("/usr/lib/python3.11/threading.py", 15, "_shutdown")
HOOK = Frame("/usr/lib/python3.11/x.py", 15, "excepthook")


def at(rank: int, *frames: Frame, state: str = "", kernel: str = "", problem: str = "") -> RankStack:
    threads = (ThreadStack("", frames),) if frames else ()
    return RankStack(rank, 100 + rank, threads, state, kernel, problem=problem)


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        (at(0, OWN, TOP, state="T"), "at train.py:41 in load"),
        (at(0, OWN, TOP, state="D", kernel="nfs_wait"), "at train.py:41 in load"),
        (at(0, state="T"), "stopped by a signal"),
        (at(0, state="t"), "stopped by a signal"),
        (at(0, state="D"), "in the kernel (uninterruptible)"),
        (at(0, state="D", kernel="nfs_wait"), "in the kernel (nfs_wait)"),
        (at(0, state="S"), "no Python frame"),
        (at(0, problem="not asked"), "not asked"),
        (at(0, REDUCE, TOP), "in all_reduce at train.py:9"),
        (at(0, Frame(f"{TORCH}/a.py", 1, "<lambda>"), Frame(f"{TORCH}/a.py", 2, "run"), TOP), "in run at train.py:9"),
        (at(0, Frame(f"{TORCH}/a.py", 1, "wrapper"), TOP), "at train.py:9"),
        (at(0, STARTS, Frame("<string>", 1, "<module>")), "in wait at <string>:1"),
        (at(0, STARTS, Frame("/usr/lib/python3.11/x.py", 2, "run")), "at subprocess.py:12 in wait"),
    ],
)
def test_a_place_is_told_in_words(stack: RankStack, text: str) -> None:
    (group,) = groups([stack])
    assert at_text(group) == text and place_of(stack) == group.place


def test_what_a_line_of_the_user_calls_says_what_it_waits_for_not_what_called_it() -> None:
    backward = Frame(f"{TORCH}/autograd/graph.py", 8, "_engine_run_backward")
    assert place_of(at(0, REDUCE, OWN, backward, TOP)).kind == "collective"
    assert place_of(at(0, backward, OWN, TOP)).kind == "backward" and place_of(at(0, OWN, backward, TOP)).kind == "own"


def test_threads_are_read_from_the_last_dump_with_the_main_one_first() -> None:
    dump = (
        'Thread 0x1 [pool] (most recent call first):\n  File "/w/a.py", line {} in f\n  File "/w/a.py", line ??? in g\n'
    )
    dump += 'words\n  File "/w/b.py", line 1 in of_nobody\n'
    dump += "Current thread 0x2 [python] (most recent call first):\n  <no Python frame>\n  ...\n\n"
    main, pool = from_faulthandler(dump.format(3) + dump.format(4))
    assert (main, pool.name) == (ThreadStack("python", ()), "pool")
    assert from_faulthandler("Traceback (most recent call last):\n") == ()
    assert pool.frames == (Frame("/w/a.py", 4, "f"), Frame("/w/a.py", 0, "g"))


def test_a_dump_below_a_crash_tells_the_current_thread_else_the_main_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import a\na.run()\n")
    stack = '{} 0x{} (most recent call first):\n  File "' + str(script) + '", line {} in f\n'
    two = stack.format("Thread", 1, 1), stack.format("Current thread", 2, 2), stack.format("Thread", 3, 2)
    for lines, head, place in (
        ((two[0], two[1]), "Fatal Python error: Aborted", "train.py:2 in f"),
        ((two[0], two[2]), "Timeout (0:00:30)!", "train.py:2 in f"),
        ((two[2], two[0]), "Timeout (0:00:30)!", "train.py:1 in f"),
        (two[1:2], "words\n" * 11 + "Fatal Python error: Aborted", "train.py:2 in f"),
        (two[1:2], "words\n" * 12 + "Fatal Python error: Aborted", ""),
        (two[1:2], "words", ""),
    ):
        text = f"{head}\n\n{''.join(lines)}"
        calls = dumped_calls(lines_of(text), read_files=True)
        assert "".join(call.place for call in calls) == place and len(calls) == bool(place)
        assert [call.source for call in calls] == (["a.run()"] if "2" in place else ["import a"] if place else [])
        assert {call.source for call in dumped_calls(lines_of(text))} <= {""}
    assert calls_of(at(0, Frame(str(script), 2, "f")))[0].source == "a.run()"


def test_what_a_rank_waits_for_at_its_end_or_of_a_program() -> None:
    assert waits_for_program(at(0, STARTS, OWN)) and waits_for_program(at(0, OWN, kernel="__do_wait"))
    assert not (waits_for_program(at(0, OWN, STARTS)) or waits_for_program(at(0, OWN, kernel="futex_do_wait")))
    assert is_through(at(0, SHUTDOWN)) and not (is_through(at(0, SHUTDOWN, OWN)) or is_through(at(0, STARTS)))
    assert is_at_its_end(at(0, HOOK, OWN)) and not (is_at_its_end(at(0, OWN)) or is_at_its_end(at(0)))
    found = groups(at(rank, replace(OWN, line=rank)) for rank in range(1, 6))
    assert [evidence.line for evidence in evidence_of(found)] == [1, 2, 3, 4]


STILL = NoProgress(240.0, {}, {}, "node-1")


def test_a_hang_is_of_the_rank_that_is_elsewhere() -> None:
    both = [at(0, OWN), at(1, OWN), at(2, replace(OWN, line=5))]
    assert hang_diagnosis(both, STILL).rank == 2
    assert hang_diagnosis(both[:1] + both[2:], STILL).rank is None, "one each tells nothing"
    assert hang_diagnosis(both, replace(STILL, busy={0: 0.9})).rank is None, "two are in the place that computes"
    assert hang_diagnosis(both, replace(STILL, busy={2: 0.9})).rank == 2
    assert hang_diagnosis(both[:2], replace(STILL, busy={0: 0.9})).rank is None, "all are there"
    many = [at(rank, replace(OWN, line=50 - rank)) for rank in range(5)]
    assert [f"train.py:{line}" in hang_diagnosis(many, STILL).what for line in (50, 49, 48, 47)] == [True] * 3 + [False]
    late = hang_diagnosis([at(0, REDUCE, TOP), *many[1:]], STILL)
    assert [f"train.py:{line}" in late.what for line in (49, 48, 47, 46)] == [True] * 3 + [False]
    assert late.calls[0].place == "train.py:49 in load" and late.rank is None
    odd = hang_diagnosis([at(0, BARRIER, TOP), *(at(rank, REDUCE, TOP) for rank in (1, 2))], STILL)
    assert (odd.code, odd.rank) == ("collective-mismatch", 0)
    graph, device = f"{TORCH}/autograd/graph.py", f"{TORCH}/cuda/__init__.py"
    there = [Frame(graph, 8, "_engine_run_backward"), Frame(device, 8, "synchronize")]
    step, gpu = (hang_diagnosis([at(0, BARRIER, TOP), at(1, frame, TOP)], STILL) for frame in there)
    assert step.code == "collective-mismatch" and "more batches than the other" in step.why and "Join" in step.fixes[0]
    assert gpu.code == "collective-timeout", "a GPU may wait for the barrier of the others"
    two = hang_diagnosis([at(0, there[0], TOP), at(1, there[0], replace(TOP, line=12))], STILL)
    assert two.code == "collective-mismatch" and "Join" not in two.fixes[0], "each has called backward"
    both, done = [at(0, REDUCE, TOP), at(1, BARRIER, TOP)], replace(STILL, left={1: "exit status 0"})
    for stacks, measured in ((both, STILL), (both[:1], done)):
        stories = [hang_diagnosis(stacks, replace(measured, steps=steps)) for steps in (0, 3)]
        assert ["Join" in " ".join(story.fixes) for story in stories] == [False, True], "no batches before a step"
    apart = [
        at(rank, Frame(REDUCE.file, 3, name), TOP)
        for rank, name in enumerate(("all_reduce", "barrier", "gather", "scatter"))
    ]
    assert "barrier at train.py:9 and elsewhere" in hang_diagnosis(apart, STILL).what
    assert " and elsewhere" in hang_diagnosis(apart[:3], replace(STILL, left={7: "exit status 0"})).what
    assert " and elsewhere" not in hang_diagnosis(apart[:2], replace(STILL, left={7: "exit status 0"})).what


def test_a_failed_collective_is_located_by_who_was_elsewhere() -> None:
    found = Diagnosis("collective-timeout", "observed", "it timed out", "gloo waits", ("look",), None)
    there = located(found, [at(0, REDUCE, TOP), at(1, OWN, TOP)], None)
    assert (there.rank, [call.place for call in there.calls]) == (1, ["train.py:9", "train.py:41 in load"])
    named = replace(found, rank=1)
    assert located(named, [at(0, REDUCE, TOP), at(1, OWN, TOP)], None).what == found.what, "it is named already"
    both = located(found, (), Flight("what", (0, 1), (at(0, REDUCE, OWN), at(1, BARRIER, OWN))))
    assert both.why.startswith("rank 0 had called its last collective as all_reduce at train.py:41; rank 1 had called")
    assert both.rank is None and both.what == "what"


def test_a_part_of_a_rank_that_an_exception_ended_is_named() -> None:
    (thread,) = tracebacks("Exception in thread T:\n" + raised(None, "ValueError: " + "x" * 200))
    assert ended_part(thread) == ("thread", f"ValueError: {'x' * 148} at train.py:31 in main")
    anew = raised(None, "ValueError: x").replace("in main", "in _fixup_main_from_path")
    assert ended_part(tracebacks(anew)[0])[1].endswith(" as it imported the script anew")
    story = hang_diagnosis([at(0, OWN)], STILL)
    assert with_ended_parts(story, ()) == story
    three = with_ended_parts(story, [(rank, "thread", f"KeyError: {rank}") for rank in (1, 2, 3)])
    assert "KeyError: 2" in three.why and "KeyError: 3" not in three.why
