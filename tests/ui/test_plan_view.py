from __future__ import annotations

from dataclasses import replace

import pytest

from ddplaunch.planning.launch import Placement, Variable
from ddplaunch.planning.options import Options
from ddplaunch.ui.plan_view import plan_json, plan_text
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import error, warning
from ddplaunch.values.resolved import Resolved, Source
from tests.conftest import Golden
from tests.planning.sample_launch import facts, launch


@pytest.mark.parametrize("width", [80, 40])
def test_tables(golden: Golden, width: int) -> None:
    golden(f"plan-{width}", plan_text(launch(), Terminal(width), facts=facts())[1])


VERBOSE = Options(verbose=Resolved(True, Source("flag", "--verbose")))


def test_every_variable_and_default_is_for_who_asks() -> None:
    short, whole = (plan_text(launch(options=options), Terminal(120))[1] for options in (Options(), VERBOSE))
    for words in ("PYTHONFAULTHANDLER", "flag: --gpus", "world size", "effective batch size", "scaling"):
        assert words in whole and words not in short


@pytest.mark.parametrize("options", [Options(), VERBOSE])
def test_a_plan_is_a_screen_and_loses_no_error(options: Options) -> None:
    kinds = ((warning, "of a host"), (warning, "of a number"), (error, "no"))
    findings = [kind("code", what, why="because\nof\nall\nof\nthat", fix="do\nall\nthis") for kind, what in kinds]
    shown, text = plan_text(launch(options=options), Terminal(80), findings, facts())
    lines = (findings_text(shown, Terminal(80)) + "\n" + text).splitlines()
    if options is VERBOSE:
        assert shown == findings and "assumptions" in lines
        return
    assert shown == [replace(findings[0], why="", fix=""), *findings[1:]]
    whole = findings_text(findings, Terminal(80)) + "\n" + plan_text(launch(), Terminal(80), (), facts())[1]
    assert len(lines) <= 40 and "  lr  --lr 0.0004 (train.py:31)" in lines
    assert lines[-1] == f"{len(whole.splitlines()) - len(lines) + 2} more lines: `--verbose`"


def test_a_number_that_may_not_train_is_in_doubt_in_the_table_too() -> None:
    doubted = launch(doubts=(("batch_size", "not passed"),))
    rows = [line.split() for line in plan_text(replace(doubted, options=VERBOSE), Terminal(120))[1].splitlines()]
    assert ["batch", "size", "per", "rank", "8?", "flag:", "--batch-size"] in rows
    assert plan_json(doubted)["doubts"] == {"batch_size": "not passed"}


def test_where_ranks_run_stands_with_its_source() -> None:
    text, source = "8 physical cores of its own", Source("flag", "--placement")
    placed = launch(placement=Placement(("0-7", "8-15"), text=text, source=source, threads=8))
    assert f"  cpus   {text} (flag: --placement)\n" in plan_text(placed, Terminal(80))[1]
    told = plan_json(placed)["placement"]
    assert (told["cpus"], told["threads"], told["source"]) == (["0-7", "8-15"], 8, "flag")
    told = plan_json(launch())
    assert told["placement"]["cpus"] == [] and told["target"]["args"] == ["--epochs", "20", "--lr", "0.0004"]
    assert told["topology"]["nproc_per_node"] == {"value": 4, "source": "flag", "detail": "NPROC"}


def test_a_long_value_is_whole_and_harms_no_terminal() -> None:
    long = Variable("DDPLAUNCH_PLAN", '{"a": 1, "b": "\x1b[2J", "c": 22222222}', Source("computed"), "the whole plan")
    gone = Variable("NAME", None, Source("default"), "not for ranks")
    _, text = plan_text(launch(environment=(long, gone, *launch().environment), options=VERBOSE), Terminal(80))
    assert "NAME                  (removed): not for ranks (default)" in text
    assert '{"a": 1, "b": "\\x1b[2J", "c": 22222222}: the whole plan (computed)' in " ".join(text.split())
    assert "\n  OMP_NUM_THREADS       4: 16 usable CPUs" in text
