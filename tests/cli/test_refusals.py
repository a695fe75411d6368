"""Bad input: a finding with a fix, status 2 or 4, nothing launched and no file left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.cli_calls import Call, Said
from tests.ports import free_port

LONG = "1" * 5000


def refused(said: Said, status: int, words: str, place: Path) -> None:
    """Every refusal looks like this."""
    assert said.status == status, said.err
    assert said.err.startswith(("error[", "warning[")), said.err
    assert "\n  fix: " in said.err
    assert "nothing was launched" in said.err
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
        (["--batch-size", "9" * 30], "[number-out-of-range]: `--batch-size` is 9"),
        (["--base-lr", "0,1"], "fix: `--base-lr 0.1`"),
        (["--batch-size", "16,32"], "fix: `--batch-size 16`"),
        (["--dataset-size", "50,000"], "fix: `--dataset-size 50000`"),
        (["--batch-size", "0,1"], "fix: `--batch-size 8`"),
        (["--node-rank", "-1"], "`--node-rank` is -1, less than 0"),
        (["--node-rank", "3"], "add `--nnodes 4`"),
        (["--master-port", "-1"], "port -1 does not exist"),
        (["--master-port", "65536"], "port 65536 does not exist"),
        (["--nnodes", "0"], "`--nnodes 0` is not a number of nodes"),
        (["--nnodes", "3:2"], "`--nnodes 3:2` is not a number of nodes"),
        (["--nnodes", LONG], "is not a number of nodes"),
        (["--nnodes", "2"], "[master-addr-missing]: 2 nodes need `--master-addr`"),
        (["--nnodes", "2", "--master-addr", "10.0.0.1"], "[node-rank-missing]"),
        (["--nnodes", "2", "--master-addr", "10.0.0.1", "--node-rank", "2"], "node rank 2 of 2 nodes does not exist"),
        (["--device", "tpu"], "`--device tpu` is neither auto, cuda nor cpu"),
        (["--device", "gpu"], "`auto` takes one for each rank where there are any"),
        (["--run-dir", ""], "`--run-dir` is empty"),
        (["--data", ""], "`--data` is empty"),
        (["--env", "FOO"], "an `--env` is not NAME=VALUE"),
        (["--env", "1A=x"], "fix: `--env NAME=VALUE`"),
        (["--hostfile", "nope"], "`nope` cannot be read: No such file or directory"),
        (["--run-id", "../x"], "cannot be the name of a directory"),
        (["--run-id", "a\nb"], "holds a character that cannot be printed"),
        (["--ignore", "shm_small"], "fix: `--ignore shm-too-small`"),
        (["--ignore", "zzzzz"], "fix: `ddplaunch doctor --list` shows every code"),
        (["--torchrun-arg=--nproc-per-node=3"], "is not handed on: ddplaunch decides"),
        (["--torchrun-arg=-m"], "is not handed on: ddplaunch decides"),
        (["--torchrun-arg=other.py"], "is not an option of torchrun"),
        (["--torchrun-arg=--nnode=3"], "did you mean `--nnodes`?"),
        (["--torchrun-arg='x"], "has an unbalanced quote"),
        (["--hang-timeout", "0.5"], "less than a second"),
        (["--on-hang", "stop"], "`--on-hang` without `--hang-timeout`"),
        (["--on-hang", "kill", "--hang-timeout", "9m"], "neither report nor stop"),
        (["--json"], "`ddplaunch plan … --json -- train.py`"),
        (["--device", "cpu", "--gpus", "0"], "`--device cpu` contradicts `--gpus`"),
        (["--gpus", "0"], "[gpu-not-found]: `--gpus 0`, but GPUs cannot be queried"),
        (["--lr", "1", "--base-lr", "1"], "[lr-given-twice]"),
        (["--batch-size", "8", "--global-batch-size", "17"], "[batch-does-not-divide]"),
        (["--profile", "big"], "why: no profile is written in ddplaunch.toml"),
    ],
)
def test_options(call: Call, folder: Path, words: list[str], says: str) -> None:
    refused(call("run", "2", *words, "--", "train.py"), 2, says, folder)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ([""], "no script was named"),
        (["."], "fix: name the file, as in `-- train.py`"),
        (["trian.py"], "fix: did you mean `train.py`?"),
        (["nope.py"], "correct the path"),
        *(([line], f"fix: leave out the quotes: `{line}`") for line in ("train.py --lr 0.1", "python train.py")),
        (["nowhere/train.py"], "there is no directory nowhere"),
        (["no-such-program"], "`no-such-program` does not exist"),
        (["data.txt"], "fix: `chmod +x data.txt`"),
        (["tool"], "`chmod +x tool`, or name what runs it: `-- python tool`"),
        (["run.sh"], "`chmod +x run.sh`, or name what runs it: `-- bash run.sh`"),
        (["a" * 5000 + ".py"], "does not exist"),
        (["loop/train.py"], "does not exist"),
        (["--epochs", "3", "train.py"], "fix: `ddplaunch run 2 --epochs 3 -- train.py`"),
        (["-m"], "names no module"),
        (["-m", "a b"], "`-m a b` names no module"),
        (["-m", ".train"], "fix: `-- -m train`; in a package, `-- -m package.train`"),
        (["-m", "..a b"], "fix: `-- -m package.train`"),
        (["-m", "train.py"], "fix: leave out `-m`, or `.py`"),
        (["-m", "nope.folder"], "there is no module `nope.folder`"),
        (["train.py", "{lr}"], "[placeholder-without-number]"),
    ],
)
def test_scripts(call: Call, folder: Path, target: list[str], says: str) -> None:
    (folder / "data.txt").write_text("text")
    for name in ("tool", "run.sh"):
        (folder / name).write_text("#!/bin/sh\n")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    refused(call("run", "2", "--", *target), 2, says, folder)


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
