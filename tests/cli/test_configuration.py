"""Profiles and environment files: what they may say, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddplaunch.cli.configuration import merge, said_in_profile, said_in_table
from ddplaunch.planning.options import parse_options
from ddplaunch.values.resolved import Resolved, Source

FLAG = Source("flag")


def test_a_table_sets_options_with_their_source() -> None:
    table = {"batch-size": 8, "base-lr": 1, "data": ["a", "b"], "stacks": False}
    options = parse_options(said_in_table(table, "ddplaunch.toml"))
    source = Source("profile", "ddplaunch.toml")
    assert options.batch_size == Resolved(8, source)
    assert options.base_lr == Resolved(1.0, source)
    assert options.data == (Resolved("a", source), Resolved("b", source))
    assert options.stacks == Resolved(False, source)


def test_nproc_may_be_written_as_a_number() -> None:
    assert parse_options(said_in_table({"nproc": 4}, "f")).nproc == Resolved(4, Source("profile", "f"))


def test_a_profile_wins_over_the_base_and_flags_over_both() -> None:
    document = {"batch-size": 4, "accum": 2, "profiles": {"big": {"batch-size": 16}}}
    chosen = said_in_profile(document, "big", "ddplaunch.toml")
    assert chosen["batch_size"] == Resolved(16, Source("profile", "ddplaunch.toml, big"))
    assert chosen["accum"].value == 2
    assert merge({"batch_size": Resolved(32, FLAG)}, chosen)["batch_size"] == Resolved(32, FLAG)


@pytest.mark.parametrize(
    ("flags", "table", "gone"),
    [
        ({"lr": 0.1}, {"base-lr": 1e-4, "lr-scaling": "sqrt", "base-batch-size": 8}, ("base_lr", "lr_scaling")),
        ({"base_lr": 0.1}, {"lr": 1e-4}, ("lr",)),
        ({"device": "cpu"}, {"gpus": "0,1"}, ("gpus",)),
        ({"gpus": "0"}, {"device": "cpu"}, ("device",)),
        ({"nnodes": "2"}, {"nproc": "4x8"}, ("nproc",)),
    ],
)
def test_a_flag_takes_away_what_would_contradict_it(
    flags: dict[str, Any], table: dict[str, Any], gone: tuple[str, ...]
) -> None:
    said: dict[str, Any] = {name: Resolved(value, FLAG) for name, value in flags.items()}
    merged = merge(said, said_in_table(table, "f"))
    assert not merged.keys() & {*gone}
    assert merged | said == merged


def test_scaling_stays_where_a_warmup_is_left_to_scale() -> None:
    table = {"base-lr": 1e-4, "base-warmup": 100, "lr-scaling": "sqrt"}
    merged = merge({"lr": Resolved(0.1, FLAG)}, said_in_table(table, "f"))
    assert "base_lr" not in merged and "lr_scaling" in merged


def test_two_profiles_say_one_learning_rate_and_the_named_one_wins() -> None:
    document = {"lr": 1e-3, "profiles": {"big": {"lr": 1e-2}}}
    assert parse_options(said_in_profile(document, "big", "f")).lr == Resolved(1e-2, Source("profile", "f, big"))


def test_repeatable_options_are_joined_and_the_flag_comes_last() -> None:
    first = {"env": (Resolved("A=flag", FLAG),)}
    second = said_in_table({"env": ["A=file"]}, "f")
    assert [item.value for item in parse_options(merge(first, second)).env] == [("A", "file"), ("A", "flag")]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_value_arrives_unharmed(value: str) -> None:
    (pair,) = parse_options({"env": (Resolved(f"NAME={value}", FLAG),)}).env
    assert pair.value == ("NAME", value)
