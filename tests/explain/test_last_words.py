"""Which exit counts where no line explains one, and which of the rank's last lines are its reason."""

from __future__ import annotations

import pytest

from ddplaunch.explain.decide.choose import BareExit, code_with_words, unexplained, with_last_words
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.prefixes import NOBODY, Speaker
from ddplaunch.explain.read.trailer import RankExit
from tests.explain.logs import ended, lost, raised, recorded, told

ERROR = "error: no quota left"


def an_exit(
    code: int = 1, rank: int | None = 1, at: int = 90, *, seen: bool = True, by_agent: bool = False
) -> RankExit:
    return RankExit(code, Line(at, "outcome.json", 0, "", NOBODY), rank, by_agent=by_agent, seen=seen)


def said(texts: list[str], code: int = 1, seen: bool = True, complains: bool = False, file: str = "rank-1.err") -> str:
    """Return the lines that are quoted, behind `+` if they are a reason."""
    lines = [Line(at, file, at + 1, text, Speaker(1)) for at, text in enumerate(texts)]
    exit_without_reason = BareExit("unknown", an_exit(code, at=8 if seen else 40, seen=seen))
    spoken = with_last_words(exit_without_reason, lines, complains)
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


def test_stderr_counts_before_stdout_and_lines_that_no_rank_signs_only_as_a_reason() -> None:
    texts = (("rank-1.err", "oops it", 1), ("rank-1.out", ERROR, 1), ("rank-0.err", "fatal: x", 0))
    lines = [Line(at, file, 1, text, Speaker(rank)) for at, (file, text, rank) in enumerate(texts)]
    bare = BareExit("unknown", an_exit(code=2))
    assert [line.text for line in with_last_words(bare, lines, False).said] == ["oops it"]
    for file, unsigned in (("launcher.err", "config: bad"), ("launcher.err", "words"), ("train.log", "config: bad")):
        line = Line(5, file, 1, unsigned, NOBODY)
        spoken = with_last_words(bare, [lines[2], line], False)
        assert (spoken.said, spoken.gives_reason) == ((line,) if "bad" in unsigned else (), False)


def test_the_most_telling_exit_is_a_crash_then_of_who_does_not_complain_then_the_first() -> None:
    def first(*exits: RankExit, complaining: tuple[int, ...] = (), ends: dict[int | None, float] | None = None) -> str:
        chosen = unexplained(exits, ends or {}, frozenset(complaining))
        return f"{chosen.code} {chosen.exit.rank}" if chosen else ""

    plain, other, killed = an_exit(1, 0, 5), an_exit(1, 2, 6), an_exit(-9, 3, 9)
    assert first(plain, other, killed, an_exit(-6, 4, 1)) == "killed 3"
    assert first(killed, an_exit(-11, 5, 10)) == "segmentation-fault 5"
    assert first(an_exit(-6, 4, 1), other) == "unknown 2"
    assert first(an_exit(137, 4, 1), an_exit(-15, 6)) == "terminated 6", "a status that the guard saw is no signal"
    assert first(an_exit(137, 4, 1, seen=False), an_exit(-15, 6)) == "killed 4"
    assert (first(plain, other), first(plain, other, complaining=(0,))) == ("unknown 0", "unknown 2")
    assert first(plain, other, ends={2: 3.0}) == "unknown 2", "a time before none"
    assert first(plain, other, ends={2: 3.0, 0: 2.0}) == "unknown 0"
    assert first(an_exit(-9, 0, by_agent=True)) == ""


@pytest.mark.parametrize(
    ("status", "seen", "reason", "code"),
    [
        (1, True, True, "script-exception"),
        (126, True, True, "permission-denied"),
        (127, True, True, "script-not-found"),
        (127, True, False, "unknown"),
        (127, False, True, "unknown"),
        (-6, True, True, "unknown"),
        (0, True, True, "unknown"),
    ],
)
def test_a_reason_and_a_status_say_more_than_the_status(status: int, seen: bool, reason: bool, code: str) -> None:
    assert code_with_words(BareExit("unknown", an_exit(status, seen=seen), gives_reason=reason)) == code


LATE = "torch.distributed.DistNetworkError: The client socket has timed out after 6000ms while connecting to (a, 1)."
IN_THREAD = "Exception in thread T:\n" + raised(None, "KeyError: 'q'")
WARNED = "[W1102 10:00:00.1 pair.cc:1] Connection closed by peer [10.0.0.7]:4411\n"


@pytest.mark.parametrize(
    ("text", "status", "code", "rank"),
    [
        (lost(1), 1, "rank-left-early", 0),
        (lost(1), "SIGABRT", "rank-left-early", 0),
        (lost(1), "SIGKILL", "killed", 1),
        (raised(1, "ZeroDivisionError: division by zero"), 1, "script-exception", 1),
        (raised(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."), 1, "cuda-out-of-memory", 1),
        ("metrics are below the floor\n", 3, "script-exception", 1),
        (lost(1), "SIGSEGV", "segmentation-fault", 1),
        (raised(1, LATE), 1, "rank-left-early", 0),
        (lost(1) + IN_THREAD, 1, "script-exception", 1),
        (WARNED, 1, "unknown", 1),
        ("", 1, "unknown", 1),
    ],
)
def test_who_left_early_is_the_cause_of_a_rank_that_only_waited(
    text: str, status: int | str, code: str, rank: int
) -> None:
    found = recorded(("the last epoch\n", ended(0, 0, 9.0)), (text, ended(1, status, 11.0)), ("", told(2)))
    assert (found.code, found.rank) == (code, rank)
