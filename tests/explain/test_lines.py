"""Who speaks, and what is left of a line without prefixes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ddplaunch.explain.read.prefixes import Speaker
from tests.explain.logs import lines_of, raised
from tests.explain.test_signatures import same  # noqa: F401 - a fixture

PREFIXES = Path(__file__).with_name("prefixes.txt")


def test_prefixes_are_stripped_and_say_who_speaks(same: Callable[[Path, str], None]) -> None:  # noqa: F811
    """In ``prefixes.txt`` there stands below each line, read alone, who speaks, and what is left of it."""
    shown = []
    for raw in re.sub(r"(?m)^=> .*\n", "", PREFIXES.read_text(encoding="utf-8")).splitlines():
        (line,) = lines_of(raw)
        known = {
            name: value for name, value in line.speaker._asdict().items() if value is not None and value is not False
        }
        who = " ".join(f"{name}={value}" for name, value in known.items()) or "nobody"
        shown.append(f"{raw}\n=> {who}: {line.text}\n")
    same(PREFIXES, "".join(shown))


def test_what_is_not_seen_is_left_out() -> None:
    for raw, speaker in (
        ("\x1b[36m(RayTrainWorker pid=7)\x1b[0m [rank2]: x", Speaker(2, pid=7)),
        ("\ufeff[rank3]:\u200b\xa0x", Speaker(3)),
    ):
        (line,) = lines_of(raw)
        assert (line.text, line.speaker) == ("x", speaker)


@pytest.mark.parametrize(
    ("front", "host"),
    [("gpu-a: ", "gpu-a"), ("[alpha] ", "alpha"), ("[n2.site.org] ", "n2.site.org"), ("[10.0.0.2] ", "10.0.0.2")],
)
def test_hosts_are_learned_from_what_follows_them(front: str, host: str) -> None:
    lines = lines_of(f"{front}Traceback (most recent call last):\n{front}plain words\nValueError: not a host")
    assert [line.speaker.host for line in lines] == [host, host, None]
    assert lines[1].text == "plain words"
    level = lines_of("[INFO] Traceback (most recent call last):\n[2024.01.05] Traceback (most recent call last):\n")
    assert {line.speaker.host for line in level} == {None}


def test_a_log_that_is_indented_as_a_whole() -> None:
    texts = [line.text for line in lines_of("    Traceback\n\n      File\n    ValueError: x")]
    assert texts == ["Traceback", "", "  File", "ValueError: x"]


BEGUN = "Traceback (most recent call last):"
TOLD, PLAIN = [f"0: {BEGUN}", "1: words", f"1: {BEGUN}"], ["plain"] * 9


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        (["0: one", "1: two", "1: three", "0: four"], [0, 1, 1, 0]),
        (["7: lucky", *PLAIN], []),
        (["0: one", "1: two"], []),
        (["0: a", "1: b", "2: c", *PLAIN[:2]], []),
        ([*"ab", *["3: c"] * 4], [3] * 4),
        # fewer, but some begin like a traceback, or they are few numbers in brackets that stand there often
        ([*TOLD, *PLAIN], [0, 1, 1]),
        ([*TOLD[:2], "1: words", *PLAIN], []),
        (["[0] a", "[1] b"] * 4 + PLAIN, [0, 1] * 4),
        (["[1] a", "[2] b"] * 4 + PLAIN, []),
        (["[0] a", "[1] b"] * 3 + ["[1] c", *PLAIN], []),
    ],
)
def test_labels_of_srun_count_only_where_they_are_known_as_such(lines: list[str], ranks: list[int]) -> None:
    read = lines_of("\n".join(lines))
    assert [line.speaker.rank for line in read if line.speaker.rank is not None] == ranks
    assert [line.text for line in read if line.speaker.rank is not None] == [
        line.partition(" ")[2] for line in lines if ranks and line[0] in "[0123"
    ]


@pytest.mark.parametrize(
    ("names", "are_hosts"),
    [
        (["w-1"], True),
        (["train"], False),
        (["train", "eval"], True),
        ([*"abcdefgh"], True),
        ([*"abcdefghi"], False),
        (["train", "eval", "words", "words"], False),
    ],
)
def test_columns_of_docker_compose_are_hosts_where_they_are_numbered_or_a_few(
    names: list[str], are_hosts: bool
) -> None:
    lines = [name if name == "words" else f"{name} | words" for name in names * 2]
    read = lines_of("\n".join(lines))
    assert [line.speaker.host for line in read] == (names * 2 if are_hosts else [None] * len(lines))
    assert [line.text for line in read] == (["words"] * len(lines) if are_hosts else lines)


def test_words_right_behind_a_progress_bar_are_a_line() -> None:
    def shown(*pieces: str) -> list[str]:
        return [line.text for line in lines_of("\r".join(pieces))]

    tqdm = " {:2d}%|{:<10}| {}/100 [00:0{}<00:09, 41.{}it/s]"
    bars = [tqdm.format(n, "█" * (n // 10), n, n // 50, n % 10) for n in (8, 9, 10, 99)]
    assert shown(*bars, bars[-1] + "the loss diverged")[-2:] == [bars[-1], "the loss diverged"]
    assert shown(*bars, bars[-1] + raised(None, "KeyError: 1"))[4] == "Traceback (most recent call last):"
    twice = bars[-1].strip() + "reads 9.1it/s] slower than before"
    assert shown(twice) == [twice], "what was not redrawn is one line"
    assert shown(*bars[:2], twice)[-1] == "reads 9.1it/s] slower than before"
    assert shown(*"abcd") == [*"abcd"] and shown(*"abcdef") == [*"adef"], "the first and the last frames"
    assert shown("", " ", "\n") == ["", ""]


def test_json_records_are_unfolded() -> None:
    record = json.dumps({"level": "error", "message": "Traceback (most recent call last):\n  File\nValueError: x"})
    assert [line.text for line in lines_of(record)] == ["Traceback (most recent call last):", "  File", "ValueError: x"]
    of_rank = lines_of(json.dumps({"rank": 3, "level": "ERROR", "msg": "it ended", "exc": "Traceback\nValueError: x"}))
    assert [line.text for line in of_rank] == ["it ended", "Traceback", "ValueError: x"]
    assert {line.speaker.rank for line in of_rank} == {3}
    for rank in (None, -1, 10**7, "3", True, 1.5, [3]):
        assert [each.speaker.rank for each in lines_of(json.dumps({"rank": rank, "msg": "x"}))] == [None]
    assert lines_of(json.dumps({"global_rank": 10**7 - 1, "msg": "x"}))[0].speaker.rank == 10**7 - 1
    measured = {"loss": 0.5, "msg": "trained", "exc": "KeyError: 1", "epoch": 3, "step": "4"}
    assert [line.text for line in lines_of(json.dumps(measured))] == ["trained epoch 3 loss 0.5", "KeyError: 1"]
    for text in ('{"msg": "cut', '{"a": 1}', 'x\n {"msg": "of a page"}', '{"msg": "x"} y'):
        assert "\n".join(line.text for line in lines_of(text)) == text


def test_long_lines_are_cut_in_their_middle_and_evidence_at_its_end() -> None:
    lines = lines_of("a" * 4000 + "\n" + "a" * 10_000_000 + "the end\n" + "b" * 300 + "\n" + "b" * 301)
    assert [line.text for line in lines[:2]] == ["a" * 4000, "a" * 2000 + " … " + "a" * 1993 + "the end"]
    assert [line.evidence.text for line in lines[2:]] == ["b" * 300, "b" * 299 + "…"]


def test_a_host_is_named_behind_a_time_too() -> None:
    text = "".join(f"2025-03-30T01:12:1{at}.003Z worker-{at} | [rank{at}]: KeyError: {at}\n" for at in range(3))
    lines = lines_of(text.rstrip())
    assert [(each.speaker.host, each.speaker.rank) for each in lines] == [(f"worker-{at}", at) for at in range(3)]
    assert [each.text for each in lines] == [f"KeyError: {at}" for at in range(3)]
    (table,) = lines_of("2025-03-30T01:12:10.003Z loss | accuracy")
    assert (table.speaker.host, table.text) == (None, "loss | accuracy")


FRAMES = ["Traceback (most recent call last):", '  File "/w/train.py", line 3, in f', "    g()", "KeyError: 1"]


@pytest.mark.parametrize(
    ("front", "host"),
    [
        ("log-shipper 9f3 {}> ", None),
        ("[{}] (INFO) | ", None),
        ("row{} @ node | ", "row7"),
        ("{}\ta\t", None),
        ("gpu-b7 at {}; ", "gpu-b7"),
        ("[pod/w-1/x] gpu-b7 at {}; ", "w-1"),
        ("a" * 116 + " {}> ", None),
    ],
)
def test_what_stands_before_all_lines_is_no_part_of_them(front: str, host: str | None) -> None:
    texts = ["step 1 loss 0.5", *FRAMES, "", "[rank1]: the end"]
    lines = lines_of("\n".join(front.format(at) + text for at, text in enumerate(texts, start=7)))
    assert [line.text for line in lines] == [*texts[:-1], "the end"] and lines[-1].speaker.rank == 1
    assert lines[0].speaker.host == host


def test_what_stands_before_some_lines_is_a_part_of_them() -> None:
    said = ["loading 1", "loading 2", "worker 3 failed: " + FRAMES[0], *FRAMES[1:], "loading 4"]
    assert [line.text for line in lines_of("\n".join(said))] == said
    for few in (
        ["The replica master 0 exited. " + FRAMES[0]],
        [f"The replica {number}: {text}" for number, text in enumerate(("words", FRAMES[0], "KeyError: 1"))],
        [f"replica {number}> {text}" for number, text in enumerate(FRAMES[:2])],
        ["a" * 118 + f" {number}> {text}" for number, text in enumerate(FRAMES)],
    ):
        assert [line.text for line in lines_of("\n".join(few))] == few, "one or two lines, or wide ones, do not tell"
