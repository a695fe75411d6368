from __future__ import annotations

import pytest

from ddplaunch.planning.launch import Placement, Variable
from ddplaunch.planning.options import Options
from ddplaunch.ui.plan_view import plan_json, plan_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.resolved import Resolved, Source
from tests.conftest import Golden
from tests.planning.sample_launch import facts, launch


@pytest.mark.parametrize("width", [80, 40])
def test_tables(golden: Golden, width: int) -> None:
    golden(f"plan-{width}", plan_text(launch(), Terminal(width), facts=facts()))


VERBOSE = Options(verbose=Resolved(True, Source("flag", "--verbose")))


def test_every_variable_and_default_is_for_who_asks() -> None:
    short, whole = (plan_text(launch(options=options), Terminal(120)) for options in (Options(), VERBOSE))
    assert len(short.splitlines()) <= 40
    for words in ("PYTHONFAULTHANDLER", "flag: --gpus", "world size", "effective batch size", "scaling"):
        assert words in whole and words not in short


def test_a_number_that_may_not_train_is_in_doubt_in_the_table_too() -> None:
    doubted = launch(doubts=(("batch_size", "not passed"),))
    rows = [line.split() for line in plan_text(doubted, Terminal(120)).splitlines()]
    assert ["batch", "size", "per", "rank", "8?", "flag:", "--batch-size"] in rows
    assert plan_json(doubted)["doubts"] == {"batch_size": "not passed"}


def test_where_ranks_run_stands_with_its_source() -> None:
    placed = Placement(
        ("0-7", "8-15"), text="8 physical cores of its own", source=Source("flag", "--placement"), threads=8
    )
    assert "  cpus   8 physical cores of its own (flag: --placement)\n" in plan_text(
        launch(placement=placed), Terminal(80)
    )
    told = plan_json(launch(placement=placed))["placement"]
    assert (told["cpus"], told["threads"], told["source"]) == (["0-7", "8-15"], 8, "flag")
    assert plan_json(launch())["placement"]["cpus"] == []


def test_a_long_value_is_whole_and_harms_no_terminal() -> None:
    long = Variable("DDPLAUNCH_PLAN", '{"a": 1, "b": "\x1b[2J", "c": 22222222}', Source("computed"), "the whole plan")
    text = plan_text(launch(environment=(long, *launch().environment), options=VERBOSE), Terminal(80))
    assert '{"a": 1, "b": "\\x1b[2J", "c": 22222222}: the whole plan (computed)' in " ".join(text.split())
    assert "\n  OMP_NUM_THREADS       4: 16 usable CPUs" in text
