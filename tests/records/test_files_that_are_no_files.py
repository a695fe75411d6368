"""Pipes, devices, huge, deep and senseless files where records and configuration lie: no command hangs or fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus
from tests.cli.cli_calls import Call, call, folder, spawn
from tests.records.fake_runs import outcome, processes_json, record

__all__ = ["call", "folder"]

SOMEBODY = 65533
FILES = (
    *("run.json", "outcome.json", "launcher.json", "node-0/processes.json"),
    *("node-0/attempt-0/rank-0.out", "node-0/attempt-0/rank-0.err", "node-0/launcher.err", "flight-recorder-rank-0"),
)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(6 << 30)


DEEP = "[" * 200_000
KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "huge": sparse,
    "deep": lambda path: path.write_text(DEEP),
    "deep object": lambda path: path.write_text('{"schema": 1, "x": ' * 100_000),
    "numbers": lambda path: path.write_text('{"schema": 1, "created_s": NaN, "ended_s": 1e999, "pid": -Infinity}\n'),
    "digits": lambda path: path.write_text('{"schema": 1, "created_s": ' + "9" * 6000 + "}"),
    "folder": lambda path: path.mkdir(),
}
COMMANDS = (
    *(("ps", "--all"), ("ps", "--json"), ("explain", "r"), ("explain", "r", "--json"), ("logs", "r")),
    *(("clean", "--dry-run", "--keep", "0"), ("stop", "r")),
)


def complete(base: Path) -> Path:
    """Return a record with all that a run leaves."""
    directory = record(base, "r", begun_s=time.time() - 60)
    outcome(directory, "failed")
    processes_json(directory)
    attempt = directory / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    for name in ("rank-0.out", "rank-0.err"):
        (attempt / name).write_text("KeyError: 'x'\n")
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_a_record_with_such_a_file(call: Call, folder: Path, name: str, kind: str) -> None:
    if kind == "huge" and name.endswith((".out", ".err")):
        pytest.skip("a log may be as large as it is: `explain` reads its ends, `logs` prints it")
    path = complete(folder / ".ddplaunch") / name
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    for words in COMMANDS:
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
OF_A_BASE = (*("ps", "logs", "stop", "explain", "stacks", "report", "clean --yes", "top --count 1"),)


@pytest.mark.parametrize("kind", [*list(PLACES)[:-1], pytest.param("of others", marks=pytest.mark.root)])
@pytest.mark.parametrize("below", ["", "runs"])
def test_a_base_that_is_none(call: Call, folder: Path, kind: str, below: str) -> None:
    place = folder / ".ddplaunch" / below
    place.parent.mkdir(exist_ok=True)
    PLACES[kind](place)
    for words in OF_A_BASE:
        said = call(*words.split())
        assert said.status in (0, 1, 2, 4), (words, said)
        assert "Traceback" not in said.err, (words, said)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
@pytest.mark.parametrize("name", ["ddplaunch.toml", "pyproject.toml"])
def test_such_a_configuration(folder: Path, name: str, kind: str) -> None:
    KINDS[kind](folder / name)
    done = spawn(["plan", "1", "--device", "cpu", "--", "train.py"], folder)
    assert done.returncode in (0, 2), done.stderr
    assert b"a bug in ddplaunch" not in done.stderr


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e400", "[[]]", "{}", '"x"', "true", "1" * 400])
@pytest.mark.parametrize("key", ["base-lr", "batch-size", "timeout", "nproc", "env", "max-restarts"])
def test_values_of_a_configuration_that_no_launch_can_have(call: Call, folder: Path, key: str, value: str) -> None:
    (folder / "ddplaunch.toml").write_text(f"{key} = {value}\n")
    assert call("plan", "--device", "cpu", "--", "train.py").status in (0, 2, 4)


@pytest.mark.parametrize("where", ["HEAD", "packed-refs"])
def test_a_repository_with_a_pipe(call: Call, folder: Path, where: str) -> None:
    from ddplaunch.records.write import git_commit

    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / where).unlink(missing_ok=True)
    os.mkfifo(folder / ".git" / where)
    assert git_commit(folder) is None


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


def test_a_link_of_ones_own_to_a_configuration_is_read(call: Call, folder: Path) -> None:
    (folder / "shared.toml").write_text('env = ["FROM_LINK=1"]\n')
    (folder / "ddplaunch.toml").symlink_to("shared.toml")
    assert "FROM_LINK" in call("run", "1", "--device", "cpu", "--dry-run", "--", "train.py").out


def test_what_a_configuration_sets_is_named_in_the_panel() -> None:
    import dataclasses

    from ddplaunch.ui.launch_view import launch_panel
    from ddplaunch.values.resolved import Resolved, Source
    from tests.planning.sample_launch import launch

    one = launch()
    file, profile = Source("profile", "ddplaunch.toml"), Source("profile", "ddplaunch.toml, big")
    options = dataclasses.replace(
        one.options,
        env=(Resolved(("A", "1"), file), Resolved(("B", "1"), file)),
        preload=Resolved(("torch",), file),
        grace_s=Resolved(5.0, profile),
    )
    text = launch_panel(dataclasses.replace(one, options=options), (), Terminal(80))
    assert "  config  ddplaunch.toml: env, preload; ddplaunch.toml, big: grace\n" in text
    assert "config" not in launch_panel(one, (), Terminal(80))
