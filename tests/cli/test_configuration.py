"""Profiles and environment files: what they may say, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from ddplaunch.cli.configuration import merge, said_in_table
from ddplaunch.cli.prepare import probe_request
from ddplaunch.planning.options import parse_options
from ddplaunch.values.resolved import Resolved, Source

FLAG = Source("flag")


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
    assert "lr_scaling" in merge({}, said_in_table({"lr-scaling": "sqrt"}, "f")), "the script's own rate is scaled"


def test_repeatable_options_are_joined_and_the_flag_comes_last() -> None:
    first = {"env": (Resolved("A=flag", FLAG),)}
    second = said_in_table({"env": ["A= =\n\x1b'é"], "nproc": 4}, "f")
    options = parse_options(merge(first, second))
    assert [item.value for item in options.env] == [("A", " =\n\x1b'é"), ("A", "flag")]
    assert options.nproc == Resolved(4, Source("profile", "f"))


@pytest.mark.parametrize(
    ("flags", "environ", "asked"),
    [
        ({}, {"MASTER_ADDR": "a", "MASTER_PORT": "29500"}, (None, 29500)),
        ({"nnodes": "2"}, {"MASTER_ADDR": "a", "MASTER_PORT": "soon"}, ("a", None)),
        ({"nnodes": "2", "node_rank": 0, "master_addr": "b"}, {"MASTER_ADDR": "a"}, ("b", None)),
        ({"nnodes": "2", "node_rank": 1, "master_port": 7}, {}, (None, None)),  # node 0 binds it
        *(({"master_port": port}, {}, (None, kept)) for port, kept in ((0, None), (65535, 65535), (65536, None))),
    ],
)
def test_what_is_asked_of_the_network(flags: dict[str, Any], environ: dict[str, str], asked: tuple[Any, Any]) -> None:
    options = parse_options({name: Resolved(value, FLAG) for name, value in flags.items()})
    request = probe_request(options, environ)
    assert (request.master_addr, request.master_port) == asked
