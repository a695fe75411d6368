"""The five guides' launch scripts and commands, run for real on CPU with stand-ins that take the guides' arguments."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.cli.parsing.typed_words import parse_quickly
from ddplaunch.planning.options import flags_of_options
from tests.cli.cli_calls import Call
from tests.hosts.launching import run_and_read
from tests.machine.fake_nvml import FakeNvml

TESTS = Path(__file__).parent
STANDINS = TESTS / "standins"
SCRIPTS = TESTS.parent / "scripts"
SAMPLES = 48
STALE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Run:
    """What one launch left behind: the evidence of every rank, who saved, and what was printed."""

    ranks: tuple[dict[str, Any], ...]
    savers: tuple[str, ...]
    output: str


class Guide:
    """A guide's project in a folder of its own (with a space and a quote in its path), ready to be launched."""

    def __init__(self, name: str, tmp_path: Path) -> None:
        self.folder = tmp_path / "a guide's project"
        shutil.copytree(STANDINS / name, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.out = tmp_path / "evidence"
        self.out.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if name not in STALE} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(STANDINS),
            "STANDIN_OUT": str(self.out),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``command`` in the project's folder; a name ending in .sh is one of our scripts."""
        words = ["bash", str(SCRIPTS / command[0]), *command[1:]] if command[0].endswith(".sh") else [*command]
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )

    def run(self, *command: str, **environment: str) -> Run:
        """Run ``command``, which has to succeed, and collect the evidence."""
        done = self.start(*command, **environment)
        assert done.returncode == 0, done.stdout
        count = len(list(self.out.glob("rank-*.json")))
        ranks = tuple(json.loads((self.out / f"rank-{rank}.json").read_text()) for rank in range(count))
        return Run(ranks, tuple(sorted(path.name for path in self.out.glob("saved-by-*"))), done.stdout)

    def words(self, *command: str, **environment: str) -> list[str]:
        """Return what ``command`` hands to ddplaunch, which is replaced by a recorder."""
        recorder = self.out / "ddplaunch"
        recorder.write_text('#!/bin/sh\nprintf "%s\\0" "$@" >"$STANDIN_OUT/words"\n')
        recorder.chmod(0o755)
        path = f"{self.out}{os.pathsep}{self.environment['PATH']}"
        done = self.start(*command, **({"PATH": path} | environment))
        assert done.returncode == 0, done.stdout
        return (self.out / "words").read_text().split("\0")[:-1]


def distributed(run: Run, world_size: int, epochs: int, batch_size: int) -> None:
    """Assert that ``run`` was one job of ``world_size`` ranks that split the data and saved once."""
    assert len(run.ranks) == world_size
    environments = [rank["environment"] for rank in run.ranks]
    for number, environment in enumerate(environments):
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(number)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == str(world_size)
    assert len({(environment["MASTER_ADDR"], environment["MASTER_PORT"]) for environment in environments}) == 1
    assert {rank["backend"] for rank in run.ranks} <= {"gloo", "nccl"}
    for epoch in range(epochs):
        shards = [rank["seen"][epoch] for rank in run.ranks]
        assert sorted(index for shard in shards for index in shard) == list(range(SAMPLES))
    assert {len(rank["seen"]) for rank in run.ranks} == {epochs}
    assert {rank["largest_batch"] for rank in run.ranks} == {min(batch_size, SAMPLES // world_size)}
    assert all(rank["weights"] == run.ranks[0]["weights"] for rank in run.ranks), "the ranks did not stay in step"
    assert run.savers == ("saved-by-0.json",)


EVERY_SCRIPT = (
    ("retriever-distillation", "run_ddp.sh"),
    ("underwater-ir", "train_ddp.sh"),
    ("crowd-bt", "train_distributed.sh"),
    ("uniref50", "run_train_uniref50_ddp.sh"),
    ("quantumgrav", "train_quantumgrav.sh"),
)

# What docs/guides.md says.

TABLES = (TESTS.parent / "docs" / "guides.md").read_text(encoding="utf-8").split("## Environment and trouble")
ROWS = [
    tuple(cell.strip() for cell in line.replace("\\|", "¦").strip("| \n").split(" | "))
    for line in "".join(TABLES).splitlines()
    if line.startswith("| ") and not line.startswith(("| guide |", "| the guides"))
]
ANYTHING = "underwater_ir.student.train_student"
# Words that stand for what the reader has, and those that keep a launch from starting or from reaching other machines.
FILLED = {"-m …": f"-m {ANYTHING}", "… --ddp": "--ddp", " …": "", "srun ddplaunch": "ddplaunch"}
MADE_HARMLESS = {"run": ("--dry-run", "--no-checks"), "submit": ("--dry-run",), "plan": (), "doctor": ("--list",)}


def commands_of(row: tuple[str, ...]) -> list[tuple[dict[str, str], list[str]]]:
    """Return every command of ddplaunch in a row, with what the guide exports for it; single options join a plan."""
    exported = dict(re.findall(r"(?:export |`)([A-Z_]+)=([0-9][^\s`]*)", row[0]))
    found = []
    for text in re.findall(r"`([^`]+)`", row[-1]):
        for old, new in FILLED.items():
            text = text.replace(old, new)
        words = shlex.split(text)
        if words[0] == "ddplaunch" and words[1:2] != ["--help"]:
            found.append((exported, words[1:]))
        elif words[0] in FLAGS and (len(words) > 1 or FLAGS[words[0]].kind == "switch"):
            found.append(({}, ["plan", "8", *words, *BESIDE.get(words[0], ())]))
    return found


FLAGS = {each.flag: each for each in flags_of_options().values()}
# What an option of the page makes no sense without.
SCALED = ("--base-lr", "1e-3", "--batch-size", "8")
BESIDE = {
    "--lr-scaling": SCALED,
    "--lr-max-factor": SCALED,
    "--node-rank": ("--nnodes", "2", "--master-addr", "node-0"),
}
CALLED = [row for row in ROWS if len(row) == 3 and row[1].startswith("`scripts/")]
COMMANDS = [(exported, words) for row in ROWS for exported, words in commands_of(row)]


def test_the_tables_are_read() -> None:
    assert len(ROWS) > 45 and {row[1].strip("`").removeprefix("scripts/") for row in CALLED} == {
        script for _, script in EVERY_SCRIPT
    }
    assert {words[0] for _, words in COMMANDS} == {"run", "plan", "submit", "doctor", "top", "clean", "scale"}


#: Reads what is exported and typed, and prints how each command ended and all that it said.
ONE_AFTER_ANOTHER = """
import contextlib, io, json, os, sys
from ddplaunch.cli.main import main
variables = dict(os.environ)
for exported, words in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(variables | exported)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            main(words)
    except SystemExit as end:
        print(json.dumps([end.code, shown.getvalue()]))
"""


@pytest.mark.slow
def test_every_command_of_the_page_works(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    """On a machine with eight GPUs, with what the guide exported; `run` and `submit` say what they would do."""
    guide = Guide("underwater-ir", tmp_path)
    for name in ("your_training_script.py", "your_script.py", "train.py", "train_ddp.py"):
        (guide.folder / name).write_text("")
    (guide.folder / "data").mkdir()
    (guide.folder / "data" / "processed_uniref50.pt").write_bytes(b"not really")
    lines = []
    for exported, words in COMMANDS:
        own, script = (words[: words.index("--")], words[words.index("--") :]) if "--" in words else (words, [])
        if "--hosts" in own:  # these have to be reached: the command is only read here
            assert parse_quickly(own[0], own[1:]) is not None
            continue
        harmless = MADE_HARMLESS.get(own[0], ("--help",))
        behind = script or (["--", "train.py"] if own[0] == "plan" else [])
        lines.append((exported, [*own, *harmless, *(() if "--list" in harmless else behind)]))
    machine = fake_nvml.environment(8)
    gpus = {name: value for name, value in machine.items() if "NVML" in name or "LIBRARY" in name}
    words = [sys.executable, "-c", ONE_AFTER_ANOTHER]
    done = run_and_read(words, guide.folder, guide.environment | gpus, json.dumps(lines))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines) > 30, done.stderr
    for (exported, words), (status, shown) in zip(lines, answers, strict=True):
        assert status == 0, f"{shlex.join(words)}: {shown}"
        if "--gpus" in words and "CUDA_VISIBLE_DEVICES" in exported:
            assert f"CUDA_VISIBLE_DEVICES={exported['CUDA_VISIBLE_DEVICES']} " in shown


@pytest.mark.parametrize("row", CALLED, ids=lambda row: row[1])
def test_every_script_of_the_page_is_called_as_it_says(tmp_path: Path, row: tuple[str, ...]) -> None:
    guide = Guide(
        {script: guide for guide, script in EVERY_SCRIPT}[row[1].strip("`").removeprefix("scripts/")], tmp_path
    )
    for typed in re.findall(r"`([^`]+)`", row[2]):
        words = [word.removeprefix("./") for word in shlex.split(typed) if word != "bash"]
        assert guide.words(*words)[0] == "run"


@pytest.mark.parametrize(
    ("row", "more", "lr", "warmup"),
    [
        ("new lr = base lr", (), 4e-4, None),
        ("2e-5 on one GPU, 4e-5 on 8", ("--batch-size", "64"), 4e-5, None),
        ("warmup steps × GPUs", (), 4e-4, 40000),
        ("8 GPUs, batch 12", (), 3e-4, 30000),
        ("less aggressive scaling", ("--batch-size", "16"), 1e-4, 25000),
    ],
)
def test_the_numbers_of_the_guides_come_out(
    call: Call, row: str, more: tuple[str, ...], lr: float, warmup: int | None
) -> None:
    """Each command or option of the row that speaks of a learning rate gives the one that the guide has."""
    (found,) = (each for each in ROWS if each[0].startswith(row))
    told = [words for _, words in commands_of(found) if any(word in words for word in ("--lr", "--base-lr"))]
    assert told
    for words in told:
        own = [*words[1 : words.index("--") if "--" in words else None], *more]
        numbers = json.loads(call("plan", *own, "--json").out)["numbers"]
        assert numbers["lr"]["value"] == pytest.approx(lr)
        assert warmup is None or numbers["warmup_steps"]["value"] == warmup


# What the scripts hand to ddplaunch, word by word.


def test_train_ddp_without_arguments_has_the_defaults_of_its_guide(tmp_path: Path) -> None:
    words = Guide("underwater-ir", tmp_path).words("train_ddp.sh")
    assert words[:4] == ["run", "4", "--batch-size", "4"]
    script = words[words.index("--") + 1 :]
    assert script[:2] == ["-m", "underwater_ir.student.train_student"]
    assert script[script.index("--val-ref-root") + 1] == "Dataset/testset(ref)"
    assert script[script.index("--epochs") + 1] == "20"
    assert script[script.index("--img-size") + 1] == "256"
    assert script[-1] == "--ddp"


RETRIEVER = "retriever-distillation"
DISTIL = ["--", "train_ddp.py"]
CROWD = ["--", "train.py", "--distributed", "--world-size", "{world_size}"]
# What is typed, and the words behind `ddplaunch run`.
SPELLINGS = (
    (RETRIEVER, "run_ddp.sh", ["auto", *DISTIL, "--use_projection=True"]),
    (RETRIEVER, "run_ddp.sh ''", ["auto", *DISTIL, "--use_projection=True"]),
    (RETRIEVER, "run_ddp.sh 8 False", ["8", *DISTIL, "--use_projection=False"]),
    (RETRIEVER, "run_ddp.sh False", ["auto", *DISTIL, "--use_projection=False"]),
    (RETRIEVER, "run_ddp.sh 2 --batch_size=32", ["2", *DISTIL, "--use_projection=True", "--batch_size=32"]),
    (RETRIEVER, "run_ddp.sh --batch_size 32", ["auto", *DISTIL, "--use_projection=True", "--batch_size", "32"]),
    (RETRIEVER, "run_ddp.sh 2 True --x 'a b'", ["2", *DISTIL, "--use_projection=True", "--x", "a b"]),
    ("crowd-bt", "train_distributed.sh", ["auto", *CROWD]),
    ("crowd-bt", "train_distributed.sh --epochs=20", ["auto", *CROWD, "--epochs=20"]),
    ("crowd-bt", "train_distributed.sh 4 --epochs 20", ["4", *CROWD, "--epochs", "20"]),
)


@pytest.mark.parametrize(("guide", "typed", "expected"), SPELLINGS, ids=[typed for _, typed, _ in SPELLINGS])
def test_every_order_of_the_guides_is_taken(tmp_path: Path, guide: str, typed: str, expected: list[str]) -> None:
    assert Guide(guide, tmp_path).words(*shlex.split(typed)) == ["run", *expected]


@pytest.mark.parametrize(
    "typed",
    [
        "2 16 5 512",
        "2 --batch-size=16 --epochs 5 --img-size=512",
        "2 16 --img-size 512 --epochs=5 --ddp",
        "2 99 --batch-size 16 --epochs 5 --img-size 512",  # the option is what was meant last, as argparse has it
    ],
)
def test_train_ddp_takes_its_numbers_by_position_and_by_option(tmp_path: Path, typed: str) -> None:
    """The batch arrives once, as the one that the panel shows: an option never contradicts a position in silence."""
    guide = Guide("underwater-ir", tmp_path)
    words = guide.words("train_ddp.sh", *typed.split(), "--lr", "a b", TRAIN_ROOT="my 'data'/$HOME")
    script = words[words.index("--") :]
    assert script[script.index("--train-root") + 1] == "my 'data'/$HOME" and words[-2:] == ["--lr", "a b"]
    assert words[1:4] == ["2", "--batch-size", "16"]
    values = [script[script.index(name) + 1] for name in ("--batch-size", "--epochs", "--img-size")]
    assert values == ["{batch_size}", "5", "512"]
    assert [script.count(name) for name in ("--batch-size", "--epochs", "--img-size", "--ddp")] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("guide", "typed", "environment", "complaint", "fix"),
    [
        (RETRIEVER, "run_ddp.sh x", {}, "NPROC is `x`, not a whole number", "run_ddp.sh 8 True`"),
        (RETRIEVER, "run_ddp.sh 2 yes", {}, "USE_PROJECTION is `yes`, neither True nor False", "run_ddp.sh 8 True`"),
        (RETRIEVER, "run_ddp.sh True 8", {}, "`8` is behind USE_PROJECTION", "run_ddp.sh 8 True`"),
        ("underwater-ir", "train_ddp.sh 4 4.5", {}, "BATCH is `4.5`", "train_ddp.sh 4 4 20 256`"),
        ("underwater-ir", "train_ddp.sh", {"NUM_WORKERS": "many"}, "NUM_WORKERS is `many`", "train_ddp.sh 4 4 20 256`"),
        ("crowd-bt", "train_distributed.sh four", {}, "N is `four`", "train_distributed.sh 4 --batch-size 16`"),
        ("uniref50", "run_train_uniref50_ddp.sh", {"NPROC": "4x"}, "NPROC is `4x`", "`NPROC=4 "),
        ("uniref50", "run_train_uniref50_ddp.sh --config", {}, "`--config` needs a value", "--config VALUE`"),
        (RETRIEVER, "run_ddp.sh 2", {"DDPLAUNCH_OPTIONS": "--env A='b"}, "a quote in DDPLAUNCH_OPTIONS", "10m'"),
    ],
)
def test_a_wrong_value_is_named_in_the_scripts_own_words(
    tmp_path: Path, guide: str, typed: str, environment: dict[str, str], complaint: str, fix: str
) -> None:
    done = Guide(guide, tmp_path).start(*shlex.split(typed), **environment)
    assert done.returncode == 2
    assert done.stdout.startswith(f"error: {complaint}"), done.stdout
    assert fix in done.stdout and "nothing was launched" in done.stdout and "ddplaunch run" not in done.stdout


@pytest.mark.parametrize(("guide", "script"), EVERY_SCRIPT)
def test_every_script_hands_options_of_ddplaunch_on(tmp_path: Path, guide: str, script: str) -> None:
    words = Guide(guide, tmp_path).words(script, DDPLAUNCH_OPTIONS="--hang-timeout 10m --env 'A=b c' --env B=$HOME;x")
    assert words[2:8] == ["--hang-timeout", "10m", "--env", "A=b c", "--env", "B=$HOME;x"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guide", "script", "layout"),
    [  # what finds ddplaunch is one file, which every script sources
        *((*each, "python3 alone") for each in EVERY_SCRIPT),
        *((*EVERY_SCRIPT[0], layout) for layout in ("an active environment", ".venv of the project")),
    ],
)
def test_every_script_works_without_python_and_ddplaunch_on_path(
    tmp_path: Path, guide: str, script: str, layout: str
) -> None:
    """Only the programs of the system are on PATH; ddplaunch is found in the environment that trains."""
    project = Guide(guide, tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "xargs", "printf"):
        (tools / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    recorder = '#!/bin/sh\n[ "$1" != -m ] || exec printf \'became: %s\\n\' "$*"\n' + f'exec {sys.executable} "$@"\n'
    place = {
        "python3 alone": tools / "python3",
        "an active environment": tmp_path / "venv" / "bin" / "python",
        ".venv of the project": project.folder / ".venv" / "bin" / "python",
    }[layout]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(recorder)
    place.chmod(0o755)
    active = {"VIRTUAL_ENV": str(tmp_path / "venv")} if layout == "an active environment" else {}
    done = project.start(script, PATH=str(tools), **active)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("became: -m ddplaunch run "), done.stdout


def test_uniref50_splits_the_launcher_options_from_the_modules(tmp_path: Path) -> None:
    words = Guide("uniref50", tmp_path).words(
        "run_train_uniref50_ddp.sh", "--nnodes", "2", "--node_rank=1", "--master_addr", "10.0.0.1", "--config=c d.yaml",
        "--wandb", "on", NPROC="4",
    )  # fmt: skip
    assert words[:8] == ["run", "4", "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1"]
    assert words[words.index("--") :][-4:] == ["--datafile", "data/processed_uniref50.pt", "--wandb", "on"]
    assert words[words.index("--config") + 1] == "c d.yaml"


def test_quantumgrav_reads_size_port_and_batch_from_yaml(tmp_path: Path) -> None:
    guide = Guide("quantumgrav", tmp_path)
    expected = ["run", "3", "--gpus", "3,4,5", "--master-port", "12355", "--batch-size", "8", "--"]
    config = "configs/train_ddp.yaml"
    for typed in (("--gpus", "3,4,5"), (config, "--gpus=3,4,5"), ("--gpus=3,4,5", config)):
        assert guide.words("train_quantumgrav.sh", *typed) == [*expected, "train_ddp_torchrun.py"]
    # What is behind the script belongs to it.
    words = guide.words("train_quantumgrav.sh", config, "--gpus", "3,4,5", "my.py", "--gpus", "mine", "x")
    assert words == [*expected, "my.py", "--gpus", "mine", "x"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("training: {batch_size: 4}", "no `parallel:` section"),
        ("parallel: {world_size: null}", "`parallel.world_size` is None, not a positive integer"),
        ("parallel: {world_size: 2, master_port: no}", "`parallel.master_port` is False"),
        ("parallel: [", "while parsing"),
        (None, "No such file"),
    ],
)
def test_quantumgrav_names_what_is_wrong_in_the_yaml(tmp_path: Path, text: str | None, complaint: str) -> None:
    guide = Guide("quantumgrav", tmp_path)
    if text is not None:
        (guide.folder / "bad one.yaml").write_text(text)
    done = guide.start("train_quantumgrav.sh", "bad one.yaml")
    assert done.returncode == 2
    assert complaint in done.stdout and "bad one.yaml" in done.stdout and "nothing was launched" in done.stdout
