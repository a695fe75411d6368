from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.planning.launch import Launch, Target
from ddplaunch.records.directory import (
    new_run_id,
    note_stop,
    path_text,
    read_stop,
    read_through,
    run_directory,
    runs_directory,
    through_path,
)
from ddplaunch.records.user_key import user_key
from ddplaunch.records.write import git_commit, write_record
from ddplaunch.values.finding import warning
from ddplaunch.values.resolved import Unavailable
from tests.planning.sample_launch import SHM, facts, launch, two_nodes

TYPED = ("ddplaunch", "run", "4", "--env", "WANDB_API_KEY=hunter2hunter2", "--", "train.py", "--hf-token", "hunter2")
ENVIRONMENT = {"PATH": "/bin", "WANDB_API_KEY": "hunter2hunter2", "NCCL_DEBUG": "WARN"}


def record(base: Path, one: Launch | None = None) -> Path | str:
    return write_record(one or launch(), TYPED, ENVIRONMENT, facts(), (SHM,), base)


def test_run_ids_sort_by_time_and_never_meet() -> None:
    assert re.fullmatch("20261121-143012-[a-z0-9]{6}", new_run_id(1795271412.9))
    assert new_run_id(1.0) < new_run_id(2.0) < new_run_id(1795271412.0)
    assert len({new_run_id(0.0) for _ in range(64)}) == 64


def test_option_before_variable_before_working_directory(tmp_path: Path) -> None:
    both = {"DDPLAUNCH_DIR": "/records"}
    assert runs_directory("here", both, tmp_path) == tmp_path / "here"
    assert runs_directory(None, both, tmp_path) == Path("/records")
    assert runs_directory(None, {"DDPLAUNCH_DIR": ""}, tmp_path) == tmp_path / ".ddplaunch"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../x", "latest", "a\0b", "é" * 101])
def test_a_run_id_names_one_directory(tmp_path: Path, name: str) -> None:
    assert run_directory(tmp_path, "é" * 100) == tmp_path / "runs" / ("é" * 100)
    with pytest.raises(ValueError, match=r"cannot be the name of a directory|has more than 200 bytes"):
        run_directory(tmp_path, name)
    assert isinstance(record(tmp_path / "b", launch(run_id=name)), str)
    assert not (tmp_path / "b").exists()


def test_who_ended_a_run_counts_from_its_start(tmp_path: Path) -> None:
    assert read_stop(tmp_path, 0.0) is None
    for launcher_lost in (False, True):
        note_stop(tmp_path, launcher_lost) if launcher_lost else note_stop(tmp_path)
        note = read_stop(tmp_path, 0.0)
        assert note is not None and note.launcher_lost is launcher_lost and note.user
        assert read_stop(tmp_path, note.at_s) == note and read_stop(tmp_path, note.at_s + 0.001) is None


def test_what_a_rank_notes_at_its_end(tmp_path: Path) -> None:
    path = through_path(tmp_path, 3)
    assert read_through(path) is None
    for noted in ("group", "through", "", "x" * 17):
        path.write_text(noted)
        assert read_through(path) == (noted if 0 < len(noted) < 17 else None)


def test_a_record_says_what_was_typed_decided_and_found(tmp_path: Path) -> None:
    directory = record(tmp_path / ".ddplaunch")
    assert directory == tmp_path / ".ddplaunch" / "runs" / launch().run_id
    data = json.loads((directory / "run.json").read_text())
    assert data["schema"] == 1
    assert data["argv"][:3] == ["ddplaunch", "run", "4"]
    assert data["torchrun_argv"] == list(launch().argv)
    assert data["environment"]["NCCL_DEBUG"] == "WARN"
    assert data["plan"]["numbers"]["batch_size"]["source"] == {"kind": "flag", "detail": "--batch-size"}
    assert data["findings"][0]["severity"] == "error"
    assert data["versions"]["torch"] == "2.13.0+cu128" and sys.version.startswith(data["versions"]["python"])
    assert data["host"]["nvml"]["gpus"][3]["name"] == "NVIDIA H100 80GB HBM3"
    assert "torchrun_flags" not in data["host"]["torch"]  # they follow from the version
    torchless = replace(facts(), torch=Unavailable("not installed"))
    assert isinstance(write_record(launch(), TYPED, ENVIRONMENT, torchless, (), tmp_path / "torchless"), Path)


def test_a_record_is_for_its_owner_and_holds_no_secret_and_nothing_made_from_one(tmp_path: Path) -> None:
    """Of a PIN even a hash would tell which it is."""
    pin, typed = "471108153342", (*TYPED, "postgres://ada:471108153342@db/runs", "--pin", "471108153342")
    environment = {**ENVIRONMENT, "DB_PW": pin, "DB": "ada"}
    busy = warning("gpu-busy", "GPU 0 is held by `x.py --api-key hunter2`", why="password=hunter2", fix="f")
    noted = launch(target=Target("script", "train.py", typed), notes=(f"the same as `train.py --pin {pin}`",))
    directory = write_record(noted, typed, environment, facts(), (busy,), tmp_path / ".ddplaunch")
    assert isinstance(directory, Path)
    assert stat.S_IMODE((directory / "run.json").stat().st_mode) == 0o600
    text = (directory / "run.json").read_text()
    assert json.loads(text)["environment"] | {"DB": "***", "WANDB_API_KEY": "***"} == json.loads(text)["environment"]
    assert pin not in text and "hunter2" not in text and "postgres://ada:***@db/runs" in text


def test_the_key_is_the_users_alone(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path, planted = tmp_path / "ddplaunch" / "key", tmp_path / "planted"
    first = user_key(environ)
    assert first is not None and user_key(environ) == first and len(first) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and [each.name for each in path.parent.iterdir()] == ["key"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o640)
    assert user_key(environ) is None  # others of the group may have read it
    planted.write_bytes(b"x" * 32)
    for make in (lambda: path.symlink_to(planted), lambda: os.mkfifo(path, 0o600), lambda: path.write_bytes(b"short")):
        path.unlink()
        make()
        path.chmod(0o600)
        assert user_key(environ) is None
    assert user_key({}) is None and user_key({"HOME": "/proc/nowhere"}) is None


@pytest.mark.root
def test_a_key_in_a_home_of_somebody_else_is_neither_made_nor_read(tmp_path: Path) -> None:
    """As under sudo, after which that user could not read it."""
    path, environ = tmp_path / ".local/state/ddplaunch/key", {"HOME": str(tmp_path)}
    first = user_key(environ)
    path.unlink()
    assert first is not None and user_key(environ) not in (None, first)
    os.chown(path, 65533, 65533)
    assert user_key(environ) is None
    path.unlink()
    os.chown(tmp_path, 65533, 65533)
    assert user_key(environ) is None and not path.exists()


def test_many_launches_at_once_agree_on_one_key(tmp_path: Path) -> None:
    child = "import os; from ddplaunch.records.user_key import user_key; os.write(1, user_key(os.environ))"
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    started = [subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, env=environ) for _ in range(4)]
    found = [process.communicate(timeout=120)[0] for process in started]
    assert len(set(found)) == 1 and found[0] == user_key(environ)


def test_a_directory_that_was_there_before_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("mine")
    assert isinstance(record(tmp_path), Path)
    assert (tmp_path / "latest").read_text() == "mine" and not (tmp_path / ".gitignore").exists()
    (tmp_path / ".ddplaunch").mkdir()
    assert isinstance(record(tmp_path / ".ddplaunch"), Path) and (tmp_path / ".ddplaunch" / ".gitignore").exists()
    os.mkfifo(tmp_path / ".gitignore")
    written = record(tmp_path, launch(run_id="second"))
    assert isinstance(written, Path) and (written / "run.json").exists()


def test_later_nodes_do_not_overwrite_the_first(tmp_path: Path) -> None:
    first = two_nodes()
    rank = first.topology.node_rank
    assert rank is not None
    second = replace(first, topology=replace(first.topology, node_rank=replace(rank, value=1)))
    directory = record(tmp_path, first)
    assert record(tmp_path, second) == directory
    written = {str(path.relative_to(directory)) for path in Path(directory).rglob("*.json")}
    assert written == {"node-1/run.json", "run.json"}
    numbered_by_torchrun = replace(first, topology=replace(first.topology, node_rank=None))
    for name, one, token in (("a", launch(), "token"), ("b", second, "token"), ("c", numbered_by_torchrun, "")):
        place = write_record(one, TYPED, ENVIRONMENT, facts(), (), tmp_path / name, (), "token")
        (path,) = Path(place).rglob("run.json")
        assert json.loads(path.read_text())["launch"] == token


def test_a_base_that_takes_nothing_is_named(tmp_path: Path) -> None:
    mine = tmp_path / ".ddplaunch"
    mine.write_text("mine")
    for base in (mine, Path("/proc/ddplaunch/.ddplaunch")):
        reason = record(base)
        assert isinstance(reason, str) and str(base.parent) in reason
    assert mine.read_text() == "mine"


def test_names_that_are_not_utf_8_in_a_working_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = record(tmp_path, launch(target=Target("script", "\udcff.py")))
    assert isinstance(directory, Path)
    assert json.loads((directory / "run.json").read_text())["plan"]["target"]["name"] == "\udcff.py"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "No such file or directory" in str(record(tmp_path / "base"))
    assert path_text(Path("x")) == "x" and path_text(Path("a b/c")) == "'a b/c'"


def test_16_at_once(tmp_path: Path) -> None:
    base = tmp_path / ".ddplaunch"
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda run_id: record(base, launch(run_id=run_id)), map(str, range(16))))
    assert [result for result in results if isinstance(result, str)] == []
    assert len(list(base.glob("runs/*/run.json"))) == 16
    last = record(base, launch(run_id=new_run_id()))
    assert (base / "latest").resolve() == last and (base / ".gitignore").read_text() == "*\n"
    assert sorted(path.name for path in base.iterdir()) == [".gitignore", "latest", "runs"]


def test_the_commit_is_the_one_that_git_names(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "sub").mkdir(parents=True)

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words]
        return subprocess.run(command, cwd=repo, check=True, capture_output=True, text=True).stdout.strip()

    assert git_commit(repo) is None
    git("init", "-q")
    assert git_commit(repo) is None  # no commit yet
    git("commit", "-q", "--allow-empty", "-m", "x")
    expected = git("rev-parse", "HEAD")
    git("worktree", "add", "-q", "../linked")
    assert git_commit(repo / "sub") == git_commit(tmp_path / "linked") == expected
    git("pack-refs", "--all")
    assert git_commit(repo) == git_commit(tmp_path / "linked") == expected
    git("checkout", "-q", "--detach")
    assert git_commit(repo) == expected
