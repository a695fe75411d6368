"""Our frozen dataclasses behave like the standard ones."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class Ours:
    name: str
    size: int = 3
    items: tuple[int, ...] = ()
    table: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def double(self) -> int:
        return 2 * self.size


@dataclasses.dataclass(frozen=True)
class Theirs:
    name: str
    size: int = 3
    items: tuple[int, ...] = ()
    table: dict[str, int] = dataclasses.field(default_factory=dict)


small = st.integers(0, 2)
values = st.tuples(
    st.text("ab", max_size=2), small, st.tuples(small), st.dictionaries(st.text("ab"), small, max_size=2)
)


@settings(max_examples=40)
@given(values, values, st.integers(1, 4))
def test_values_compare_print_and_convert_like_the_standard_ones(one: Any, other: Any, count: int) -> None:
    ours, theirs = Ours(*one[:count]), Theirs(*one[:count])
    assert repr(ours).replace("Ours", "Theirs", 1) == repr(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert (ours == Ours(*other)) == (theirs == Theirs(*other))
    assert dataclasses.asdict(dataclasses.replace(ours, size=9)) == dataclasses.asdict(
        dataclasses.replace(theirs, size=9)
    )
    assert pickle.loads(pickle.dumps(ours)) == copy.copy(ours) == ours
    assert not any(left == right for left, right in [(ours, theirs), (theirs, ours)])
    assert Ours("a").table is not Ours("a").table


def test_equal_values_have_equal_hashes_whatever_the_order_of_keywords() -> None:
    @dataclass(frozen=True)
    class Point:
        x: int
        y: int = 0

    assert hash(Point(x=1, y=2)) == hash(Point(y=2, x=1)) and Point(1, 2) != Point(2, 1)
    assert {Point(1), Point(1, 0)} == {Point(1)}


def test_nothing_can_be_assigned_or_deleted() -> None:
    value: Any = Ours("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.size = 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.size
    assert value.double == 6


@pytest.mark.parametrize(
    ("args", "keywords"),
    [((), {}), (("a", 1, (), {}, 5), {}), (("a",), {"name": "b"}), (("a",), {"nothing": 1}), ((), {"size": 1})],
)
def test_wrong_calls_raise_type_error_as_the_standard_ones_do(args: Any, keywords: Any) -> None:
    for kind in (Theirs, Ours):
        with pytest.raises(TypeError):
            kind(*args, **keywords)
    with pytest.raises(TypeError, match="only frozen=True"):
        dataclass(frozen=False)
