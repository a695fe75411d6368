from __future__ import annotations

import pytest

from ddplaunch.values.finding import UsageError
from ddplaunch.values.words import (
    age_text,
    count,
    duration_s,
    duration_text,
    in_one,
    listed,
    nearest,
    number_of_signal,
    numbers_of,
    numbers_text,
    ranks_text,
    signal_name,
    size_text,
    tallied,
)

MIB, GIB = 1 << 20, 1 << 30


def test_ages_durations_sizes_and_counts() -> None:
    ages = (None, -3, 119, 120, 7199, 7200, 172_799, 172_800)
    assert [age_text(each) for each in ages] == ["", "0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]
    texts = [duration_text(each) for each in (-5, 0.84, 9.95, 42.4, 60, 119, 3600, 3660, 86400, 111_600)]
    said = ["0.0 s", "0.8 s", "10 s", "42 s", "1 min", "1 min 59 s", "1 h", "1 h 1 min", "1 d", "1 d 7 h"]
    assert texts == said
    sizes = (None, 5, 1536, MIB, 64 * MIB, 3 * GIB // 2, 21 * GIB // 2, 512 * GIB, 2048 * GIB, 1 << 51)
    texts = ["", "5 B", "2 KiB", "1 MiB", "64 MiB", "1.5 GiB", "10 GiB", "512 GiB", "2 TiB", "2048 TiB"]
    assert [size_text(each) for each in sizes] == texts
    assert [count(1, "process"), count(2, "process"), count(0, "GPU")] == ["1 process", "2 processes", "0 GPUs"]
    assert [count(2, "batch"), count(2, "epoch")] == ["2 batches", "2 epochs"]


def test_durations_as_flags_spell_them() -> None:
    assert [duration_s("-", text) for text in ("30", "1.5h", "10m", "2 d")] == [30, 5400, 600, 172800]
    assert [duration_s("-", text) for text in ("30 secs", "2hours", "5minutes", "1day")] == [30, 7200, 300, 86400]
    for where, named in ((None, "flag: --grace"), ("train.toml", "train.toml")):
        with pytest.raises(UsageError, match="not a length of time") as problem:
            duration_s("--grace", "-1", where)
        assert problem.value.findings[0].where == (named,)


def test_lists_end_in_a_number_that_is_worth_it() -> None:
    assert [listed("abcdef"[:length], 3) for length in range(7)] == [
        "", "a", "a, b", "a, b, c", "a, b, c, d", "a, b, c and 2 more", "a, b, c and 3 more",
    ]  # fmt: skip
    assert listed("abcdef") == "a, b, c, d and 2 more"
    assert [listed(each, 3, " and ") for each in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
    assert [ranks_text(each) for each in ([3], [0, 1], [2, 0, 1], [0, 2, 3, 4], range(0, 40, 2))] == [
        "rank 3", "ranks 0, 1", "ranks 0-2", "ranks 0, 2-4", "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more",
    ]  # fmt: skip
    assert tallied(["b", "a", "b"]) == "2 × b, 1 × a"
    assert nearest("bath-size", ["epochs", "batch-size"]) == "batch-size" and nearest("x", ["epochs"]) is None
    assert nearest("--ngpus", ["--n", "--lr"]) is None and nearest("--bath", ["--batch"]) == "--batch"


def test_signals_have_names_or_numbers() -> None:
    assert [signal_name(number) for number in (9, 34, 64, 69)] == ["SIGKILL", "SIGRTMIN", "SIGRTMAX", "signal 69"]
    assert [number_of_signal(signal_name(number)) for number in range(1, 65)] == list(range(1, 65))
    assert [number_of_signal(name) for name in ("SIGNONE", "", "signal", "signal 100", "signal ٣")] == [None] * 5


def test_sentences_that_differ_in_one_word_become_one() -> None:
    assert in_one(["read `a` here", "read `b` here", "read `c` here"]) == "read `a`, `b` and `c` here"
    assert in_one(["read `a` here", "read `a` here"]) == in_one(["read `a` here"]) == "read `a` here"
    assert in_one(["{a} or `a`", "{b} or `b`"]) == "{a} or `a`; the same for the others"
    assert in_one(["one", "one more"]) == "one; the same for the others"


def test_numbers_as_the_kernel_lists_them() -> None:
    for text in ("0-3,6", "5", "", "1,3,5-7"):
        assert numbers_text(numbers_of(text)) == text
    assert [numbers_text(each) for each in ([], [2, 0, 1, 6])] == ["", "2,0-1,6"]
    assert numbers_of(" 0-1\n") == (0, 1)
    for wrong in ("all", "1-2-3", "-1"):
        with pytest.raises(ValueError, match="invalid literal"):
            numbers_of(wrong)
