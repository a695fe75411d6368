"""How sure a diagnosis of a log is, and what a run went on after."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddplaunch.explain.diagnosis import Evidence, Explanation
from ddplaunch.ui.explain_view import explanation_text
from ddplaunch.ui.terminal import Terminal
from tests.explain.logs import diagnosed, explained, failed, raised

FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.6 GiB"
NO_ROOM = "OSError: [Errno 28] No space left on device: '/scratch/last.pt'"
TIMED_OUT = (
    "[rank{0}]:[E1102 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds\n"
)


def test_only_the_files_of_a_record_are_shown_below_its_directory() -> None:
    evidence = (Evidence("/home/kim/train.py", 3, "step()"), Evidence("node-0/rank-0.err", 4, "KeyError: 1"))
    found = Explanation(replace(diagnosed(raised(0, FULL)), evidence=evidence))
    shown = explanation_text(found, "a run", Terminal(80), "runs/7")
    assert "evidence: /home/kim/train.py:3: step()" in shown and "runs/7/node-0/rank-0.err:4: KeyError" in shown


@pytest.mark.parametrize(
    ("text", "code", "rank", "certainty"),
    [
        (raised(0, FULL) + failed(1, 0, 11), "cuda-out-of-memory", 0, "observed"),  # an exception that ends a log
        ("world_size=2\n" + TIMED_OUT.format(0) + TIMED_OUT.format(1), "collective-timeout", None, "likely"),
        ("world_size=2\n" + TIMED_OUT.format(0), "collective-timeout", 1, "observed"),
        (failed(-15, 0, 10), "terminated", 0, "likely"),
    ],
)
def test_certainty(text: str, code: str, rank: int | None, certainty: str) -> None:
    found = diagnosed(text)
    assert (found.code, found.rank, found.certainty) == (code, rank, certainty)


def test_another_cause_in_the_log_is_shown_below_the_first() -> None:
    text = raised(0, FULL) + raised(1, NO_ROOM) + failed(1, 0, 11)
    found = explained(text)
    assert found.diagnosis is not None and found.diagnosis.code == "cuda-out-of-memory"
    assert [(echo.rank, echo.evidence.line) for echo in found.cascade] == [(1, 8)]


def test_where_the_work_went_on_the_last_error_that_it_passed_over_is_shown() -> None:
    steps = "".join(f"step {step} loss 2.{step}\n" for step in range(100, 900, 100))
    again = "I1102 02:00:00.000000 900 api.py:869] [default] Worker group FAILED. 3/3 attempts left; will restart\n"
    text = raised(0, FULL) + failed(1, 0, 11) + again + steps + "training finished\n"
    found = explained(text)
    assert found.diagnosis is None and found.passed_over is not None and found.passed_over.line == 4
    shown = " ".join(explanation_text(found, "train.log", Terminal(80)).split())
    assert f"nothing failed in train.log it went on after: train.log:4: {FULL}" in shown
    quoted = f'  y=disk "{NO_ROOM}"\n'
    assert explained(steps + quoted + steps + "training finished\n").passed_over is None
