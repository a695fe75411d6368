from __future__ import annotations

import json
import os
import subprocess

import pytest
import yaml

from ddplaunch.planning.launch import Placement, Target, Variable
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.ui.plan_view import compare_text, plan_env, plan_json, plan_text, plan_yaml
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.resolved import Resolved, Source
from tests.conftest import Golden
from tests.planning.sample_launch import SHM, cpu_only, facts, launch, numbers, two_nodes

NASTY = "a'b\"c\\d $HOME `id` \n\t \x1b[0m \x7f \x85 ü × 😀 \udcff #: - yes"


@pytest.mark.parametrize("width", [80, 40])
def test_tables(golden: Golden, width: int) -> None:
    golden(f"plan-{width}", plan_text(launch(), Terminal(width), facts=facts()))


@pytest.mark.parametrize("width", [80, 40])
def test_world_sizes_side_by_side_or_below_each_other(golden: Golden, width: int) -> None:
    text = compare_text([numbers(size) for size in (1, 2, 4, 8)], Terminal(width))
    assert max(map(len, text.splitlines())) <= width
    golden(f"compare-{width}", text)


def test_every_value_stands_beside_its_source() -> None:
    text = plan_text(launch(), Terminal(120))
    assert ["base", "learning", "rate", "0.0001", "flag:", "--base-lr"] in [line.split() for line in text.splitlines()]
    assert "flag: --gpus" in text
    assert "train.py:31" in text


def test_no_view_shows_a_secret() -> None:
    views = [
        plan_text(launch(), Terminal(80)),
        json.dumps(plan_json(launch())),
        plan_yaml(launch()),
        plan_env(launch()),
    ]
    assert [view for view in views if "hunter2" in view] == []


def test_a_plan_of_numbers_alone_has_no_command() -> None:
    text = plan_text(launch(target=None), Terminal(80))
    assert "\ncommand\n" not in text
    assert plan_json(launch(target=None))["target"] is None


def test_json_carries_schema_and_sources() -> None:
    data = json.loads(json.dumps(plan_json(two_nodes(), (SHM,))))
    assert data["schema"] == 1
    assert data["numbers"]["batch_size"] == {"value": 8, "source": "flag", "detail": "--batch-size"}
    assert data["topology"]["master_addr"]["value"] == "node-1"
    assert data["findings"][0]["code"] == "shm-too-small"
    assert "dropped" not in data["numbers"]


def test_where_ranks_run_stands_with_its_source() -> None:
    placed = Placement(
        ("0-7", "8-15"), text="8 physical cores of its own", source=Source("flag", "--placement"), threads=8
    )
    assert "  CPUs           8 physical cores of its own (flag: --placement)\n" in plan_text(
        launch(placement=placed), Terminal(80)
    )
    assert plan_json(launch(placement=placed))["placement"] == {
        "cpus": ["0-7", "8-15"],
        "bound_by": "ddplaunch",
        "text": "8 physical cores of its own",
        "threads": 8,
        "source": "flag",
        "detail": "--placement",
    }
    assert plan_json(launch())["placement"]["bound_by"] is None


def test_yaml_reads_back_as_the_json() -> None:
    for one in (launch(), two_nodes(), cpu_only()):
        assert yaml.safe_load(plan_yaml(one, (SHM,))) == plan_json(one, (SHM,))


def test_yaml_of_awkward_values() -> None:
    one = launch(
        target=Target("script", NASTY, ("", "no", "1e3", "~", "{}")),
        numbers=Numbers(world_size=Resolved(4, Source("default")), lr=Resolved(1e-05, Source("flag", "--lr"))),
    )
    text = plan_yaml(one)
    assert text.isascii()
    assert yaml.safe_load(text) == plan_json(one)


def test_exports_arrive_in_bash_byte_for_byte() -> None:
    variables = (
        Variable("NASTY", NASTY, Source("flag", "--env"), "yours"),
        Variable("GONE", None, Source("default"), "not wanted"),
        Variable("not-a-name", "x", Source("flag", "--env"), "yours"),
    )
    script = plan_env(launch(environment=variables)) + 'printf \'%s|%s\' "$NASTY" "${GONE-unset}"\n'
    done = subprocess.run(
        ["bash", "-c", os.fsencode(script)], capture_output=True, check=True, env={**os.environ, "GONE": "1"}
    )
    assert done.stdout == os.fsencode(f"{NASTY}|unset")


def test_a_long_value_stands_below_the_table_and_harms_no_terminal() -> None:
    long = Variable("DDPLAUNCH_PLAN", '{"a": 1, "b": "\x1b[2J", "c": 22222222}', Source("computed"), "the whole plan")
    lines = plan_text(launch(environment=(long, *launch().environment)), Terminal(80)).splitlines()
    place = next(i for i, line in enumerate(lines) if "DDPLAUNCH_PLAN=" in line)
    assert "\\x1b[2J" in lines[place]
    assert lines[place + 1] == "      the whole plan (computed)"
    assert any(line.startswith("  OMP_NUM_THREADS       4 ") for line in lines[:place])
