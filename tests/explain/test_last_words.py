"""Which of a rank's last lines are the reason of an exit that no line explains."""

from __future__ import annotations

import pytest

from ddplaunch.explain.decide.choose import BareExit, with_last_words
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.prefixes import NOBODY, Speaker
from ddplaunch.explain.read.trailer import RankExit

ERROR = "error: no quota left"


def said(texts: list[str], code: int = 1, seen: bool = True, complains: bool = False, file: str = "rank-1.err") -> str:
    """Return the lines that are quoted, behind `+` if they are a reason."""
    lines = [Line(at, file, at + 1, text, Speaker(1)) for at, text in enumerate(texts)]
    rank_exit = RankExit(code, Line(8 if seen else 40, "outcome.json", 0, "", NOBODY), 1, seen=seen)
    spoken = with_last_words(BareExit("unknown", rank_exit), lines, complains)
    return "+" * spoken.gives_reason + " / ".join(line.text for line in spoken.said)


WORDS = [f"word{letter} of it" for letter in "abcdefghijk"]


@pytest.mark.parametrize(
    ("texts", "code", "quoted"),
    [
        # the first of the last eight lines that reads like a reason, with three below it
        ([ERROR, *WORDS[:7]], 3, f"+{ERROR} / worda of it / wordb of it / wordc of it"),
        ([ERROR, *WORDS[:8]], 3, "wordh of it"),
        ([ERROR, "epoch 3 step 7 loss 0.3"], 3, f"+{ERROR} / epoch 3 step 7 loss 0.3"),
        (["wrong 3/128 | step 40 loss 0.31"], 3, "wrong 3/128 | step 40 loss 0.31"),
        (["ERROR step 40 loss 0.31"], 3, "+ERROR step 40 loss 0.31"),
        (
            ["[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"],
            3,
            "[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",
        ),
        (["  indented error: x", "Traceback (most recent call last):", "", "a", "NCCL INFO error: x"], 3, "a"),
        # what `sys.exit` prints leaves with status 1: two words on stderr, or a sentence with at most one number
        (["please install"], 1, "+please install"),
        (["please install"], 2, "please install"),
        (["please"], 1, "please"),
        (["INFO please install"], 1, "INFO please install"),
        (["epoch 3 ended and saved it"], 1, "+epoch 3 ended and saved it"),
        (["epoch 3 of 9 ended and saved it"], 1, "epoch 3 of 9 ended and saved it"),
        (["epoch 3 ended here"], 1, "epoch 3 ended here"),
        ([], 1, ""),
    ],
)
def test_last_words_that_give_a_reason(texts: list[str], code: int, quoted: str) -> None:
    assert said(texts, code) == quoted


def test_last_words_count_less_where_there_is_no_record_or_another_rank_is_lost() -> None:
    assert said(["please install"], complains=True) == "please install"
    assert said(["please install"], file="rank-1.out") == "please install", "two words on stdout are no message"
    assert said(["please install foo now"], file="rank-1.out") == "+please install foo now"
    assert said([ERROR, "bye"], seen=False) == "bye", "lines above the last one may be another rank's"
    assert said(["bye", ERROR], seen=False) == f"+{ERROR}"
    assert said(["bye", *["x"] * 39, ERROR, "later"], seen=False) == "x", "only what stands above its report"
    assert said([ERROR, *["x y"] * 10, ERROR]).startswith(f"+{ERROR}"), "the guard reports when all was read"
