"""What the user says of the script's options: in the place of what was read, and refused where it cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddplaunch.planning.launch import Target
from ddplaunch.planning.options import Options, parse_options
from ddplaunch.planning.script_numbers.as_said import understood_as_said
from ddplaunch.planning.script_numbers.forward import forward
from ddplaunch.planning.script_numbers.handed_out import Plan, withheld_numbers
from ddplaunch.script.script_report import WORLD, DeclaredAt, DeclaredOption, LrRule, Meaning, ScriptReport
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.planning.test_script_numbers import NUMBERS as FINAL

FLAG = Source("flag")
AT = DeclaredAt("train.py", 3)
TRAIN = Target("script", "train.py")
EVERY = frozenset({"batch_size", "accum", "lr", "warmup_steps"})
NUMBERS = replace(FINAL, base_lr=Resolved(0.1, FLAG), lr_factor=Resolved(4.0, FLAG), lr=Resolved(0.4, FLAG))


def said(**values: str) -> Options:
    return parse_options({name: Resolved(value, FLAG) for name, value in values.items()})


def option(flag: str, meaning: Meaning | None = None, **more: Any) -> DeclaredOption:
    return DeclaredOption((flag,), AT, dest=flag.strip("-").replace("-", "_"), meaning=meaning, **more)


BY_RANKS = LrRule(1.0, ((WORLD, 1.0),), AT)
READ = ScriptReport(
    "train.py",
    (
        option("--batch-size", "batch_size", because="train.py:9 hands it to DataLoader"),
        option("--images"),
        option("--lr", "lr", rule=BY_RANKS),
        option("--head-lr"),
        option("--accum", "accum"),
        option("--micro-steps"),
        option("--warmup", "warmup_steps"),
        option("--amp", takes_value=False),
        option("--sizes", fillable=False),
    ),
)


def passed(options: Options, script: ScriptReport | Unavailable = READ, target: Target = TRAIN) -> tuple[str, ...]:
    """What is put into the arguments on 2 nodes of 4 processes, for 8 samples x 2 and a learning rate of 0.1 x 4."""
    understood = understood_as_said(script, options, target)
    executable = target.kind == "executable"
    plan = Plan(NUMBERS, 4, 2, EVERY, withheld=withheld_numbers(options), executable=executable)
    return forward(target.args, plan, understood).args


READ_ARGS = ("--batch-size", "8", "--accum", "2", "--warmup", "100", "--lr", "0.05")


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("batch_option", "--batch-size:node", ("--batch-size", "32")),
        ("batch_option", "--batch-size:step", ("--batch-size", "128")),
        ("batch_option", "batch_size:total", ("--batch-size", "64")),
        ("batch_option", "--images", ("--images", "8")),
        ("batch_option", "none", ()),
        ("lr_option", "--lr:final", ("--lr", "0.4")),
        ("lr_option", "--lr:base", ("--lr", "0.1")),
        ("lr_option", "head-lr", ("--head-lr", "0.4")),
        ("accum_option", "--micro-steps", ("--micro-steps", "2")),
        ("warmup_option", "warmup:steps", ("--warmup", "100")),
    ],
)
def test_what_is_said_wins_over_what_was_read(flag: str, value: str, words: tuple[str, ...]) -> None:
    name = "--" + flag.removesuffix("_option").replace("batch", "batch-size")
    at = READ_ARGS.index(name)
    others = READ_ARGS[:at] + READ_ARGS[at + 2 :]
    result = passed(said(**{flag: value}))
    assert sorted(result) == sorted(others + words)
    assert not words or result[result.index(words[0]) + 1] == words[1]


def test_an_ambiguity_is_resolved_with_what_was_read_of_it() -> None:
    of_both: Any = (("total_batch_size", ("--a", "--b")), ("lr", ("--a", "--b")))
    script = ScriptReport("train.py", (option("--a"), option("--b")), ambiguous=of_both)
    understood = understood_as_said(script, said(batch_option="--b"), TRAIN)
    assert isinstance(understood, ScriptReport)
    assert [each.meaning for each in understood.options] == [None, "total_batch_size"]
    assert understood.ambiguous == of_both[1:]


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("--batchsize", "name one of those"),
        *(
            (value, "put `{batch_size}` after `--` where an option or key takes it")
            for value in ("--q:total", "amp", "sizes")
        ),
    ],
)
def test_an_option_that_cannot_take_a_number_is_refused_with_those_that_can(value: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        understood_as_said(READ, said(batch_option=value), TRAIN)
    finding = caught.value.findings[0]
    assert finding.code == "script-option-unknown" and fix in finding.fix
    assert f"train.py declares no option `{value.partition(':')[0]}` that can be filled in" in finding.what
    assert finding.why == (
        "it declares `--batch-size`, `--images`, `--lr`, `--head-lr`, `--accum`, `--micro-steps`, `--warmup`"
    )
    with pytest.raises(UsageError) as caught:
        understood_as_said(ScriptReport("train.py"), said(batch_option=value), TRAIN)
    assert caught.value.findings[0].fix.startswith("put `{batch_size}`")


@pytest.mark.parametrize("script", [replace(READ, complete=False), Unavailable("not a Python file")])
def test_an_option_that_could_not_be_read_is_believed(script: ScriptReport | Unavailable) -> None:
    assert passed(said(lr_option="--opt.lr"), script)[-2:] == ("--opt.lr", "0.4")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("a=1", "opt.lr=0.4")),
        ((DeclaredOption(("MODEL.BASE",), AT, spelling="k v", comes_first=False),), ("a=1", "opt.lr", "0.4")),
        ((DeclaredOption(("x",), AT, spelling="k=v", after_flag="--opts"),), ("a=1", "--opts", "opt.lr=0.4")),
    ],
)
def test_a_key_that_could_not_be_read_is_passed_like_the_other_keys(
    options: tuple[DeclaredOption, ...], words: tuple[str, ...]
) -> None:
    script = ScriptReport("train.py", options, complete=False)
    understood = understood_as_said(script, said(lr_option="opt.lr"), TRAIN)
    assert forward(("a=1",), Plan(NUMBERS, 4, 2, frozenset({"lr"})), understood).args == words


def test_a_program_of_another_kind_gets_its_options_behind_its_own_arguments() -> None:
    run = Target("executable", "/usr/bin/bash", ("run.sh",))
    assert passed(said(batch_option="batch:total"), Unavailable("no Python"), run) == ("run.sh", "--batch", "64")


def test_a_base_that_nobody_gave_does_not_arrive() -> None:
    options = said(lr_option="lr:base")
    passes = forward((), Plan(NUMBERS, 4, 2, frozenset({"lr"})), understood_as_said(READ, options, TRAIN)).passed
    assert [(one.value, one.note) for one in passes] == [("0.1", "the base one: the script scales it")]
    (missing,) = forward((), Plan(FINAL, 4, 2, frozenset({"lr"})), understood_as_said(READ, options, TRAIN)).missing
    assert missing.reason == "the script scales `--lr`, and nothing says from what"


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("batch_option", "", "NAME:rank|node|total|step"),
        ("batch_option", "--bs:", "NAME:rank"),
        ("lr_option", "--lr:total", "NAME:final|base"),
        ("accum_option", "--accum:steps", "it takes NAME or `none`"),
        ("warmup_option", "two words", "NAME:steps"),
    ],
)
def test_a_word_that_does_not_exist_is_refused_with_those_that_do(flag: str, value: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        said(**{flag: value})
    assert words in caught.value.findings[0].why
