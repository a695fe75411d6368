"""Our frozen dataclasses behave like the standard ones."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class Ours:
    """A class with a required field, a default and a factory."""

    name: str
    size: int = 3
    items: tuple[int, ...] = ()
    table: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def double(self) -> int:
        return 2 * self.size


@dataclasses.dataclass(frozen=True)
class Theirs:
    """The same by the standard library."""

    name: str
    size: int = 3
    items: tuple[int, ...] = ()
    table: dict[str, int] = dataclasses.field(default_factory=dict)


values = st.tuples(st.text(), st.integers(), st.tuples(st.integers()), st.dictionaries(st.text(), st.integers()))


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


def test_equal_values_have_equal_hashes_whatever_the_order_of_keywords() -> None:
    @dataclass(frozen=True)
    class Point:
        """Two coordinates."""

        x: int
        y: int = 0

    assert hash(Point(x=1, y=2)) == hash(Point(y=2, x=1)) and Point(1, 2) != Point(2, 1)
    assert {Point(1), Point(1, 0)} == {Point(1)}


def test_a_value_of_another_class_is_never_equal() -> None:
    ours, theirs = Ours("a"), Theirs("a")
    assert not any(one == other for one, other in [(ours, theirs), (theirs, ours)])


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


def test_a_factory_is_called_for_each_value() -> None:
    assert Ours("a").table is not Ours("a").table


def test_only_frozen_classes_are_offered() -> None:
    decorator: Any = dataclass
    with pytest.raises(TypeError):
        decorator(frozen=False)
