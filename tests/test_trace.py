"""The phases of one launch, as a file."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ddplaunch.agent.protocol import Settings
from ddplaunch.agent.trace import Trace, as_svg, phases_of, process_start_s
from ddplaunch.launch.capture import EXECUTED


def test_each_phase_ends_where_the_next_begins() -> None:
    assert phases_of([("a", 1.0), ("b", 2.5)], 4.0) == [("a", 1.0, 2.5), ("b", 2.5, 4.0)]
    assert phases_of([("a", 3.0)], 2.0) == [("a", 3.0, 3.0)]  # the clock was set back
    assert phases_of([], 2.0) == []


def test_what_was_before_the_plugin_is_in_it(tmp_path: Path) -> None:
    environ = {EXECUTED: str(time.time()), "OTHER": "1"}
    trace = Trace(Settings(run_id="r", trace=str(tmp_path / "t.json"), start="warm"), environ)
    assert environ == {"OTHER": "1"}
    trace.begins("rendezvous")
    trace.write()
    told = json.loads((tmp_path / "t.json").read_text())
    assert (told["schema"], told["run_id"], told["start"], told["node"]) == (1, "r", "warm", 0)
    assert [each["phase"] for each in told["phases"]] == ["checks and plan", "import torch", "rendezvous"]
    assert 0 < process_start_s() <= told["phases"][0]["ended_s"]


def test_every_node_writes_a_file_of_its_own(tmp_path: Path) -> None:
    trace = Trace(Settings(trace=str(tmp_path / "t.svg"), node=1), {EXECUTED: "no number"})
    trace.begins("rendezvous")
    trace.write()
    (path,) = tmp_path.iterdir()
    assert path.name == "t.node-1.svg" and "cold start" in path.read_text()


def test_a_picture_is_xml_with_a_bar_for_each_phase() -> None:
    picture = as_svg({"run_id": "a<b&c", "start": "warm"}, [("one & two", 1.0, 2.0), ("three", 2.0, 2.0)])
    found = ElementTree.fromstring(picture)
    texts = [each.text for each in found.iter() if each.tag.endswith("text")]
    assert texts == ["a<b&c, warm start: 1.00 s", "one & two", "1000 ms", "three", "0 ms"]
    assert len([each for each in found.iter() if each.tag.endswith("rect")]) == 3
    ElementTree.fromstring(as_svg({"run_id": "r", "start": "cold"}, []))


@pytest.mark.parametrize("settings", [Settings(), Settings(trace="/proc/nowhere/t.json")])
def test_nothing_is_written_where_nothing_can_be(settings: Settings) -> None:
    trace = Trace(settings, {})
    trace.begins("rendezvous")
    trace.write()
