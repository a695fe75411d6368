"""How numbers reach the script: placeholders, declared options, and what the script fixes itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddplaunch.launch.launch import Passed, Target
from ddplaunch.launch.options import Options
from ddplaunch.launch.script_arguments import NAMES, complete_from_script, forward, texts
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.report import DeclaredAt, DeclaredOption, Meaning, ScriptReport
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source, Unavailable

FLAG = Source("flag")
AT = DeclaredAt("train.py", 31)
KNOWN = {"batch_size": "8", "lr": "0.0004", "world_size": "4", "accum": "1"}
NO_SCRIPT = Unavailable("not a Python file")


def option(flag: str, meaning: Meaning, default: str | None = None) -> DeclaredOption:
    return DeclaredOption((flag,), AT, default=default, meaning=meaning)


def report(*options: DeclaredOption) -> ScriptReport:
    return ScriptReport("train.py", options)


def test_placeholders_are_replaced_inside_words() -> None:
    result = forward(("--bs={batch_size}", "opt.lr={lr}", "{world_size}"), KNOWN, KNOWN, NO_SCRIPT, True)
    assert result.args == ("--bs=8", "opt.lr=0.0004", "4")
    assert [each.number for each in result.passed] == ["batch_size", "lr", "world_size"]


def test_a_doubled_brace_is_literal_and_other_braces_are_left_alone() -> None:
    words = ("{{lr}}", '{"a": {"b": 1}}', "{{ jinja }}", "{}", "{LR}")
    assert forward(words, KNOWN, KNOWN, NO_SCRIPT, True).args == ("{lr}", *words[1:])


@given(st.lists(st.text(st.characters(exclude_characters="\0"))))
def test_words_without_placeholders_arrive_byte_for_byte(words: list[str]) -> None:
    clean = tuple(word for word in words if not any("{" + name + "}" in word for name in NAMES))
    assert forward(clean, KNOWN, KNOWN, NO_SCRIPT, True).args == clean


def test_a_placeholder_without_a_number_is_refused_with_the_flag_that_gives_it() -> None:
    with pytest.raises(UsageError) as caught:
        forward(("{warmup_steps}",), KNOWN, KNOWN, NO_SCRIPT, True)
    assert caught.value.findings[0].code == "placeholder-without-number"
    assert "--base-warmup" in caught.value.findings[0].fix


def test_declared_options_are_filled_in_with_the_place_of_their_declaration() -> None:
    script = report(option("--batch_size", "batch_size"), option("--learning-rate", "lr"))
    result = forward(("--epochs", "3"), KNOWN, KNOWN, script, True)
    assert result.args == ("--batch_size", "8", "--learning-rate", "0.0004", "--epochs", "3")
    assert result.passed[0] == Passed("batch_size", "8", ("--batch_size", "8"), AT)


def test_options_are_filled_in_before_the_scripts_own_separator() -> None:
    result = forward(("-v", "--", "a"), KNOWN, KNOWN, report(option("--lr", "lr")), True)
    assert result.args == ("--lr", "0.0004", "-v", "--", "a")


def test_no_forward_leaves_the_arguments_alone() -> None:
    assert forward(("-x",), KNOWN, KNOWN, report(option("--lr", "lr")), False).args == ("-x",)


def test_world_size_is_never_passed_by_itself() -> None:
    assert forward((), KNOWN, KNOWN, report(option("--world-size", "world_size")), True).args == ()


@pytest.mark.parametrize("word", ["--lr=4e-4", "--lr=0.00040"])
def test_the_same_value_may_be_said_twice(word: str) -> None:
    assert forward((word,), KNOWN, KNOWN, report(option("--lr", "lr")), True).args == (word,)


def test_a_placeholder_counts_as_passing_the_option() -> None:
    result = forward(("--lr", "{lr}"), KNOWN, KNOWN, report(option("--lr", "lr")), True)
    assert result.args == ("--lr", "0.0004")


def test_two_values_for_one_option_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        forward(("--lr", "0.1"), KNOWN, KNOWN, report(option("--lr", "lr")), True)
    finding = caught.value.findings[0]
    assert finding.code == "option-given-twice"
    assert "train.py:31" in finding.why


def test_every_known_number_has_a_text() -> None:
    numbers = Numbers(
        world_size=Resolved(8, FLAG),
        batch_size=Resolved(4, FLAG),
        lr=Resolved(0.00001, FLAG),
        warmup_steps=Resolved(0, FLAG),
    )
    assert texts(numbers, 4, 2) == {
        "world_size": "8",
        "nproc": "4",
        "nnodes": "2",
        "batch_size": "4",
        "lr": "1e-05",
        "warmup_steps": "0",
    }


SCRIPT = report(
    option("--batch-size", "batch_size", "64"),
    option("--accum", "accum", "4"),
    option("--lr", "lr", "2e-5"),
)


def test_what_the_script_is_given_fixes_the_numbers() -> None:
    found = complete_from_script(Options(), Target("script", "train.py", ("--batch-size=16",)), SCRIPT)
    assert found.batch_size == Resolved(16, Source("script", "`--batch-size` behind `--`"))
    assert found.accum == Resolved(4, Source("script", "default at train.py:31"))
    assert found.lr == Resolved(2e-5, Source("script", "default at train.py:31"))


def test_what_the_user_said_is_not_overruled() -> None:
    options = Options(batch_size=Resolved(8, FLAG), base_lr=Resolved(1e-4, FLAG))
    found = complete_from_script(options, Target("script", "train.py", ("--batch-size=16",)), SCRIPT)
    assert found.batch_size == Resolved(8, FLAG)
    assert found.lr is None


def test_defaults_give_way_to_a_global_batch_size() -> None:
    options = Options(global_batch_size=Resolved(512, FLAG))
    found = complete_from_script(options, Target("script", "train.py"), SCRIPT)
    assert found.batch_size is None and found.accum is None


@pytest.mark.parametrize("default", ["None", "auto", "0", "-1", "nan", "inf", "1.5", ""])
def test_a_default_that_is_no_size_is_left_open(default: str) -> None:
    script = report(option("--batch-size", "batch_size", default))
    assert complete_from_script(Options(), Target("script", "train.py"), script).batch_size is None
