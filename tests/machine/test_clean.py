"""Orphans are found, ended after a yes and verified; live runs, other users and data in /dev/shm are left alone."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.cli.commands.afterwards import clean as clean_command
from ddplaunch.hosts.local.end_orphans import Cleaned, Leftovers, leftovers
from ddplaunch.machine.processes.orphans import Orphans
from ddplaunch.machine.processes.process_table import Process, process_table, read_process
from ddplaunch.machine.processes.run_processes import is_python
from ddplaunch.records.old_records import old_records, remove_record
from ddplaunch.records.own import run_lock
from ddplaunch.records.own.own_files import try_lock
from ddplaunch.records.own.run_lock import hold_run
from ddplaunch.ui.clean_view import Cleanup, clean_findings, clean_json, done_text, question, work_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import host_name
from tests.agent.guarded import until
from tests.cli.cli_calls import Call, spawn
from tests.conftest import Golden
from tests.machine.fake_nvml import FakeNvml
from tests.planning.sample_launch import launch
from tests.records.fake_runs import StartRun, outcome, processes_json, record, unique

BROKEN_NVML = Unavailable("NVML does not start: Driver/library version mismatch")
NO_NVML = Unavailable("`libnvidia-ml.so.1` of the NVIDIA driver is not installed")


@pytest.fixture
def no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the orphans of this machine: they are another test's, which looks at them."""
    monkeypatch.setattr(clean_command, "leftovers", lambda *_: Leftovers((), (), {}))


@pytest.mark.parametrize("ours", [True, False], ids=["ddplaunch", "torchrun"])
def test_orphans_are_listed_then_ended_with_all_they_hold(
    start_run: StartRun, call: Call, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ours:  # what ignores SIGTERM has all the grace
        monkeypatch.setattr(clean_command, "_GRACE_S", 0.2)
    run = start_run("orphans", "worker", *([] if ours else ["deaf"]), ranks=1, ours=ours)
    alive, other = start_run("alive"), start_run("other", ranks=1, ours=ours)
    other.lose_launcher()
    pids = run.session_pids
    assert "nothing to clean" in call("clean", run.run_id).out  # its launcher lives
    run.lose_launcher()

    listed = call("clean", run.run_id, "--dry-run")
    assert listed.status == 0
    assert "its launcher is gone, 2 processes left" in listed.out
    assert "rank 0" in listed.out and "child of rank 0" in listed.out
    asked = call("clean", run.run_id)  # there is no terminal to ask on
    assert asked.status == 1 and "nothing was changed: `ddplaunch clean --yes`" in asked.err
    assert json.loads(call("clean", run.run_id, "--json").out)["done"] is False
    assert run.session_pids == pids

    data = json.loads(call("clean", run.run_id, "--yes", "--json").out)
    assert (data["schema"], data["done"], data["orphans"][0]["kind"]) == (2, True, "ddplaunch" if ours else "torchrun")
    result = "ended" if ours else "killed"
    assert {each["pid"]: each["result"] for each in data["orphans"][0]["processes"]} == dict.fromkeys(pids, result)
    assert not run.session_pids
    assert (len(alive.session_pids), len(other.session_pids)) == (2, 1)
    assert call("clean", run.run_id).status == 0


@pytest.mark.parametrize(("typed", "ended"), [("y\n", True), ("\n", False)])
def test_the_question_on_a_terminal(start_run: StartRun, folder: Path, typed: str, ended: bool) -> None:
    run = start_run("asked", ranks=1)
    run.lose_launcher()
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "ddplaunch", "clean", run.run_id]
    with subprocess.Popen(
        command, cwd=folder, stdin=slave, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as asking:
        os.close(slave)
        os.write(master, typed.encode())
        said = asking.communicate(timeout=60)[1]
    os.close(master)
    answer = b"ended 1 process\n" if ended else b"nothing was changed\n"
    assert (asking.returncode, said) == (not ended, b"end 1 process? [y/N] " + answer)
    assert bool(run.session_pids) is not ended


def test_gpu_memory_of_orphans_is_shown(start_run: StartRun, fake_nvml: FakeNvml, folder: Path) -> None:
    state = fake_nvml.scratch / "nvml-state"
    run = start_run("gpu", f"free:{state}", ranks=1)
    run.lose_launcher()
    environment = fake_nvml.environment(2, [f"1 process {run.rank_pids[0]} 30000", "1 process 99999999 500"])
    said = spawn(["clean", run.run_id, "--yes"], folder, environment)
    assert (said.returncode, said.stderr) == (0, b"ended 1 process\n") and b"GPU 1: 29 GiB" in said.stdout


@pytest.mark.root
def test_another_users_orphans_are_listed_and_left(folder: Path, call: Call) -> None:
    run_id = unique("nobodys")
    marks = {"TORCHELASTIC_RUN_ID": run_id, "LOCAL_RANK": "0", "RANK": "0", "MASTER_PORT": "29400"}
    environment = {**marks, "PATH": os.environ["PATH"]}
    script = "setsid python3 -SE -c 'import time; time.sleep(60)' > /dev/null & echo $!"
    with subprocess.Popen(["sh", "-c", script], env=environment, stdout=subprocess.PIPE, user=65534, cwd="/") as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
    try:
        until(lambda: (each := read_process(pid)) and each.parent != parent.pid and is_python(each), "it is an orphan")
        said = call("clean", run_id, "--yes")
        assert said.status == 0 and "not touched" in said.out and str(pid) in said.out
        assert read_process(pid) is not None
    finally:
        os.kill(pid, signal.SIGKILL)


def keep(base: Path, number: int, busy: tuple[Path, ...] = ()) -> tuple[list[str], dict[str, str]]:
    """What is to be removed and what is kept for which reason."""
    found = old_records(base, number, busy, host_name())
    return [path.name for path in found.removable], {path.name: reason for path, reason in found.kept}


def test_old_records_go_but_not_those_of_runs_that_may_live(tmp_path: Path) -> None:
    hour_ago = time.time() - 3600
    names = ["ended", "runs", "away", "newer", "broken", "new-1", "new-2"]
    places = {name: record(tmp_path, name, begun_s=hour_ago + 60 * i) for i, name in enumerate(names)}
    processes_json(places["away"], host="node-9", boot_id="another")
    (places["newer"] / "outcome.json").write_text('{"schema": 2}')
    (places["broken"] / "run.json").write_text("{")
    os.utime(places["broken"] / "run.json", (hour_ago + 250, hour_ago + 250))
    outcome(places["ended"])
    assert keep(tmp_path, 50) == ([], {})
    removable, kept = keep(tmp_path, 2, (places["runs"].resolve(),))
    assert removable == ["ended"]
    why = {"broken": "no run.json", "newer": "outcome.json has", "away": "it was", "runs": "it runs"}
    assert {name: " ".join(reason.split(" ")[:2]) for name, reason in kept.items()} == why


def test_records_are_removed_beyond_those_to_keep(call: Call, folder: Path) -> None:
    base, hour_ago = folder / ".ddplaunch", time.time() - 3600
    for number in range(5):
        outcome(record(base, f"r{number}", begun_s=hour_ago + number))
    outside = folder / "outside"
    outside.mkdir()
    (base / "runs" / "link").symlink_to(outside)
    (base / "latest").unlink()
    (base / "latest").symlink_to(Path("runs") / "r1")
    found = old_records(base, 3, (), host_name())
    assert [remove_record(path) for path in found.removable] == [None, None]
    assert sorted(path.name for path in (base / "runs").iterdir()) == ["link", "r2", "r3", "r4"]
    assert outside.exists() and not (base / "latest").is_symlink()
    assert remove_record(base / "runs" / "r1") is None  # somebody was quicker
    assert call("clean", "--keep", "some").status == 2


def test_a_launch_that_begins_during_the_question_keeps_its_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id of an old record is used again between the list and the answer; or while its record is being removed."""
    base, one = folder / ".ddplaunch", launch(run_id="again")
    directory = record(base, "again", begun_s=time.time() - 3600)
    outcome(directory)
    with hold_run(base, one):
        assert "a launch has begun in it" in str(remove_record(directory))
    removals = [directory]

    def removed_before(lock: int, operation: int) -> bool:
        while removals:
            shutil.rmtree(removals.pop())
        return try_lock(lock, operation)

    monkeypatch.setattr(run_lock, "try_lock", removed_before)
    with hold_run(base, one) as run:
        assert not removals and run.locks
        assert run_lock.is_held(directory), "what it holds has no name any more"


@pytest.mark.usefixtures("no_orphans")
def test_what_is_no_record_stays(folder: Path, call: Call) -> None:
    """TensorBoard's ``runs/``, a record under another name, one of a run that is not its own."""
    hour_ago = time.time() - 3600
    for number in range(11):
        (folder / "runs" / f"exp{number}").mkdir(parents=True)
        (folder / "runs" / f"exp{number}" / "events.out").write_text("weeks of work")
    renamed = record(folder, "renamed", begun_s=hour_ago)
    renamed.rename(folder / "runs" / "exp-best")
    wandb = folder / "runs" / "wandb"
    (wandb / "media").mkdir(parents=True)
    (wandb / "run.json").write_text('{"schema": 1, "run_id": "other"}')
    (wandb / "media" / "run.json").write_text('{"schema": 1, "run_id": "wandb"}')
    outcome(record(folder, "mine", begun_s=hour_ago))
    before = sorted(folder.rglob("*"))
    said = call("clean", "--run-dir", ".", "--keep", "0", "--yes")
    assert said.status == 0 and said.err == "removed 1 record\n"
    assert "exp-best: kept, no run.json in it names this run" in " ".join(said.out.split())
    gone = {path.relative_to(folder).parts[:2] for path in set(before) - set(folder.rglob("*"))}
    assert gone - {("latest",)} == {("runs", "mine")}


@pytest.mark.usefixtures("no_orphans")
def test_a_node_of_a_later_host_is_a_record_too_and_links_in_one_are_not_followed(folder: Path, call: Call) -> None:
    outside, directory = folder / "outside", record(folder / ".ddplaunch", "later", begun_s=time.time() - 3600)
    for place in (outside, directory / "node-1"):
        place.mkdir()
    (outside / "data").write_text("mine")
    (directory / "run.json").rename(directory / "node-1" / "run.json")
    (directory / "node-0").symlink_to(outside)
    (directory / "data").symlink_to(outside / "data")
    os.utime(directory, (1.0, 1.0))
    outcome(directory)
    assert call("clean", "--keep", "0", "--yes").status == 0
    assert not directory.exists() and (outside / "data").read_text() == "mine"


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize(
    ("place", "link"),
    [
        ("runs", True),
        ("base", True),
        pytest.param("record", False, marks=pytest.mark.root),
        pytest.param("runs", False, marks=pytest.mark.root),
        pytest.param("base", False, marks=pytest.mark.root),
    ],
)
def test_nothing_behind_a_link_and_nothing_of_others_is_removed(
    folder: Path, call: Call, place: str, link: bool
) -> None:
    base = folder / ".ddplaunch"
    places = {"record": base / "runs/theirs", "runs": base / "runs", "base": base}
    directory = record(folder / "victim" / ".ddplaunch" if link else base, "theirs", begun_s=time.time() - 3600)
    outcome(directory)
    if link:
        places[place].parent.mkdir(exist_ok=True)
        places[place].symlink_to(directory.parent if place == "runs" else directory.parents[1])
    else:
        os.chown(places[place], 65533, 65533)
    why = "is a symbolic link" if link else "belongs to uid 65533"
    said = call("clean", "--keep", "0", "--yes")
    listed = "no orphans, 0 records" if place == "record" else f"{why}: nothing there is removed" if link else why
    assert said.status == 0 and listed in " ".join(said.out.split())
    assert why in str(remove_record(places["record"])) and (directory / "run.json").exists()


RANK = Process(4711, 1, 4711, "S", 100, 7, "python", ("/opt/env/bin/python", "-u", "train.py", "--epochs", "20"),
               {"RANK": "3", "LOCAL_RANK": "3"})  # fmt: skip
LOADER = RANK._replace(pid=4799, parent=4711)
THEIRS = RANK._replace(pid=5000, session=5000, uid=4_000_000_000)
FOUND = Leftovers(
    (Orphans("20261121-143012-x7k2q9", "ddplaunch", (RANK, LOADER)),),
    (Orphans("none", "torchrun", (THEIRS,)),),
    {4711: {3: 12 << 30}},
)


def test_this_command_is_not_ended_in_a_terminal_that_an_orphan_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    table = process_table()
    left = (table[os.getppid()], RANK, THEIRS)
    orphans = tuple(Orphans(run_id, "ddplaunch", (process,)) for run_id, process in zip("abc", left, strict=True))
    monkeypatch.setattr("ddplaunch.hosts.local.end_orphans.orphans_in", lambda *_: orphans)
    found = leftovers(table, RANK.uid)
    assert (found.own, found.others) == (orphans[1:2], orphans[2:]) and leftovers(table, RANK.uid, "a").own == ()


def work(found: Leftovers, tmp_path: Path, old: int = 0) -> Cleanup:
    records = replace(old_records(tmp_path, 0, (), "h"), total=62)
    return Cleanup(found, replace(records, removable=tuple(tmp_path / f"2026112{i}-000000-aaaaaa" for i in range(old))))


@pytest.mark.parametrize("width", [80, 40])
def test_the_listing(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("ddplaunch.ui.clean_view.start_s", lambda _: 0.0)
    text = work_text(work(FOUND, tmp_path, 5), 7200.0, Terminal(width))
    assert max(map(len, text.splitlines())) <= width
    golden(f"clean-{width}", text)


def test_words(tmp_path: Path) -> None:
    assert question(work(FOUND, tmp_path, 2)) == "end 2 processes and remove 2 records? [y/N] "
    assert question(work(FOUND, tmp_path)) == "end 2 processes? [y/N] "
    cleaned = Cleaned((RANK,), (LOADER,), ())
    assert done_text(cleaned, 2) == ("ended 2 processes, 1 of them by SIGKILL\nremoved 2 records\n")
    (finding,) = clean_findings(replace(cleaned, remaining=(RANK._replace(state="D"),)), [])
    assert finding.code == "does-not-end" and "-p 4711" in finding.fix and "takes no signal" in finding.why
    (finding,) = clean_findings(cleaned, ["Permission denied: x"])
    assert finding.code == "record-not-removed" and "Permission denied: x" in finding.what
    assert clean_findings(cleaned, []) == ()
    for found, said in (
        (Leftovers((), (), {}), "nothing to clean: no orphans, 62 records"),
        (replace(FOUND, gpu_memory=BROKEN_NVML), "GPU memory is not known: NVML does not start"),
        (replace(FOUND, gpu_memory=NO_NVML), ""),
    ):
        text = work_text(work(found, tmp_path), 0, Terminal(80))
        assert said in text and ("GPU" in text) is ("GPU" in said)
    data = json.loads(json.dumps(clean_json(work(FOUND, tmp_path, 1), cleaned, (), "h", 0.0)))
    assert [each["result"] for each in data["orphans"][0]["processes"]] == ["ended", "killed"]
    assert data["orphans"][1]["own"] is False and data["records"][0]["removed"] is False
