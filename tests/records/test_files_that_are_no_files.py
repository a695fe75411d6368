"""Pipes, devices, huge, deep and senseless files where records and configuration lie: no command hangs or fails."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddplaunch.cli.commands.afterwards import clean
from ddplaunch.hosts.local.end_orphans import Leftovers
from ddplaunch.records.write import git_commit
from ddplaunch.values.finding import ExitStatus
from tests.cli.cli_calls import Call
from tests.records.fake_runs import outcome, processes_json, record

SOMEBODY = 65533
FILES = (
    "run.json", "outcome.json", "launcher.json", "node-0/processes.json",
    "node-0/attempt-0/rank-0.out", "node-0/attempt-0/rank-0.err", "node-0/launcher.err", "flight-recorder-rank-0",
)  # fmt: skip


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(6 << 30)


DEEP = "[" * 20_000
#: The fields of run.json, outcome.json and the others, each with a value of another type.
FIELDS = (
    "argv", "attempts", "cascade", "code", "created_s", "cwd", "diagnosis", "ended_s", "environment", "exit_status",
    "findings", "first_failed_rank", "host", "launch", "launcher", "nodes", "notes", "plan", "previous", "ranks",
    "boot_id", "git_commit", "node", "run_id", "started_s", "state", "torchrun_argv", "versions",
)  # fmt: skip
OTHERS = (True, 1e300, "\x1b[31m\u202e\x9b", [["a"]], {"a": [1]})


def of_other_types(path: Path) -> None:
    values = {name: OTHERS[number % len(OTHERS)] for number, name in enumerate(FIELDS, len(path.name))}
    path.write_text(json.dumps({"schema": 1, **values}))


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "huge": sparse,
    "deep": lambda path: path.write_text(DEEP),
    "deep object": lambda path: path.write_text('{"schema": 1, "x": ' * 20_000),
    "numbers": lambda path: path.write_text('{"schema": 1, "created_s": NaN, "ended_s": 1e999, "pid": -Infinity}\n'),
    "digits": lambda path: path.write_text('{"schema": 1, "created_s": ' + "9" * 6000 + "}"),
    "folder": lambda path: path.mkdir(),
    "types": of_other_types,
}


def complete(base: Path, number: int) -> Path:
    """Return a record with all that a run leaves."""
    directory = record(base, f"r{number}", begun_s=time.time() - 60)
    outcome(directory, "failed")
    processes_json(directory)
    attempt = directory / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    for name in ("rank-0.out", "rank-0.err"):
        (attempt / name).write_text("KeyError: 'x'\n")
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_records_with_such_a_file(call: Call, folder: Path, kind: str) -> None:
    commands = [("ps", "--all"), ("ps", "--json"), ("clean", "--dry-run", "--keep", "0")]
    for number, name in enumerate(FILES):
        if kind == "huge" and name.endswith((".out", ".err")):
            continue  # a log may be as large as it is, and is read
        path = complete(folder / ".ddplaunch", number) / name
        path.unlink(missing_ok=True)
        KINDS[kind](path)
        commands += [(command, f"r{number}") for command in ("explain", "stop", "logs")]
        commands += [("report", f"r{number}", "-o", "r.html", "--force"), ("top", f"r{number}", "--count", "1")]
    for words in commands:
        said = call(*words)
        assert said.status in (ExitStatus.DONE, ExitStatus.FINDINGS, ExitStatus.USAGE), (words, said)


def of_others(place: Path) -> None:
    """A folder that belongs to somebody else, with what a base holds."""
    for each in (place, place / "runs"):
        each.mkdir()
        os.chown(each, SOMEBODY, SOMEBODY)


PLACES: dict[str, Callable[[Path], object]] = {
    "file": Path.touch,
    "pipe": os.mkfifo,
    "link to nothing": lambda path: path.symlink_to("/nowhere/at/all"),
    "of others": of_others,
}
OF_A_BASE = ("ps", "logs", "stop", "explain", "stacks", "report", "clean --yes", "top --count 1")


@pytest.mark.parametrize("kind", [*list(PLACES)[:-1], pytest.param("of others", marks=pytest.mark.root)])
@pytest.mark.parametrize("below", ["", "runs"])
def test_a_base_that_is_none(call: Call, folder: Path, kind: str, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "leftovers", lambda *_: Leftovers((), (), {}))  # those of other tests live on
    place = folder / ".ddplaunch" / below
    place.parent.mkdir(exist_ok=True)
    PLACES[kind](place)
    for words in OF_A_BASE:
        said = call(*words.split())
        assert said.status in (0, 1, 2, 4), (words, said)
        assert "Traceback" not in said.err, (words, said)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
@pytest.mark.parametrize("name", ["ddplaunch.toml", "pyproject.toml"])
def test_such_a_configuration(call: Call, folder: Path, name: str, kind: str) -> None:
    KINDS[kind](folder / name)
    assert call("plan", "1", "--device", "cpu", "--", "train.py").status in (0, 2)


@pytest.mark.parametrize("where", ["HEAD", "packed-refs"])
def test_a_repository_with_a_pipe(tmp_path: Path, where: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / where).unlink(missing_ok=True)
    os.mkfifo(tmp_path / ".git" / where)
    assert git_commit(tmp_path) is None


def test_a_hostfile_without_end_is_refused(call: Call, folder: Path) -> None:
    said = call("run", "1", "--device", "cpu", "--hostfile", "/dev/zero", "--", "train.py")
    assert said.status == 2 and "more than 16 MiB" in " ".join(said.err.split())


# Whose configuration it is


@pytest.mark.root
@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("ddplaunch.toml", 'env = ["PYTHONSTARTUP=/tmp/evil.py"]\n', True),
        ("pyproject.toml", '[tool.ddplaunch]\nenv = ["PYTHONSTARTUP=/tmp/evil.py"]\n', True),
        ("pyproject.toml", '[project]\nname = "x"\n', False),
    ],
)
def test_a_configuration_of_somebody_else_is_not_read_and_says_so(
    call: Call, folder: Path, name: str, text: str, told: bool
) -> None:
    (folder / name).write_text(text)
    before = call("run", "1", "--device", "cpu", "--dry-run", "--", "train.py")
    assert ("evil" in before.out) is told
    os.chown(folder / name, SOMEBODY, SOMEBODY)
    said = call("run", "1", "--device", "cpu", "--dry-run", "--", "train.py")
    assert said.status == 0 and "evil" not in said.out
    assert (
        f"warning[configuration-not-yours]: {name} belongs to uid 65533 and is not read" in " ".join(said.err.split())
    ) is told


def test_a_link_of_ones_own_to_a_configuration_is_read_and_what_it_sets_is_named(call: Call, folder: Path) -> None:
    (folder / "shared.toml").write_text('env = ["FROM_LINK=1"]\npreload = "torch"\n[profiles.big]\ngrace = 5\n')
    (folder / "ddplaunch.toml").symlink_to("shared.toml")
    said = call("plan", "1", "--device", "cpu", "--profile", "big", "--", "train.py")
    assert "FROM_LINK" in said.out
    assert "  config  ddplaunch.toml: env, preload; ddplaunch.toml, big: grace\n" in said.out
