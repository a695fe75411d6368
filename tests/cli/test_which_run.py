"""Which run a word means is one rule for every command, and so are the errors."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ddplaunch.cli.which_run import only_one, other_hosts, running_run, running_runs, which_run
from ddplaunch.values.finding import UsageError
from ddplaunch.values.variable_names import LAUNCH, SETTINGS
from tests.cli.cli_calls import Call
from tests.records.fake_runs import StartRun, outcome, processes_json, record, unique


def recorded_and_live(start_run: StartRun, base: Path, name: str, cwd: Path) -> str:
    """Start a run that works in ``cwd`` and is recorded under ``base``; return its id."""
    place = record(base, unique(name))
    mark = {"DDPLAUNCH_RUN_ID": place.name, SETTINGS: json.dumps({"directory": str(place)})}
    start_run(name, cwd=cwd, **mark)
    return place.name


def test_records_are_named_by_id_by_a_part_and_by_path(tmp_path: Path) -> None:
    base = str(tmp_path)
    for number, name in enumerate(("20261121-aaa", "20261121-bbb", "exp")):
        record(tmp_path, name, begun_s=time.time() - 100 + number)
    assert which_run(None, base).run_id == which_run("latest", base).run_id == "exp"
    assert which_run("bbb", base).record.name == "20261121-bbb"
    assert which_run(str(tmp_path / "runs" / "exp"), base).run_id == "exp"
    for word, says in [
        ("2026", "2 runs could be meant"),
        ("x9", "no record of a run `x9`"),
        ("", "no record of a run ``"),
        ("./x", "not a directory"),
    ]:
        with pytest.raises(UsageError, match=says):
            which_run(word, base)
    with pytest.raises(UsageError, match="no record of a run in"):
        which_run(None, str(tmp_path / "none"))


def test_an_id_comes_before_a_part_of_another_also_where_only_that_runs(start_run: StartRun, folder: Path) -> None:
    run = start_run("a", cwd=folder)
    part = run.run_id[:-2]
    (over,) = running_runs(part, None)
    assert over.run_id == run.run_id and over.processes is not None
    record(folder / ".ddplaunch", part)
    (over,) = running_runs(part, None)
    assert (over.run_id, over.processes) == (part, None)
    assert running_run(part, None) is None and which_run(part, None).run_id == part


def test_a_live_run_of_another_directory_is_found_by_its_id(
    start_run: StartRun, folder: Path, tmp_path: Path, call: Call
) -> None:
    record(folder / ".ddplaunch", "here")
    run_id = recorded_and_live(start_run, tmp_path / "elsewhere", "far", tmp_path)
    assert which_run(run_id, None).record == (tmp_path / "elsewhere" / "runs" / run_id).resolve()
    assert running_run(run_id, None) is not None
    said = call("explain", run_id)
    assert (said.status, said.out) == (0, f"nothing failed in run {run_id} so far: it is still running\n")
    for word, run_dir in ((run_id[:-1], None), (run_id, str(folder / ".ddplaunch"))):
        with pytest.raises(UsageError, match="no record of a run"):
            which_run(word, run_dir)


def test_without_a_word_the_newest_that_runs_here_is_meant_and_to_stop_the_only_one(
    start_run: StartRun, folder: Path, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome(record(folder / ".ddplaunch", "ended"))
    far = start_run("far", cwd=tmp_path)
    assert running_run(None, None) is None
    assert "no run of this directory is running; `ddplaunch ps` lists " in " ".join(capsys.readouterr().err.split())
    first, second = (recorded_and_live(start_run, folder / ".ddplaunch", name, folder) for name in ("one", "two"))
    os.utime(folder / ".ddplaunch" / "runs" / first / "run.json", (1e9, 1e9))
    found = running_run(None, None)
    assert found is not None and found.run_id == second
    assert [run.run_id for run in running_runs(None, None)] == [second, first]
    said = call("stop")
    told = " ".join(said.err.split())
    assert said.status == 2 and f"2 runs could be meant: `{second}`, `{first}`" in told
    assert f"name one, as in `{second}`" in told
    assert far.launcher.poll() is None and running_run(first, None) is not None


def test_two_live_runs_of_one_id_are_told_apart_by_their_records(
    start_run: StartRun, folder: Path, tmp_path: Path
) -> None:
    run_id = unique("same")
    places = [record(tmp_path / name, run_id) for name in ("a", "b")]
    for place in places:
        mark = {"DDPLAUNCH_RUN_ID": run_id, LAUNCH: str(place), SETTINGS: json.dumps({"directory": str(place)})}
        start_run("same", cwd=folder, **mark)
    with pytest.raises(UsageError, match="2 runs could be meant") as error:
        running_runs(run_id, None)
    assert all(str(place) in error.value.findings[0].what for place in places)
    (named,) = running_runs(str(places[0]), None)
    assert only_one([named]).directory == places[0] and named.processes is not None


def test_a_hosts_part_of_a_launch_is_its_record_and_token(start_run: StartRun, tmp_path: Path) -> None:
    place = record(tmp_path, unique("part"))
    mark = {"DDPLAUNCH_RUN_ID": place.name, LAUNCH: "abcd12", SETTINGS: json.dumps({"directory": str(place)})}
    start_run("part", cwd=tmp_path, **mark)
    (part,) = running_runs(f"{place}@abcd12", None)
    assert (part.directory, part.token, part.has_begun) == (place, "abcd12", True) and part.processes is not None
    other = which_run(f"{place}@abcd13", None)
    assert (other.directory, other.processes, other.has_begun) == (place, None, False), "another launch of that id"
    processes_json(place, host="gpu-b")
    assert other_hosts(place) == ["gpu-b"]
    outcome(place)
    assert other.has_begun and other_hosts(place) == []
