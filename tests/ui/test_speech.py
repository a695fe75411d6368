from __future__ import annotations

import dataclasses

import pytest

from ddplaunch.ui.speech import called, finding_text, refusal_text
from ddplaunch.ui.terminal import Terminal, cells, cut, visible, wrap
from ddplaunch.values.finding import error
from tests.planning.sample_launch import FILES, SHM


def test_a_command_in_backticks_is_never_broken() -> None:
    command = "`sudo mount -o remount,size=16g /dev/shm`"
    finding = dataclasses.replace(SHM, fix=f"as root, {command}, then the same command again")
    assert command in finding_text(finding, Terminal(20))


def test_control_characters_of_a_path_cannot_reach_the_terminal() -> None:
    finding = error("data-missing", "data path `a\nb\x1b[2J\udcff` is missing", why="w\nv", fix="f\ng", where="x\ny")
    text = finding_text(finding, Terminal(80))
    assert text.endswith("\n  why: w\n       v\n  fix: f\n       g\n")
    assert "`a\\nb\\x1b[2J\\xff`" in text
    assert "--> x\\ny" in text
    assert "\x1b" not in text
    text.encode("utf-8")


def test_a_refusal_says_that_nothing_was_launched_and_how_to_override() -> None:
    text = refusal_text((FILES, SHM), Terminal(80))
    assert text.startswith("nothing was launched: 1 error")
    assert "`--ignore shm-too-small`" in text.replace("\n  ", " ")
    assert "open-files-low" not in text


def test_text_is_laid_out_by_the_cells_that_it_takes() -> None:
    assert wrap("first\nsecond", 40, "  fix: ", "       ") == ["  fix: first", "       second"]
    assert wrap("", 40, "  why: ", "       ") == ["  why:"]
    assert wrap("wide and wider!!", 9, "why: ", "     ") == ["why: wide", "     and", "  wider!!"]
    assert cells("数据") == 4 and cells("e\u0301") == 1 and visible("数据 ü") == "数据 ü"
    assert visible("a\nb\t", keep_newlines=True) == "a\nb\\t"
    assert [cut(text, 4) for text in ("abcd", "数据", "abcde", "数据x")] == ["abcd", "数据", "abc…", "数…"]


@pytest.mark.parametrize(
    ("fix", "in_the_words_of_the_script"),
    [
        ("`--batch-size 4` fits", "`BATCH 4` fits"),
        ("name it with `--data`", "name it with `A_ROOT or B_ROOT`"),
        ("`docker run --data`; `--data-loader x`", "`docker run --data`; `--data-loader x`"),
    ],
)
def test_fixes_are_in_the_words_of_the_script_that_was_called(
    fix: str, in_the_words_of_the_script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert called(fix) == fix
    monkeypatch.setenv("DDPLAUNCH_CALLED_AS", "--batch-size BATCH\n--data A_ROOT or B_ROOT")
    assert called(fix) == in_the_words_of_the_script
    finding = error("data-missing", "no data", why="ranks open it", fix=fix, where="--data")
    shown = finding_text(finding, Terminal(200))
    assert "  --> A_ROOT or B_ROOT\n" in shown and f"  fix: {in_the_words_of_the_script}\n" in shown
    assert "put `DDPLAUNCH_OPTIONS='--ignore data-missing'` before the command" in refusal_text(
        [finding], Terminal(200)
    )
