"""Who speaks, and what is left of a line without prefixes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ddplaunch.explain.read.lines import read_lines, reason_text
from ddplaunch.explain.read.prefixes import Speaker
from tests.explain.conftest import Same
from tests.explain.logs import lines_of, raised
from tests.golden import sections

SPEAKERS = Path(__file__).with_name("speakers.txt")


def with_speakers(log: str) -> str:
    """Return a log with who speaks below each of its lines, and what is left of the line."""
    lines = lines_of(log.rstrip("\n"))
    shown = []
    for number, raw in enumerate(log.splitlines(), start=1):
        shown.append(f"{raw}\n")
        for line in (each for each in lines if each.number == number):
            known = [(name, value) for name, value in line.speaker._asdict().items() if value is not None]
            who = " ".join(f"{name}={value}" for name, value in known if value is not False) or "nobody"
            shown.append(f"=> {who}: {line.text}\n")
    return "".join(shown)


def test_prefixes_are_stripped_and_say_who_speaks(same: Same) -> None:
    """In ``speakers.txt`` there stands below each line of a log who speaks, and what is left of it."""
    logs = ((title, re.sub(r"(?m)^=> .*\n", "", text)) for title, text in sections(SPEAKERS))
    same(SPEAKERS, "".join(f"=== {title}\n{with_speakers(log)}" for title, log in logs))


def test_a_line_of_another_rank_in_a_ranks_own_file_is_quoted() -> None:
    for own, quoted in ((Speaker(1, "a"), [True, False, False]), (Speaker(1), [False, False, False])):
        lines = read_lines(enumerate(("[rank0]: x", "[rank1]: x", "x"), start=1), "rank-1.err", own)
        assert [line.speaker.quoted for line in lines] == quoted


def test_the_last_lines_of_a_large_log_are_in_the_sample_that_its_prefixes_are_learned_from() -> None:
    texts = ["plain", "0: Traceback (most recent call last):"] * 12
    read = read_lines(enumerate(texts, start=1), "train.log", sample=12)
    assert [line.speaker.rank for line in read] == [None, 0] * 12


def test_a_reason_that_ends_with_a_colon_goes_on_in_the_next_line() -> None:
    said = ("panicked at a.rs:3:\nno such index\nnote: x", "panicked at a.rs:3\nno such index")
    assert [reason_text(lines_of(text)) for text in said] == ["panicked at a.rs:3: no such index", "panicked at a.rs:3"]
    assert reason_text([]) == ""


def test_what_is_not_seen_is_left_out() -> None:
    for raw, speaker in (
        ("\x1b[36m(RayTrainWorker pid=7)\x1b[0m [rank2]: x", Speaker(2, pid=7)),
        ("\ufeff[rank3]:\u200b\xa0x", Speaker(3)),
    ):
        (line,) = lines_of(raw)
        assert (line.text, line.speaker) == ("x", speaker)


def test_words_right_behind_a_progress_bar_are_a_line() -> None:
    def shown(*pieces: str) -> list[str]:
        return [line.text for line in lines_of("\r".join(pieces))]

    tqdm = " {:2d}%|{:<10}| {}/100 [00:0{}<00:09, 41.{}it/s]"
    bars = [tqdm.format(n, "█" * (n // 10), n, n // 50, n % 10) for n in (8, 9, 10, 99)]
    assert shown(*bars, bars[-1] + "the loss diverged")[-2:] == [bars[-1], "the loss diverged"]
    assert shown(*bars, bars[-1] + raised(None, "KeyError: 1"))[4] == "Traceback (most recent call last):"
    twice = bars[-1].strip() + "reads 9.1it/s] slower than before"
    for before in ((), bars[:2]):
        assert shown(*before, twice)[-1] == "reads 9.1it/s] slower than before"
    assert shown(*"abcd") == [*"abcd"] and shown(*"abcdef") == [*"adef"], "the first and the last frames"
    assert shown("", " ", "\n") == ["", ""]


def test_only_whole_numbers_that_can_be_ranks_are_ranks() -> None:
    for rank in (None, -1, 10**7, "3", True, 1.5, [3]):
        (line,) = lines_of(json.dumps({"rank": rank, "msg": "x"}))
        assert (line.speaker.rank, line.text) == (None, "x")
    assert lines_of(json.dumps({"global_rank": 10**7 - 1, "msg": "x"}))[0].speaker.rank == 10**7 - 1


def test_long_lines_are_cut_in_their_middle_and_evidence_at_its_end() -> None:
    lines = lines_of("a" * 4000 + "\n" + "a" * 10_000_000 + "the end\n" + "b" * 300 + "\n" + "b" * 301)
    assert [line.text for line in lines[:2]] == ["a" * 4000, "a" * 2000 + " … " + "a" * 1993 + "the end"]
    assert [line.evidence.text for line in lines[2:]] == ["b" * 300, "b" * 299 + "…"]
