"""What others build on when they start `ddplaunch run`: exit statuses, and arguments that arrive byte for byte."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ddplaunch.values.finding import ExitStatus
from tests.agent.plugin_runs import of_folder, on_terminal, within
from tests.cli.cli_calls import Call, spawn
from tests.hosts.launching import clean_environment, ddplaunch, write_script

TIMEOUT_S = 240

#: Everything that a shell, Typer, argparse or a placeholder might touch. Options that torchrun has too come first.
ARGUMENTS: tuple[bytes, ...] = (
    b"--help", b"-h", b"--version", b"--r=16", b"--nnodes=9", b"--max-restarts", b"3", b"-m", b"--module",
    b"--no-python", b"--", b"--", b"-", b"", b" ", b"a b", b"tab\there", b"line\nbreak", b"cr\r", b"'", b'"', b"`id`",
    b"$HOME", b"$(id)", b"\\", b"\\n", b"*", b"~", b"@file", b"#", b"a=b", b"--flag=",
    b"{X}", b"{{", b"}}", b"{", b"{{}}", b"{0}", b"%s", b"%(x)s",
    "größe".encode(), b"\xff\xfe", b"--name=\xe9", b"\x01\x7f", b"--run-id", b"--dry-run",
)  # fmt: skip

#: Writes its arguments, separated by NUL, as the bytes that they are.
WRITE = """
import os, sys
from pathlib import Path
Path(os.environ["OUT"], os.environ["RANK"]).write_bytes(b"".join(os.fsencode(word) + b"\\0" for word in sys.argv[1:]))
"""
SHELL = 'IFS= ; out=$1; shift; for word; do printf "%s\\0" "$word"; done > "$OUT/$RANK"'


ODD_NAME = b"tr\xe4in $HOME 'n' \n {lr} --x.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [(ODD_NAME,), ("-m", "package.take"), ("/bin/sh", "-c", SHELL, "sh", "first")], ids=str
)
def test_arguments_reach_every_rank_byte_for_byte(words: tuple[str | bytes, ...], tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name in (ODD_NAME, b"package/take.py"):
        Path(tmp_path, os.fsdecode(name)).write_text(WRITE)
    done = spawn(["run", "2", "--device", "cpu", "--", *words, *ARGUMENTS], tmp_path, {"OUT": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    for rank in ("0", "1"):
        assert (tmp_path / rank).read_bytes().split(b"\0")[:-1] == list(ARGUMENTS)


def test_the_numbers_are_frozen() -> None:
    assert {status.name: int(status) for status in ExitStatus} == {
        "DONE": 0, "FINDINGS": 1, "USAGE": 2, "BUG": 3, "REFUSED": 4, "TIMED_OUT": 124, "INTERRUPTED": 130,
    }  # fmt: skip


# A launch that needs no terminal

GOES_ON = """
import time
from pathlib import Path
print("begun", flush=True)
while not Path("go").exists():
    time.sleep(0.05)
raise SystemExit(3)
"""


@pytest.mark.slow
def test_a_detached_run_goes_on_when_its_terminal_is_gone(tmp_path: Path) -> None:
    write_script(tmp_path / "train.py", GOES_ON.splitlines())
    status, shown = on_terminal(ddplaunch("run", "1", "--device", "cpu", "-d", "--", "train.py"), tmp_path)
    said = shown.decode().splitlines()
    run_id = said[-1]
    assert status == 0 and said[0] == f"ddplaunch {run_id}" and "train.py on 1 process" in said[1], said
    assert f"detached: `ddplaunch logs {run_id} --follow` shows what it prints" in " ".join(said[-4:]), said
    followed = subprocess.Popen(
        ddplaunch("logs", run_id, "--follow"), cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, text=True
    )
    assert followed.stdout is not None and "begun" in followed.stdout.readline()
    (tmp_path / "go").touch()
    followed.communicate(timeout=TIMEOUT_S)
    assert followed.returncode == 0
    record = tmp_path / ".ddplaunch" / "runs" / run_id
    within(lambda: "failed (exit status 3)" in (record / "console.log").read_text())
    within(lambda: not of_folder(tmp_path))
    assert {path.name for path in (tmp_path / ".ddplaunch").iterdir()} == {".gitignore", "latest", "runs"}


def test_what_is_refused_is_not_detached(monkeypatch: pytest.MonkeyPatch, folder: Path, call: Call) -> None:
    done = spawn(["run", "1", "--device", "cpu", "--detach", "--", "missing.py"], folder)
    assert done.returncode == ExitStatus.USAGE and b"`missing.py` does not exist" in done.stderr
    assert done.stdout == b"" and b"detached" not in done.stderr
    monkeypatch.setenv("SLURM_PROCID", "0")
    said = call("run", "1", "--device", "cpu", "--detach", "--", "train.py")
    assert said.status == ExitStatus.USAGE and "`--detach` inside a job of Slurm" in said.err
    assert call("run", "1", "--device", "cpu", "--detach", "--dry-run", "--", "train.py").status == 0
    assert not (folder / ".ddplaunch").exists()
