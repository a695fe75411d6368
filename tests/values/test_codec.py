"""Values to JSON and back: what versions may differ in, and what fits no field."""

from __future__ import annotations

import json
from dataclasses import field, replace
from enum import Enum
from typing import Any, Literal

import pytest

from ddplaunch.values.codec import from_json, from_plain, from_toml, plain, to_json
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable


class Colour(Enum):
    RED, BLUE = "red", "blue"


@dataclass(frozen=True)
class Sample:
    name: str
    fact: int | Unavailable
    maybe: int | None
    rate: float | None = None
    size: float = 0.0
    pair: tuple[int, str] = (0, "")
    numbers: tuple[float, ...] = ()
    names: frozenset[str] = frozenset()
    table: dict[str, int] = field(default_factory=dict)
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    any: Any = None


LEAST = Sample("\udcff", Unavailable("NVML: Unknown"), None)
FULL = Sample("n", 3, 7, 0.5, 2.0, (1, "x"), (1.0, 2.5), frozenset("ba"), {"k": 1}, Colour.BLUE, "b", [{"x": None}])


def test_what_is_written_is_read_also_by_newer_and_older_versions() -> None:
    for one in (LEAST, FULL):
        assert to_json(one).isascii() and from_json(to_json(one), Sample) == one
    data = json.loads(to_json(FULL))
    assert data["schema"] == 1 and data["names"] == ["a", "b"] and data["colour"] == "blue" and data["size"] == 2
    assert plain({1: (LEAST.fact,), "type": Sample}) == {"1": [{"unavailable": "NVML: Unknown"}], "type": Sample}
    assert from_toml("a = 1") == {"a": 1}
    # of a newer version come fields that are not known here; an older one lacks some
    found = from_json('{"schema": 2, "name": "n", "future": [1]}', Sample)
    assert found == replace(LEAST, name="n", fact=Unavailable("this host's ddplaunch does not report it"))
    whole = from_plain({**plain(FULL), "size": 2, "rate": 1, "fact": None}, Sample)
    assert (type(whole.size), type(whole.rate)) == (float, float) and isinstance(whole.fact, Unavailable)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("name", None, "Sample.name: NoneType instead of str"),
        ("name", 5, "Sample.name: int instead of str"),
        ("fact", True, "Sample.fact: bool instead of int"),
        ("fact", {"unavailable": 5}, "Sample.fact: dict instead of int"),
        ("maybe", {"unavailable": "x"}, "Sample.maybe: dict instead of int"),
        *(("rate", value, "instead of float") for value in (float("nan"), float("inf"), 1 << 1000)),
        ("size", True, "Sample.size: bool instead of float"),
        ("pair", [1], "Sample.pair: 1 items instead of 2"),
        ("numbers", {"a": 1}, "Sample.numbers: dict instead of list"),
        ("numbers", [1, "x"], r"Sample.numbers\[1\]: str instead of float"),
        ("names", [1], r"Sample.names\[0\]: int instead of str"),
        ("table", [], "Sample.table: list instead of dict"),
        ("table", {"k": "x"}, "Sample.table.k: str instead of int"),
        ("colour", "green", "'green' is not a valid Colour"),
        ("kind", "c", "Sample.kind: str instead of"),
    ],
)
def test_values_that_do_not_fit(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_plain({**plain(FULL), name: value}, Sample)


def test_what_is_no_value() -> None:
    with pytest.raises(ValueError, match=r"Sample\.name, which is missing: NoneType instead of str"):
        from_json('{"schema": 1}', Sample)
    for text in ("[]", "{}", '{"schema": "1"}', "login banner", ""):
        with pytest.raises(ValueError, match=r"no schema number|Expecting value"):
            from_json(text, Sample)
