"""Runs are found in records and in the process table, whatever state either is in."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.machine.processes.process_table import Process, process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from ddplaunch.records import run_states
from ddplaunch.records.directory import metrics_path
from ddplaunch.records.find import RunRecord, last_metrics, read_record, read_run, run_directories
from ddplaunch.records.launchers import (
    NodeProcesses,
    Place,
    held_by,
    holding,
    is_of_launch,
    launched_by_me,
    launcher_of,
    read_launched,
    residents_in,
    with_residents,
)
from ddplaunch.records.outcome import RunOutcome, write_outcome
from ddplaunch.records.run_states import RunSummary, _recorded, _script_of, state_of, summary
from ddplaunch.ui.ps_view import number_of_ranks, ps_json, ps_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.variable_names import RANK_CALL, SETTINGS, TRIAL
from ddplaunch.values.words import host_name
from tests.cli.cli_calls import Call
from tests.conftest import Golden
from tests.records.fake_runs import StartRun, outcome, processes_json, record

RANK = Process(20, 1, 20, "S", 20, 7, "python")
DETACHED = Process(21, 1, 21, "S", 20, 7, "tensorboard")
NODE = NodeProcesses(0, "r", host_name(), "b", None)
AWAY = NodeProcesses(1, "r", "node-9", "b", None)


def test_states(tmp_path: Path) -> None:
    host = host_name()
    directory = record(tmp_path, "r")
    assert state_of(read_record(directory), None, (), host) == "ended"
    assert state_of(read_record(directory), None, (NODE, AWAY), host) == "elsewhere"
    assert state_of(RunRecord("r", tmp_path, 0.0, {}, {}), None, (), host) == "ended", "no host is named"
    assert state_of(read_record(directory), RunProcesses("r", 7, (RANK,)), (), host) == "running"
    assert state_of(read_record(directory), RunProcesses("r", 7, (), (RANK,)), (), host) == "orphaned"
    assert summary(directory, RunProcesses("r", 7, (), (DETACHED,)), host).state == "orphaned"  # no end is known
    outcome(directory, "failed", exit_status=42)
    assert state_of(read_record(directory), None, (NODE, AWAY), host) == "failed"
    assert summary(directory, RunProcesses("r", 7, (), (RANK,)), host).state == "orphaned"
    over = summary(directory, RunProcesses("r", 7, (), (DETACHED,)), host)
    assert (over.state, over.exit_status, over.ranks) == ("failed", 42, ())
    outcome(directory, "failed", ended_s=3.0)  # the clock was set back meanwhile
    assert state_of(read_record(directory), None, (), host) == "failed"
    record(tmp_path, "r", launch="ours")
    outcome(directory, "failed", launch="of an earlier run with this id")
    assert state_of(read_record(directory), None, (), host) == "ended"
    outcome(directory, "failed", launch="ours")
    assert state_of(read_record(directory), None, (), host) == "failed"
    (directory / "outcome.json").write_text('{"schema": 2, "state": "failed"}')
    newer = read_record(directory)
    assert state_of(newer, None, (), host) == "unreadable"
    assert newer.problem == "outcome.json has schema 2; this ddplaunch reads 1"


def test_what_a_record_says_of_its_run(tmp_path: Path) -> None:
    def of(**run: object) -> RunRecord:
        return RunRecord("r", tmp_path, 0.0, run, {})

    assert of(host={"host": {"name": "gpu-a"}}).host == "gpu-a"
    targets = (("train.py", ["m:fit"]), (RANK_CALL, ["m", "fit"]), (RANK_CALL, ["m"]), (RANK_CALL, None))
    scripts = [of(plan={"target": {"name": name, "args": args}}).script for name, args in targets]
    assert scripts == ["train.py", "fit()", RANK_CALL, RANK_CALL]
    job = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "3"}
    jobs = [of(environment=one).slurm_job for one in ({}, job, job | {"SLURM_ARRAY_TASK_ID": "0"})]
    assert jobs == [None, "12", "3_0"]
    found = [_recorded(of(plan=plan)) for plan in ({"gpus": [0, "1"], "topology": {"sizes": [4, None]}}, {})]
    assert [(one["gpus"], one["sizes"]) for one in found] == [(("0", "1"), (4, 0)), (None, ())]
    commands: tuple[list[str], ...] = (["python", "-u", "t.py", "x"], ["python", "-m", "pkg.t"], ["python", "-m"], [])
    assert [_script_of(command) for command in commands] == ["t.py", "pkg.t", "python", None]


def test_each_node_has_its_own_record_where_it_wrote_one(tmp_path: Path) -> None:
    """Nodes on one disk may be of different launches."""
    directory = record(tmp_path, "r", launch="first")
    for node in (1, 2):
        ended = RunOutcome("r", "h", node, "failed", 1, 1.0, 2.0, None, None, (), (), launch="second")
        assert write_outcome(directory, ended) is None
    (directory / "node-1" / "run.json").write_text('{"schema": 1, "launch": "second"}')
    assert read_record(directory).outcomes.keys() == {1}
    assert [read_run(directory, node).get("launch") for node in (0, 1, 2)] == ["first", "second", "first"]


def test_runs_of_this_directory_come_first_and_only_an_own_run_misses_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = record(tmp_path, "here"), record(tmp_path / "other", "elsewhere")
    places = {"theirs": None, "mine": None, "elsewhere": elsewhere, "here": here}
    alive = [RunProcesses(name, 7 if name == "theirs" else os.geteuid(), (), (RANK,)) for name in places]
    monkeypatch.setattr(run_states, "runs_in", lambda _: alive)
    monkeypatch.setattr(run_states, "recorded_at", lambda run: places[run.run_id])
    listed, _ = run_states.summaries(tmp_path, {}, host_name(), None)
    assert [(run.run_id, run.problem) for run in listed] == [
        ("here", None), ("theirs", None), ("mine", "its record is missing"), ("elsewhere", None),
    ]  # fmt: skip
    assert summary(here, None, host_name()).hosts == (host_name(),)


def test_what_a_record_lacks_its_processes_tell(tmp_path: Path) -> None:
    rank = RANK._replace(command=("python", "t.py"))
    assert summary(tmp_path, RunProcesses("r", 7, (), (rank,)), host_name()).script == "t.py"
    assert summary(record(tmp_path, "r"), RunProcesses("r", 7, (), (rank,)), host_name()).script == "train.py"


def test_a_directory_that_goes_away(tmp_path: Path) -> None:
    directory = record(tmp_path, "r")
    (directory / "run.json").unlink()
    (directory / "run.json").mkdir()
    assert read_record(directory).problem == "run.json: Is a directory"
    shutil.rmtree(directory)
    assert read_record(directory).problem == "the directory is gone"
    assert state_of(read_record(directory), None, (), host_name()) == "unreadable"


def test_the_last_metrics_are_those_of_the_last_attempt_whatever_else_was_written(tmp_path: Path) -> None:
    directory = record(tmp_path, "r", begun_s=1.0)
    assert last_metrics(directory) == {}
    for attempt in (0, 10, 9):
        folder = directory / "node-0" / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        lines = [f'{{"metrics": {{"loss": {loss}, "name": "x", "attempt": {attempt}}}}}' for loss in (2, 1.5)]
        lines += ["{", "{}", "[1]", '{"metrics": 5}', '{"metrics": {"loss": ']
        metrics_path(folder).write_text("\n".join(lines))
    assert last_metrics(directory) == {"loss": 1.5, "attempt": 10}
    metrics_path(directory / "node-0" / "attempt-10").unlink()
    assert last_metrics(directory) == {}
    (tmp_path / "runs" / "begun").mkdir()  # and has no run.json yet
    assert [path.name for path in run_directories(tmp_path)] == ["begun", "r"]


def test_only_the_newest_records_are_read(call: Call, folder: Path) -> None:
    """With many of them ``ps`` has to stay quick; those that are broken would say so if they were read."""
    for number in range(60):
        place = folder / ".ddplaunch" / "runs" / f"old-{number:03}"
        place.mkdir(parents=True)
        (place / "run.json").write_text("{")
        os.utime(place / "run.json", (number, number))
    newest = [record(folder / ".ddplaunch", f"new-{number}").name for number in range(9)]
    for number in range(3):  # the trials of one command count as one, and its own table has shown them
        record(folder / ".ddplaunch", f"trial-{number}", environment={TRIAL: f"fit-x/{number}"})
    said = call("ps", "--json")
    listed = [run["run_id"] for run in json.loads(said.out)["runs"] if run["state"] == "ended"]
    assert sorted(listed) == newest and json.loads(said.out)["not_shown"] == 63
    assert "63 more ended; `ddplaunch ps --all` lists them\n" in call("ps").out
    assert call("ps", "--all").out.count("run.json is not JSON") == 60


@pytest.mark.parametrize("marked", [True, False])
def test_a_live_run_is_found_from_any_directory(
    start_run: StartRun, call: Call, folder: Path, tmp_path: Path, marked: bool
) -> None:
    place = record(tmp_path / ("elsewhere" if marked else ".ddplaunch"), "to-be-renamed")
    settings = {SETTINGS: json.dumps({"directory": str(place)})} if marked else {}
    run = start_run("live", **settings)
    if not marked:  # a launch without the plug-in: its working directory tells
        assert [run_states.recorded_at(one) for one in runs_in(process_table()) if one.run_id == run.run_id] == [None]
        place = place.rename(place.parent / run.run_id)
    (listed,) = [each for each in json.loads(call("ps", "--json").out)["runs"] if each["run_id"] == run.run_id]
    assert listed["state"] == "running" and listed["launcher_pids"] == [run.launcher.pid]
    assert [each["pid"] for each in listed["ranks"]] == run.rank_pids
    assert [each["rank"] for each in listed["ranks"]] == [0, 1]
    assert listed["directory"] == str(place) and listed["script"] == "train.py"
    run.lose_launcher()
    (listed,) = [each for each in json.loads(call("ps", "--json").out)["runs"] if each["run_id"] == run.run_id]
    assert listed["state"] == "orphaned"


def test_a_run_over_ssh_without_its_launcher_has_ended(tmp_path: Path) -> None:
    directory = record(tmp_path, "r")
    processes_json(directory, host="node-9")
    away = summary(directory, None, host_name())
    assert (away.state, away.hosts) == ("elsewhere", ("node-9",))
    note = launched_by_me(directory, "r", (Place(0, "node-9", "python"),), 20.0, "", 5.0)
    with holding(note):
        table = process_table()
        me = table[os.getpid()]
        torchrun = me._replace(command=("torchrun",))
        assert launcher_of(note, table, note.boot_id, note.host) == me
        for other in ({"host": "x"}, {"boot_id": "x"}, {"start_ticks": 1}, {"directory": tmp_path}, {"pid": 1 << 23}):
            assert launcher_of(replace(note, **other), table, note.boot_id, note.host) is None
        assert launcher_of(note, table, None, note.host) is None
        assert residents_in({me.pid: torchrun}, note.host) == ((note, torchrun),) and residents_in(table, "x") == ()
        assert (held_by(torchrun), held_by(me)) == (directory, None)
        theirs, others = (RunProcesses("r", me.uid, (torchrun,), (RANK,), launch=launch) for launch in ("", "x"))
        assert with_residents((theirs, others), ((note, torchrun),)) == (theirs, others)
        assert with_residents((replace(theirs, launchers=()),), ((note, torchrun),)) == (theirs,)
    assert launcher_of(note, table, note.boot_id, note.host) is None, "it holds the note no more"
    assert read_launched(directory) == note and is_of_launch(directory, "")
    assert read_launched(tmp_path) is None and not is_of_launch(tmp_path, "") and not is_of_launch(directory, "x")
    assert summary(directory, None, host_name()).state == "ended"
    assert summary(directory, None, "another").state == "elsewhere", "its launcher may live on its own host"
    outcome(directory, "failed")
    assert summary(directory, None, host_name()).state == "failed"


RUNS = (
    RunSummary("20261121-143012-x7k2q9", "running", None, "train.py", 2, 4, 1000.0, effective_batch=256,
               gpus=("0", "1", "2", "3"), user="ada", hosts=("gpu01", "gpu02"), launcher_pids=(71,)),
    RunSummary("20261121-101500-aaaaaa", "failed", Path("/w/r"), "src/protlig_dd/training/run_train_uniref50_ddp.py",
               1, 8, -9e4, -8e4, 137, 3, "oom-kill", 4096, "cuda", ("0", "2"), "eve", ("gpu01",)),
    RunSummary("exp-7", "unreadable", Path("/w/e"), hosts=("gpu01",), problem="run.json has schema 2; …"),
)  # fmt: skip


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_the_table(golden: Golden, width: int) -> None:
    text = ps_text(RUNS, 12, 2000.0, "ada", Terminal(width), Path("/w"))
    assert max(map(len, text.splitlines())) <= width
    golden(f"ps-{width}", text)


def test_runs_of_other_directories_follow_under_theirs() -> None:
    base = Path("/home/ada/proj/.ddplaunch")
    trial = "fit-20261121-101500-aaaaaa.batch-8"
    runs = [
        RunSummary(trial, "running", base / "runs" / trial, user="ada", started_s=40.0),
        RunSummary("b", "running", Path("/home/ada/other/.ddplaunch/runs/b"), user="ada"),
        RunSummary("c", "failed", Path("/scratch/runs/c"), started_s=1.0, ended_s=91.0, exit_status=1,
                   diagnosis="cuda-out-of-memory", user="ada"),
        RunSummary("d", "terminated", base / "runs" / "d", diagnosis="terminated", ended_s=9.0, user="ada"),
        RunSummary("hers", "orphaned", None, "训练模型的脚本训练模型的脚本.py", user="eve", started_s=1.0),
    ]  # fmt: skip
    for width, eve in ((100, " 99 s 99 s eve"), (48, " 99 s 99 s")):
        lines = [" ".join(line.split()) for line in ps_text(runs, 0, 100.0, "ada", Terminal(width), base).splitlines()]
        assert lines[1:4] == ["aaaaaa.batch-8 running 60 s 60 s", "d terminated", "/home/ada/other:"], lines
        assert lines[6:7] == ["/scratch:"] and lines[8].startswith("c failed 90 s cuda-out-of-memory")
        assert lines[9] == "of eve:" and lines[11] == f"hers orphaned 训练模型的脚本…{eve}"


def test_the_table_has_no_columns_for_nothing() -> None:
    assert ps_text((), 0, 0.0, "ada", Terminal(80), Path("/w")) == "no runs\n"
    one = RunSummary("r", "succeeded", started_s=0.0, exit_status=0, user="ada", hosts=("h",))
    text = ps_text((one,), 0, 9.0, "ada", Terminal(80), Path("/w"))
    assert text == "  RUN  STATE      AGE\n  r    succeeded  9 s\n"
    for width in (40, 80):
        assert "\x1b[1;32m  2026" in ps_text(RUNS, 0, 2000.0, "ada", Terminal(width, True), Path("/w"))


def test_json_has_it_all() -> None:
    data = json.loads(json.dumps(ps_json(RUNS, 1, "gpu01", 2000.0)))
    first, second, _ = data["runs"]
    assert (data["schema"], data["not_shown"], first["world_size"], first["age_s"]) == (1, 1, 8, 1000)
    assert second["diagnosis"] == "oom-kill" and second["directory"] == "/w/r"
    unequal = RunSummary("r", "running", nnodes=2, nproc_per_node=4, sizes=(4, 2))
    assert number_of_ranks(unequal) == ps_json([unequal], 0, "here", 0.0)["runs"][0]["world_size"] == 6
