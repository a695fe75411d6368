"""Which values the user already passed, in every spelling that the parsers accept."""

from __future__ import annotations

import pytest

from ddplaunch.script.declared import given
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption

AT = DeclaredAt("train.py", 1)
BATCH = DeclaredOption(("--batch-size", "-b"), AT)
BOTH = (BATCH, DeclaredOption(("--batch-norm",), AT))
CLICK = DeclaredOption(("--batch-size",), AT, parser="click")
AMP = DeclaredOption(("--amp", "--no-amp"), AT, takes_value=False)
BETA = DeclaredOption(("-beta",), AT)


@pytest.mark.parametrize(
    ("words", "option", "declared", "values"),
    [
        ("-b8", BATCH, BOTH, ("8",)),
        ("--batch-size 8 --batch-size=16", BATCH, BOTH, ("8", "16")),
        ("--batch-size=", BATCH, BOTH, ("",)),
        ("--batch_size 8", BATCH, BOTH, ()),
        ("--batch-s 8", BATCH, BOTH, ("8",)),
        ("--batch 8", BATCH, BOTH, ()),
        ("-- --batch-size 8", BATCH, BOTH, ()),
        ("--batch-size --lr", BATCH, BOTH, ()),
        ("--batch-size", BATCH, BOTH, ()),
        ("--batch-size -8", BATCH, BOTH, ("-8",)),
        ("batch-size=8", BATCH, BOTH, ()),
        ("--batch-s 8", BATCH, (), ()),  # not known to be an abbreviation without the other options
        ("--batch 8", CLICK, (CLICK,), ()),  # click knows none
        ("--amp --no-amp", AMP, (), ("True", "False")),
        ("-beta", DeclaredOption(("-b",), AT), (BETA,), ()),
    ],
)
def test_values_that_are_passed(
    words: str, option: DeclaredOption, declared: tuple[DeclaredOption, ...], values: tuple[str, ...]
) -> None:
    assert given(words.split(), option, declared) == values
