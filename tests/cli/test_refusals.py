"""Bad input: a finding with a fix, status 2 or 4, nothing launched and no file left."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from tests.cli.cli_calls import Call, Said
from tests.golden import sections
from tests.ports import free_port

LONG = "1" * 5000


def refused(said: Said, status: int, words: str, place: Path, done: str = "launched") -> None:
    """Every refusal looks like this."""
    assert said.status == status, said.err
    assert said.err.startswith(("error[", "warning[")), said.err
    assert "\n  fix: " in said.err
    assert f"nothing was {done}" in said.err
    assert "Traceback" not in said.err and "bug in ddplaunch" not in said.err
    assert " ".join(words.split()) in " ".join(said.err.split()), said.err
    assert said.out == ""
    assert not (place / ".ddplaunch").exists()


NO_INTEGERS = ("abc", "1.5", "inf", "", "1_0", "٣", "0x10", LONG)
NO_NUMBERS = ("abc", "nan", "-inf", "1e400", "", "1_0", "0,1")
OUT_OF_RANGE = (
    "--batch-size=0", "--lr-max-factor=0", "--accum=0", "--global-batch-size=0",
    "--dataset-size=0", "--lr=0", "--base-warmup=-1", "--base-lr=-1", "--base-batch-size=0",
)  # fmt: skip
INTEGERS = ("--accum", "--dataset-size", "--max-restarts", "--master-port")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        *((["--batch-size", word], "is not an integer") for word in NO_INTEGERS),
        *(([flag, "1e9"], f"`{flag} 1e9` is not an integer") for flag in INTEGERS),
        *(([f"--lr={word}"], "is not a number") for word in NO_NUMBERS),
        *(([flag, "nan"], f"`{flag} nan` is not a number") for flag in ("--base-lr", "--lr-max-factor")),
        *(([word], "[number-out-of-range]: `" + word.replace("=", "` is ")) for word in OUT_OF_RANGE),
        (["--nnodes", LONG], "is not a number of nodes"),
        (["--run-id", "a\nb"], "or a character that cannot be printed"),
        (["--run-id", "a b"], "holds a blank"),
    ],
)
def test_options(call: Call, folder: Path, words: list[str], says: str) -> None:
    refused(call("run", "2", *words, "--", "train.py"), 2, says, folder)


LINES = sections(Path(__file__).with_name("refusals.txt"))


@pytest.mark.parametrize(("line", "says"), [*LINES, (f"run 2 -- {'a' * 5000}.py", "does not exist")])
def test_lines(call: Call, folder: Path, line: str, says: str) -> None:
    """In ``refusals.txt`` there stands below each line what is said of it."""
    (folder / "data.txt").write_text("text")
    for name in ("tool", "run.sh"):
        (folder / name).write_text("#!/bin/sh\n")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    refused(call(*shlex.split(line)), 2, says, folder, "submitted" if line.startswith("submit") else "launched")


def test_no_separator_and_no_script(call: Call, folder: Path) -> None:
    for words in ((), ("2",), ("2", "--")):
        refused(call("run", *words), 2, "no script was named", folder)
    said = call("run", "2", "--batch-size", "8", "--", "train.py", "--batch-size", "9")
    refused(said, 2, "two values for `--batch-size`: 9 after `--`, 8 from the plan", folder)
    said = call("run", "2", "--env", "A=" + "x" * 131072, "--", "train.py")
    refused(said, 4, "the variable `A` has 131074 bytes", folder)
    said = call("run", "2x2", "--nnodes", "3", "--", "train.py")
    refused(said, 2, "`2x2` says 2 nodes, `--nnodes` says 3", folder)
    alone = f"--no-checks --master-addr 127.0.0.1 --master-port {free_port()} --node-rank 0 --join-timeout 0.2"
    refused(call("run", "2x1", *alone.split(), "--", "train.py"), 4, "error[nodes-missing]", folder)


NO_COUNTS = ("0", "-", "abc", "sh", "1.5", "2x", "0x2", "2x0", "00", "٣", "²", "", "2X2", "1_0", "+4", LONG)


@pytest.mark.parametrize("nproc", NO_COUNTS)
def test_processes(call: Call, folder: Path, nproc: str) -> None:
    refused(call("run", nproc, "--", "train.py"), 2, "is not a number of processes", folder)


def test_a_script_that_may_not_be_read(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    refused(call("run", "2", "--", "train.py"), 2, "fix: `chmod +r train.py`", folder)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--data", "nowhere"], "data-missing"),
        (["--output", "train.py/out"], "output-not-writable"),
        (["--socket-ifname", "nope0"], "interface-missing"),
        (["--device", "cuda"], "no-gpu-for-cuda"),
    ],
)
def test_what_the_checks_refuse(call: Call, folder: Path, words: list[str], code: str) -> None:
    said = call("run", "2", *words, "--", "train.py")
    refused(said, 4, f"error[{code}]", folder)
    assert f"`--ignore {code}`" in said.err
    assert call("run", "2", *words, "--ignore", code, "--dry-run", "--", "train.py").status == 0


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("NODE_RANK", "x", "`unset NODE_RANK`"),
        ("NODE_RANK", "99999999", "`--node-rank` 0 to 1"),
        ("MASTER_PORT", "²", "`unset MASTER_PORT`"),
        ("MASTER_PORT", LONG, "`unset MASTER_PORT`"),
        ("MASTER_PORT", "99999999", "`--master-port 29500`"),
    ],
)
def test_numbers_of_the_environment(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, fix: str
) -> None:
    monkeypatch.setenv(name, value)
    said = call("run", "2x2", "--master-addr", "127.0.0.1", "--", "train.py")
    refused(said, 2, f"fix: {fix}", folder)


def test_a_working_directory_that_is_gone(call: Call, folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    refused(call("run", "2", "--", "train.py"), 2, "the working directory does not exist any more", folder)
    assert call("plan", "2").status == 2


def test_a_folder_or_archive_of_python_runs_as_with_torchrun(call: Call, folder: Path) -> None:
    (folder / "app").mkdir()
    refused(call("run", "2", "--", "app"), 2, "`app` is a directory", folder)
    (folder / "app" / "__main__.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n"
    )
    (folder / "app.pyz").write_bytes(b"PK\3\4")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    said = call("run", "2", "--device", "cpu", "--dry-run", "--", "run.sh", "3")
    assert "--no-python" in said.out and said.out.rstrip().endswith("-- ./run.sh 3"), said.err
    for name, passed in (("app", " --lr 0.1"), ("app.pyz", "")):  # an archive is not read
        said = call("run", "2", "--device", "cpu", "--dry-run", "--lr", "0.1", "--", name, "3")
        assert said.out.rstrip().endswith(f"-- {name}{passed} 3"), said.err
        assert ("app.pyz will not see" in said.err) is not bool(passed), said.err


def test_the_rank_of_a_debugger_exists_and_has_debugpy(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "2", "--device", "cpu", "--dry-run", "--", "train.py")
    assert "DDPLAUNCH_DEBUG=1" in call(*words[:2], "--debug", "1", *words[2:]).out
    for rank in ("2", "-1"):
        said = call(*words[:2], f"--debug={rank}", *words[2:])
        assert said.status == 2 and f"`--debug {rank}`: there is no such rank" in said.err
    monkeypatch.setattr("ddplaunch.cli.commands.launch.run.find_spec", lambda _: None)
    said = call(*words[:2], "--debug", "1", *words[2:])
    assert said.status == 2 and "debugpy is not installed" in said.err and "pip install debugpy" in said.err
