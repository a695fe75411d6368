"""Which values the user already passed, in every spelling that the parsers accept."""

from __future__ import annotations

import pytest

from ddplaunch.script.declared import given
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption

AT = DeclaredAt("train.py", 1)
BATCH = DeclaredOption(("--batch-size", "-b"), AT)
NORM = DeclaredOption(("--batch-norm",), AT)
AMP = DeclaredOption(("--amp", "--no-amp"), AT, takes_value=False)


@pytest.mark.parametrize(
    ("args", "values"),
    [
        (["--batch-size", "8"], ("8",)),
        (["--batch-size=8"], ("8",)),
        (["-b8"], ("8",)),
        (["-b", "8"], ("8",)),
        (["--batch-size", "8", "--batch-size=16"], ("8", "16")),
        (["--batch-size="], ("",)),
        (["--batch_size", "8"], ()),
        (["--batch-s", "8"], ("8",)),
        (["--batch", "8"], ()),
        (["--", "--batch-size", "8"], ()),
        (["--batch-size", "--lr"], ()),
        (["--batch-size"], ()),
        (["--batch-size", "-8"], ("-8",)),
        (["batch-size=8"], ()),
        ([], ()),
    ],
)
def test_argparse_spellings(args: list[str], values: tuple[str, ...]) -> None:
    assert given(args, BATCH, (BATCH, NORM)) == values


def test_without_the_other_options_nothing_is_taken_for_an_abbreviation() -> None:
    assert given(["--batch-s", "8"], BATCH) == ()


def test_click_knows_no_abbreviations() -> None:
    flag = DeclaredOption(("--batch-size",), AT, parser="click")
    assert given(["--batch", "8"], flag, (flag,)) == ()


def test_switches_and_their_negation() -> None:
    assert given(["--amp", "--no-amp"], AMP) == ("True", "False")
    assert given(["-beta"], DeclaredOption(("-b",), AT), (DeclaredOption(("-beta",), AT),)) == ()
