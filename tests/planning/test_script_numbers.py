"""How numbers reach the script: placeholders, declared options, and what the script fixes itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddplaunch.planning.launch import Missing, Passed, Target, Topology
from ddplaunch.planning.options import Options
from ddplaunch.planning.script_numbers.forward import forward
from ddplaunch.planning.script_numbers.handed_out import NAMES, Plan, complete_from_script, given_numbers
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.script_report import (
    LOCAL_WORLD,
    WORLD,
    DeclaredAt,
    DeclaredOption,
    FixedDevices,
    Instead,
    LrRule,
    Meaning,
    ScriptReport,
)
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import DEFAULT, Resolved, Source, Unavailable

FLAG = Source("flag")
AT = DeclaredAt("train.py", 31)
NO_SCRIPT = Unavailable("not a Python file")
FOUR = Topology(Resolved(1, FLAG), Resolved(4, FLAG), 1)
NUMBERS = Numbers(
    world_size=Resolved(8, FLAG),
    batch_size=Resolved(8, FLAG),
    accum=Resolved(2, FLAG),
    global_batch_size=Resolved(128, FLAG),
    lr=Resolved(0.0004, FLAG),
    warmup_steps=Resolved(100, FLAG),
)


def plan(*given: str, automatic: bool = True, numbers: Numbers = NUMBERS) -> Plan:
    """What is handed out on 2 nodes of 4 processes: 8 samples, 2 micro-batches."""
    return Plan(numbers, 4, 2, frozenset(given), automatic)


LR_GIVEN = plan("lr")
NOTHING_GIVEN = plan()


def option(
    flag: str, meaning: Meaning, default: str | None = None, because: str = "", rule: LrRule | None = None
) -> DeclaredOption:
    return DeclaredOption(
        (flag,), AT, default=default, dest=flag.strip("-"), meaning=meaning, because=because, rule=rule
    )


def report(*options: DeclaredOption, complete: bool = True) -> ScriptReport:
    return ScriptReport("train.py", options, complete=complete)


def test_a_doubled_brace_is_literal_and_other_braces_are_left_alone() -> None:
    words = ["{{lr}}", '{"a": {"b": 1}}', "{{ jinja }}", "{}", "${lr}", "${oc.env:lr}", "{{name}}", "{question}?"]
    words += ["{{{answer}}}", "{rank}/{epoch}", "{learning_rate}", "{batch_idx:03d}"]
    assert forward(tuple(words), NOTHING_GIVEN, NO_SCRIPT).args == ("{lr}", *words[1:])


@given(st.lists(st.text(st.characters(exclude_characters="\0{"))))
def test_words_without_placeholders_arrive_byte_for_byte(words: list[str]) -> None:
    assert forward(tuple(words), NOTHING_GIVEN, NO_SCRIPT).args == tuple(words)


@pytest.mark.parametrize("name", ["lr_factor", "batchsize", "LR", "world-size", "lr:head"])
def test_a_placeholder_that_cannot_be_replaced_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        forward((f"{{{name}}}",), NOTHING_GIVEN, NO_SCRIPT)
    (finding,) = caught.value.findings
    known = name == "lr_factor"
    assert finding.code == ("placeholder-without-number" if known else "unknown-placeholder")
    assert ("--base-lr" if known else f"{{{name}}}") in finding.fix


def by(*powers: tuple[str, float], constant: float = 1.0) -> LrRule:
    return LrRule(constant, powers, AT)


def scaling(rule: LrRule) -> ScriptReport:
    return report(option("--lr", "lr", rule=rule), option("--batch", "batch_size"))


LR, EPOCHS, ACCUM = option("--lr", "lr"), option("--warmup-epochs", "warmup_epochs"), option("--accum", "accum")
BY_BATCH, UNKNOWN = by(("batch", 1.0), (WORLD, 1.0), constant=1 / 256), by(("unknown", 1.0))
TOTAL, STEP = option("--batch", "total_batch_size"), option("--batch", "global_batch_size")
MICRO, WARMUP = option("--micro", "batch_size"), option("--warmup", "warmup_steps")


@pytest.mark.parametrize(
    ("typed", "given", "script", "words", "missing"),
    [
        ("--bs={batch_size} o.lr={lr} {world_size}", "lr batch_size", NO_SCRIPT, "--bs=8 o.lr=0.0004 8", ""),
        ("--epochs 3", "batch_size lr", report(MICRO, LR), "--micro 8 --lr 0.0004 --epochs 3", ""),
        ("", "batch_size accum", report(TOTAL), "--batch 64", "accum"),
        ("", "batch_size accum", report(STEP, MICRO), "--batch 128 --micro 8", ""),  # the script divides them
        ("", "lr", report(ACCUM, LR, WARMUP), "--lr 0.0004", ""),  # only given numbers
        ("--lr=4e-4", "lr", report(LR), "--lr=4e-4", ""),
        # what the script scales is divided by its factor
        ("", "batch_size lr", scaling(by((WORLD, 1.0))), "--batch 8 --lr 5e-05", ""),
        ("", "batch_size lr", scaling(by((LOCAL_WORLD, 1.0))), "--batch 8 --lr 0.0001", ""),
        ("", "batch_size lr", scaling(by((WORLD, 0.5))), "--batch 8 --lr 0.000141421356237", ""),
        ("", "batch_size lr", scaling(BY_BATCH), "--batch 8 --lr 0.0016", ""),
        ("--batch 16", "lr", scaling(BY_BATCH), "--lr 0.0008 --batch 16", ""),
        ("", "batch_size lr", scaling(UNKNOWN), "--batch 8", "lr"),
    ],
)
def test_what_is_filled_in(typed: str, given: str, script: ScriptReport, words: str, missing: str) -> None:
    found = forward(tuple(typed.split()), plan(*given.split()), script)
    assert " ".join(found.args) == words
    assert [item.number for item in found.missing] == missing.split()


def test_what_was_filled_in_says_where_it_is_declared_and_whose_it_is() -> None:
    notes = {
        "batch_size": "",
        "node_batch_size": "of all processes on a node: ",
        "total_batch_size": "of all processes: ",
    }
    for meaning, note in {**notes, "global_batch_size": "per optimizer step: "}.items():
        declared = option("--batch", meaning, because="train.py:9 divides it")  # type: ignore[arg-type]
        (passed,) = forward((), plan("batch_size"), report(declared)).passed
        assert (passed.number, passed.at, passed.note) == (meaning, AT, f"{note}train.py:9 divides it")
        assert passed.arguments == ("--batch", passed.value)


@pytest.mark.parametrize(
    ("words", "given", "script", "why", "fix"),
    [
        ("--lr 0.1", "lr", report(LR), "train.py:31", "after `--`; or remove `--lr` or `--base-lr` before"),
        ("--batch 8", "batch_size", report(TOTAL), "of all processes", "after `--`; or remove `--batch-size` before"),
    ],
)
def test_two_values_for_one_option_are_refused(
    words: str, given: str, script: ScriptReport, why: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        forward(tuple(words.split()), plan(given), script)
    finding = caught.value.findings[0]
    assert finding.code == "option-given-twice" and why in finding.why
    assert finding.fix.startswith(f"remove `{words}` ") and fix in finding.fix


TAKES_EPOCHS = "`--warmup-epochs` takes epochs (train.py:31)"


@pytest.mark.parametrize(
    ("script", "reasons"),
    [
        (NO_SCRIPT, ["the options of the program cannot be read (not a Python file)"] * 3),
        (
            replace(report(complete=False), unread=AT),
            ["no option for it was recognized, and train.py:31 may hide one"] * 3,
        ),
        (report(EPOCHS, LR, ACCUM), [TAKES_EPOCHS]),
        (replace(report(LR), instead=(Instead("accum", "unread"),)), ["unread", "no option for it was recognized"]),
        (
            replace(report(EPOCHS, ACCUM), ambiguous=(("lr", ("--lr", "--rate")),)),
            ["`--lr` and `--rate` could take it", TAKES_EPOCHS],
        ),
        (replace(report(), configs=("a.yaml",)), ["no key for it was recognized in a.yaml"] * 3),
    ],
)
def test_a_given_number_that_does_not_arrive_is_missing_with_the_reason(
    script: ScriptReport | Unavailable, reasons: list[str]
) -> None:
    assert [item.reason for item in forward((), plan("lr", "accum", "warmup_steps"), script).missing] == reasons


@pytest.mark.parametrize(
    ("script", "fix"),
    [
        (NO_SCRIPT, "put `{lr}` after `--` where an option or key takes it; or read "),
        (report(), "read `ddplaunch.current().lr` in the script"),
        (report(complete=False), "put `{lr}` after `--` where an option or key takes it; or read "),
        (ScriptReport("train.py", instead=(Instead("lr", "it is divided", "`--lr-option=--a`"),)), "`--lr-option=--a`"),
        (ScriptReport("train.py", ambiguous=(("lr", ("--a", "--b")),)), "`--lr-option=--a` or `--lr-option=--b`"),
        (scaling(UNKNOWN), "pass `--lr` yourself after `--`; or, if it is final all the same, `--lr-option"),
    ],
)
def test_what_helps_a_number_that_is_missing_fits_the_script(script: ScriptReport | Unavailable, fix: str) -> None:
    (missing,) = forward((), LR_GIVEN, script).missing
    assert missing.fix.startswith(fix)


def test_a_unit_of_the_script_that_the_user_passes_is_the_one_that_counts() -> None:
    (missing,) = forward(("--warmup-epochs", "5"), plan("warmup_steps"), report(EPOCHS)).missing
    assert missing.reason == TAKES_EPOCHS
    how = (
        "`--warmup-epochs` yourself after `--`, if the schedule in use reads it, without `--warmup` or `--base-warmup`"
    )
    assert missing.fix == f"pass {how}"
    key = DeclaredOption(
        ("TRAIN.WARMUP_EPOCHS",), AT, dest="WARMUP_EPOCHS", meaning="warmup_epochs", spelling="k v", after_flag="--opts"
    )
    (missing,) = forward((), plan("warmup_steps"), report(key)).missing
    assert missing.fix.startswith("pass `--opts TRAIN.WARMUP_EPOCHS` yourself after `--`")


@pytest.mark.parametrize(
    ("script", "args", "receives"),
    [
        (report(option("--bs", "total_batch_size"), option("--lr", "lr")), (), ("batch_size", "lr")),
        (report(option("--bs", "batch_size"), option("--lr", "lr")), ("--bs", "8"), ("lr",)),
        (report(option("--a", "batch_size"), option("--b", "global_batch_size")), (), ("batch_size", "accum")),
        (ScriptReport("train.py", reads_env=("DDPLAUNCH_ACCUM",)), (), ("accum",)),
        (ScriptReport("train.py", asks_for=("global_batch_size", "lr")), (), ("batch_size", "lr")),
        (NO_SCRIPT, ("{accum}",), ("accum",)),
    ],
)
def test_what_the_script_receives_is_what_flags_can_change(
    script: ScriptReport | Unavailable, args: tuple[str, ...], receives: tuple[str, ...]
) -> None:
    assert forward(args, NOTHING_GIVEN, script).receives == receives


def test_no_forward_leaves_the_arguments_alone_and_says_so() -> None:
    result = forward(("-x",), plan("lr", automatic=False), report(LR))
    assert result.args == ("-x",)
    fix = "`--lr {lr}` after `--`, or no `--no-forward`"
    assert result.missing == (Missing("lr", "0.0004", "`--no-forward` leaves `--lr` alone", fix),)
    assert result.receives == ()
    assert forward(("{lr}",), plan("lr", automatic=False), report(LR)).receives == ("lr",)


def test_a_script_that_reads_the_plan_gets_its_numbers_from_the_environment() -> None:
    scripts: dict[str, Any] = {
        "DDPLAUNCH_LR": {"reads_env": ("DDPLAUNCH_LR",)},
        "DDPLAUNCH_PLAN": {"asks_for": ("lr",)},
    }
    for variable, reads in scripts.items():
        passed = forward((), LR_GIVEN, ScriptReport("train.py", **reads)).passed
        assert passed == (Passed("lr", "0.0004", (), None, variable=variable),)
    other = ScriptReport("train.py", (DeclaredOption(("--epochs",), AT),), reads_env=("DDPLAUNCH_BATCH_SIZE",))
    assert [item.number for item in forward((), LR_GIVEN, other).missing] == ["lr"]


def test_every_known_number_has_a_text() -> None:
    assert set(plan().texts()) | {"lr_factor"} == set(NAMES)
    assert plan(numbers=replace(NUMBERS, lr=Resolved(0.00001, FLAG))).texts()["lr"] == "1e-05"


def test_numbers_follow_from_what_was_given_and_defaults_do_not_count() -> None:
    one = Resolved(1, DEFAULT)
    numbers = Numbers(Resolved(4, FLAG), batch_size=Resolved(8, FLAG), accum=one, lr=Resolved(0.1, Source("script")))
    assert given_numbers(Options(batch_size=Resolved(8, FLAG)), numbers) == {"batch_size"}
    computed = Numbers(Resolved(4, FLAG), accum=Resolved(2, Source("computed")))
    assert given_numbers(Options(global_batch_size=Resolved(64, FLAG)), computed) == {"batch_size", "accum"}
    for name in ("warmup", "base_warmup"):
        found = given_numbers(Options(**{name: Resolved(64, FLAG)}), computed)  # type: ignore[arg-type]
        assert found == {"warmup_steps", "accum"}


SCRIPT = report(
    option("--batch-size", "batch_size", "64"), option("--accum", "accum", "4"), option("--lr", "lr", "2e-5")
)
DEFAULT_OF = Source("script", "default at train.py:31")
GIVEN = Target("script", "train.py", ("--batch-size=16",))


@pytest.mark.parametrize(
    ("options", "target", "batch", "accum", "lr"),
    [
        ({}, GIVEN, Resolved(16, Source("script", "`--batch-size` after `--`")), Resolved(4, DEFAULT_OF), 2e-5),
        ({"batch_size": 8, "base_lr": 1e-4}, GIVEN, Resolved(8, FLAG), Resolved(4, DEFAULT_OF), None),
        ({"global_batch_size": 512}, Target("script", "train.py"), None, None, 2e-5),
    ],
)
def test_the_scripts_own_numbers_fill_what_the_user_left_open(
    options: dict[str, float], target: Target, batch: Resolved[int] | None, accum: Resolved[int], lr: float | None
) -> None:
    said = Options(**{name: Resolved(value, FLAG) for name, value in options.items()})  # type: ignore[arg-type]
    found = complete_from_script(said, target, FOUR, SCRIPT)
    assert (found.batch_size, found.accum) == (batch, accum)
    assert found.lr == (None if lr is None else Resolved(lr, DEFAULT_OF))


@pytest.mark.parametrize(
    ("meaning", "default", "batch"),
    [
        *(("batch_size", text, None) for text in ("None", "auto", "0", "-1", "nan", "inf", "1.5", "")),
        ("total_batch_size", "64", Resolved(16, DEFAULT_OF)),
        ("total_batch_size", "65", None),  # it cannot be shared among four
    ],
)
def test_a_default_is_the_batch_of_a_rank(meaning: Meaning, default: str, batch: Resolved[int] | None) -> None:
    script = report(option("--batch-size", meaning, default))
    assert complete_from_script(Options(), Target("script", "train.py"), FOUR, script).batch_size == batch


TRAIN = Target("script", "train.py")
SCALED = report(option("--lr", "lr", "0.0005", rule=BY_BATCH), option("--batch", "batch_size", "64"))


@pytest.mark.parametrize(
    ("args", "asked", "rate", "factor"),
    [
        ("", {}, 0.0005, ""),  # 0.0005 x 64 x 4 / 256
        ("--batch 128", {}, 0.001, ", × 2 at train.py:31"),
        ("", {"global_batch_size": 1024}, 0.002, ", × 4 at train.py:31"),
        ("", {"batch_size": 128, "forward": False}, 0.0005, ""),  # the script keeps its default
    ],
)
def test_the_scripts_own_scaling_counts_the_batch_that_it_will_be_given(
    args: str, asked: dict[str, int], rate: float, factor: str
) -> None:
    said = Options(**{name: Resolved(value, FLAG) for name, value in asked.items()})  # type: ignore[arg-type]
    found = complete_from_script(said, replace(TRAIN, args=tuple(args.split())), FOUR, SCALED).lr
    assert found == Resolved(rate, Source("script", f"default at train.py:31{factor}"))


def test_a_reference_batch_of_the_script_is_the_base_of_a_given_learning_rate() -> None:
    base = Resolved(1e-3, FLAG)
    found = complete_from_script(Options(base_lr=base), TRAIN, FOUR, SCALED)
    assert found.base_batch_size == Resolved(256, Source("script", "train.py:31 scales from it"))
    assert complete_from_script(Options(base_lr=base), TRAIN, FOUR, scaling(by((WORLD, 1.0)))).base_batch_size is None
    square = report(
        option("--lr", "lr", rule=by(("batch", 0.5), constant=1 / 16)), option("--batch", "batch_size", "64")
    )
    found = complete_from_script(Options(base_lr=base), TRAIN, FOUR, square)
    assert found.base_batch_size == Resolved(256, Source("script", "train.py:31 scales from it"))
    assert found.lr_scaling == Resolved("sqrt", Source("script", "train.py:31"))
    said = Resolved(32, FLAG)
    assert (
        complete_from_script(Options(base_lr=base, base_batch_size=said), TRAIN, FOUR, SCALED).base_batch_size == said
    )


def test_what_the_script_may_train_with_instead_is_said_of_each_number() -> None:
    doubtful = replace(option("--batch_size", "batch_size"), doubt="train.py:40 may overwrite `--batch_size`")
    own = Instead("accum", "train.py:12 may decide the accumulation")
    script = replace(report(doubtful), instead=(own,))
    result = forward((), plan("batch_size", "lr"), script)
    assert result.doubts == (
        ("batch_size", "train.py:40 may overwrite `--batch_size`"),
        ("accum", "train.py:12 may decide the accumulation"),
        ("lr", "not passed, train.py decides"),
    )
    reason = NO_SCRIPT.reason
    unread = {"world_size": reason, "accum": reason, "lr": "not passed, the program decides"}
    assert dict(forward((), plan("lr"), NO_SCRIPT).doubts) == unread


def test_ranks_that_may_not_meet_leave_what_is_scaled_by_them_in_doubt() -> None:
    clause = "no process group was seen in what could be read"
    script = replace(report(LR), doubts=(("world_size", clause), ("accum", "no loop")))
    assert dict(forward((), plan("lr"), script).doubts) == {"world_size": clause, "accum": "no loop"}
    scaled = replace(NUMBERS, base_lr=Resolved(0.1, FLAG))
    assert dict(forward((), plan("lr", numbers=scaled), script).doubts)["lr"] == clause
    alone = replace(NUMBERS, world_size=Resolved(1, FLAG))
    assert "world_size" not in dict(forward((), plan("lr", numbers=alone), script).doubts)
    named = replace(script, options=(option("--accum", "accum"),))
    assert "no loop" not in dict(forward((), plan("accum"), named).doubts).values(), "somebody named its option"
    # and devices that the script fixes are compared with the launch
    fixed = {number: replace(report(), devices=FixedDevices("devices", number, AT)) for number in (1, 4)}
    nproc = plan("lr").nproc
    for number, script in fixed.items():
        fixes = dict(forward((), plan("lr"), script).doubts).get("world_size")
        assert fixes == (None if number == nproc else f"train.py:31 sets the devices to {number}")


def test_one_micro_batch_needs_no_option_and_a_whole_rate_no_point() -> None:
    one = replace(NUMBERS, accum=Resolved(1, FLAG))
    assert forward((), plan("accum", numbers=one), report()).missing == (), "one micro-batch needs no option"
    (rate,) = forward((), plan("lr", numbers=replace(NUMBERS, lr=Resolved(2.0, FLAG))), report()).missing
    assert rate.value == "2"
