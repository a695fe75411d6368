"""How sure a diagnosis of a log is, and what a run went on after."""

from __future__ import annotations

from dataclasses import replace

from ddplaunch.explain.diagnosis import Evidence, Explanation
from ddplaunch.ui.explain_view import explanation_text
from ddplaunch.ui.terminal import Terminal
from tests.explain.logs import diagnosed, explained, failed, raised

FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.6 GiB"
NO_ROOM = "OSError: [Errno 28] No space left on device: '/scratch/last.pt'"


def test_only_the_files_of_a_record_are_shown_below_its_directory() -> None:
    evidence = (Evidence("/home/kim/train.py", 3, "step()"), Evidence("node-0/rank-0.err", 4, "KeyError: 1"))
    found = Explanation(replace(diagnosed(raised(0, FULL)), evidence=evidence))
    shown = explanation_text(found, "a run", Terminal(80), "runs/7")
    assert "evidence: /home/kim/train.py:3: step()" in shown and "runs/7/node-0/rank-0.err:4: KeyError" in shown


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
