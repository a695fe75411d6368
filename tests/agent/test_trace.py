"""The phases of one launch, as a file."""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ddplaunch.agent.plugin.trace import Trace, as_svg, file_of, phases_of, read_marks, with_parts
from ddplaunch.agent.rank_site import ddplaunch_marks, taking_part
from ddplaunch.planning.settings import Settings
from ddplaunch.values.variable_names import EXECUTED


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
    assert 0 < told["phases"][0]["began_s"] <= told["phases"][0]["ended_s"]


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


def test_the_last_rank_divides_the_phase_of_its_script() -> None:
    phases = [("start the ranks", 1.0, 2.0), ("script", 2.0, 9.0), ("script", 11.0, 12.0), ("end", 12.0, 13.0)]
    cold = [{"python_s": 2.5, "torch_s": 4.0, "collective_s": 5.0}, {"python_s": 2.25, "torch_s": 4.5}]
    forked = [{"collective_s": 11.5}]
    assert with_parts(phases, [cold, forked]) == [
        phases[0],
        ("Python in the ranks", 2.0, 2.5),
        ("import torch in the ranks", 2.5, 4.5),  # one rank has not noted a collective
        ("script", 4.5, 9.0),
        ("until the first collective", 11.0, 11.5),
        ("script", 11.5, 12.0),
        phases[3],
    ]
    assert with_parts(phases, []) == with_parts(phases, [[], []]) == phases


def test_a_rank_notes_when_it_had_python_torch_and_a_collective(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("from torch import _C")
    (tmp_path / "torch" / "_C.py").write_text(
        "import json, sys, time, types\nc10d = types.ModuleType('torch._C._distributed_c10d')\nentries = "
        "[{'record_id': 0, 'time_created_ns': time.time_ns()}]\nc10d._dump_fr_trace_json = lambda **_: "
        "json.dumps({'entries': entries})\nsys.modules[c10d.__name__] = c10d\n"
    )
    (tmp_path / "train.py").write_text(
        "import os, sys\nassert not {'DDPLAUNCH_MARKS', 'ddplaunch_marks'} & {*os.environ, *sys.modules}\nassert "
        "os.environ['PYTHONPATH'] == os.path.dirname(os.path.abspath(__file__))\nif sys.argv[1:]: import torch"
    )
    began = time.time()
    for rank, words in enumerate(([], ["torch"])):
        given = {**os.environ, "PYTHONPATH": str(tmp_path)}
        env = {**given, **taking_part(given, stacks=True, marks=str(file_of(tmp_path, rank)))}
        command = [sys.executable, "train.py", *words]
        subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=60)
    without, full = read_marks(tmp_path)
    assert set(without) == {"python_s"} and set(full) == {"python_s", "torch_s", "collective_s"}
    assert began <= full["python_s"] <= full["collective_s"] <= full["torch_s"] <= time.time()


def test_notes_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    file_of(tmp_path, 0).write_text("{")
    file_of(tmp_path, 1).write_text("[]")
    file_of(tmp_path, 2).write_text('{"python_s": 1.5, "torch_s": null}')
    assert read_marks(tmp_path) == [{"python_s": 1.5}]
    assert read_marks(tmp_path / "absent") == []


def test_an_import_without_the_collector_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The collector is as before, also behind an import that fails, and whose traceback shows the importer alone."""
    monkeypatch.syspath_prepend(tmp_path)
    finders, frozen = [*sys.meta_path], gc.get_freeze_count()
    request.addfinalizer(gc.enable)
    for name, raises, on in (("quick_a", False, True), ("quick_b", True, True), ("quick_c", False, False)):
        text = "import gc\nassert not gc.isenabled()\n"
        (tmp_path / f"{name}.py").write_text(f"{text}raise ImportError('no library')\n" if raises else text)
        (gc.enable if on else gc.disable)()
        ddplaunch_marks.import_quickly(name)
        if raises:
            with pytest.raises(ImportError, match="no library") as failed:
                importlib.import_module(name)
            assert not any("ddplaunch_marks" in str(each.path) for each in failed.traceback)
        else:
            module = importlib.import_module(name)
            assert type(module.__spec__) is importlib.machinery.ModuleSpec
        assert (gc.isenabled(), sys.meta_path) == (on, finders)
    assert gc.get_freeze_count() <= frozen  # what is let go of is not counted any more
