"""What `ddplaunch fit` answers, as people read it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ddplaunch.scaling.largest_batch import FitCommand, Fitted, FitTrial, Tried, fastest, largest, modelled
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import warning
from ddplaunch.watch.fit_view import fit_json, fit_text, never_fits, trial_text
from tests.conftest import Golden

MIB = 1 << 20
TOLD = warning("numbers-differ", "each rank loads 4 samples at a time", why="the plan says 8", fix="look")
TRIED = (
    Tried(8, True, 338 * MIB, 900 * MIB, 1200.0),
    Tried(128, True, 458 * MIB, 900 * MIB, 4100.0),
    Tried(640, False, None, 900 * MIB),
    Tried(496, True, 828 * MIB, 900 * MIB, 4520.0),
    Tried(472, True, 806 * MIB, 900 * MIB, 4510.0),
    *(Tried(batch, True, peak * MIB, 900 * MIB) for batch, peak in ((480, 808), (236, 566))),
)
NOTES = {640: "out of memory", 236: "it ended after 4 steps", 480: "it ended after 2 steps"}
TRIALS = tuple(FitTrial(each, 1, 40, NOTES.get(each.batch, ""), f"fit-a.batch-{each.batch}", 12.3) for each in TRIED)
WORDS = ("ddplaunch", "run", "2", "--batch-size", "32", "--", "train.py", "--name", "a b")
FOUND = Fitted(
    trials=TRIALS,
    headroom=0.1,
    device="cpu",
    best=largest(TRIED, 0.1),
    fastest=fastest(TRIED, 0.1),
    model=modelled(TRIED),
    command=FitCommand(
        472, 944, False, (*WORDS[:4], "472", "--base-lr", "0.01", "--base-batch-size", "64", *WORDS[5:])
    ),
)


@pytest.mark.parametrize("width", [40, 80])
def test_the_answer(golden: Golden, width: int) -> None:
    found = FOUND if width == 80 else replace(FOUND, trials=TRIALS[4:6])  # the fastest is compared with none
    golden(f"fit-{width}", fit_text(found, Terminal(width=width)))


def test_each_trial_has_a_line_and_a_finding_of_several_is_shown_once() -> None:
    twice = replace(FOUND, trials=tuple(replace(each, observed=(TOLD,)) for each in TRIALS))
    assert fit_text(twice, Terminal(width=80)).count("warning[numbers-differ]: each rank loads 4") == 1
    assert [trial_text(each, 0.1) for each in TRIALS[1:4]] == [
        "batch 128: yes, 458 MiB of 900 MiB, 4100 samples/s (12 s)\n",
        "batch 640: no: out of memory (12 s)\n",
        "batch 496: no: less than 10 % free, 828 MiB of 900 MiB, 4520 samples/s (12 s)\n",
    ]


def test_json_has_everything() -> None:
    data = json.loads(json.dumps(fit_json(FOUND)))
    assert data["schema"] == 2 and data["best"]["batch"] == 480 and data["command"]["words"][:4] == list(WORDS[:4])
    assert "".join("ny"[each["fits"]] for each in data["trials"]) == "yynnyyy" and data["headroom"] == 0.1


@pytest.mark.parametrize("whole", [False, True])
def test_what_never_fits_is_said_with_what_it_took(whole: bool) -> None:
    fitted = Fitted((TRIALS[2],), 0.1, "cpu", problem=never_fits(TRIALS[2], 0.1, whole=whole))
    text = fit_text(fitted, Terminal(width=80))
    assert "error[batch-never-fits]" in text and "with 640 samples per process memory" in text
    assert ("--global-batch-size" in text) == whole
