"""``Settings`` as text: what is written, what other versions wrote, and what no launch writes."""

from __future__ import annotations

import pytest

from ddplaunch.planning.settings import Settings


@pytest.mark.parametrize(
    "settings",
    [
        Settings("r", "d", "warm", ("a", "b.c"), 3, "0,2", verbose=True, grace_s=90.0, max_restarts=2),
        Settings("r", timeout_s=7200.0, hang_timeout_s=600.0, on_hang="stop", stacks=False),
        Settings("r", cpus=("0-15,64-79", "16-31,80-95")),
        Settings("r", observe=False, ignore=("numbers-differ", "data-not-divided")),
        Settings("r", silent=True, grace_s=0),
    ],
)
def test_settings_are_read_as_they_were_written(settings: Settings) -> None:
    assert Settings.from_json(settings.to_json()) == settings


def test_other_versions_may_say_less_or_more() -> None:
    assert Settings.from_json("{}") == Settings()
    assert Settings.from_json('{"run_id":"first","of_a_later_version":[1]}') == Settings("first")


WRONG = {
    "node": ("-1", "true", "1e3"),
    "max_restarts": ("9999999999",),
    "grace_s": ('"30"',),
    "timeout_s": ("Infinity",),
    "hang_timeout_s": ("-1",),
    "directory": ("null",),
    "show": ("0",),
    "verbose": ("1",),
    "start": ('"hot"',),
    "on_hang": ("[]",),
    "memory_bytes": ("true", "-1", "9223372036854775808"),
    "preload": ('"torch"', "[1]"),
    "cpus": ('"0-3"', "[[0, 1]]"),
    "ignore": ('"numbers-differ"',),
}


@pytest.mark.parametrize(
    "text", ["no json", "[]", *(f'{{"{name}": {value}}}' for name in WRONG for value in WRONG[name])]
)
def test_what_no_launch_writes_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        Settings.from_json(text)


@pytest.mark.parametrize(
    ("show", "rank", "expected"),
    [
        ("3", 3, (True, True)),
        ("all", 0, (True, False)),
        ("0, 3", 3, (True, False)),
        ("0,3", 1, (False, False)),
        ("1", 11, (False, False)),
    ],
)
def test_which_ranks_are_shown(show: str, rank: int, expected: tuple[bool, bool]) -> None:
    settings = Settings(show=show)
    assert (settings.shows(rank), settings.shows_alone(rank)) == expected
