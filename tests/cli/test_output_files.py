"""Options that name a file to write replace nothing but an earlier file of the same kind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ddplaunch.cli.parsing.command import COMMANDS, options_of
from tests.cli.cli_calls import TRAIN, Call
from tests.cli.test_report_page import record

#: Every option that writes a file, as the options themselves say.
OUTPUTS = [(command, flag.flag) for command in COMMANDS for flag in options_of(command) if flag.kind == "output"]
#: Options that take a file and only read it.
_READ = {"--hostfile", "--patch", "--files"}


@pytest.fixture
def run(call: Call, folder: Path) -> Call:
    """A call in a folder that has a recorded run."""
    record(folder / ".ddplaunch", "first")
    return call


def test_each_option_that_takes_a_file_reads_it_or_is_of_the_kind_that_is_guarded() -> None:
    files = {flag for command in COMMANDS for flag in options_of(command) if "FILE" in flag.metavar.split("|")}
    unguarded = {flag.flag for flag in files if flag.kind != "output"} - _READ
    assert unguarded <= {"--targets"}
    assert OUTPUTS == [("report", "--output")]


def test_an_earlier_file_of_the_same_kind_is_replaced_and_keeps_its_mode(run: Call, folder: Path) -> None:
    out, link = folder / "out", folder / "link"
    assert run("report", "--output", "out").status in (0, 1)
    out.chmod(0o640)
    first, inode = out.read_text(), out.stat().st_ino
    out.write_text(first + "older\n")
    link.symlink_to("out")
    assert run("report", "--output", "link").status in (0, 1)
    assert link.is_symlink() and not out.read_text().endswith("older\n")
    assert stat.S_IMODE(out.stat().st_mode) == 0o640 and out.stat().st_ino != inode  # a new file in one step
    assert {each.name for each in folder.iterdir()} == {".ddplaunch", "train.py", "out", "link"}


def test_force_replaces_a_file_and_nothing_else(run: Call, folder: Path) -> None:
    said = run("report", "--output", "train.py")
    assert said.status == 2 and "error[output-not-written]: `train.py` exists and is not" in said.err
    assert "`--force`" in said.err and (folder / "train.py").read_text() == TRAIN
    (folder / "train.py").chmod(0o751)
    assert run("report", "--output", "train.py", "--force").status in (0, 1)
    assert (folder / "train.py").read_text() != TRAIN
    assert stat.S_IMODE((folder / "train.py").stat().st_mode) == 0o751
    os.mkfifo(folder / "pipe")
    (folder / "broken").symlink_to("missing")
    (folder / "loop").symlink_to("loop")
    kinds = dict.fromkeys(("pipe", "loop", ".", "/dev/null"), "is not a regular file")
    kinds |= {"broken": "is a link that leads nowhere", "no/such": "there is no directory `no`"}
    for name, problem in kinds.items():
        said = run("report", "--output", name, "--force")
        assert said.status == 2 and problem in " ".join(said.err.split()), name
    assert not (folder / "missing").exists() and Path("/dev/null").is_char_device()
