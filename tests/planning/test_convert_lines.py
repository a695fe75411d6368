"""A line of another launcher becomes the command of ddplaunch that starts the same ranks."""

from __future__ import annotations

import shlex
import sysconfig
from pathlib import Path

import pytest

from ddplaunch.machine.software import torchrun_flags
from ddplaunch.planning.convert.launch_words import Word, known_word, known_words
from ddplaunch.planning.convert.launcher_line import translate
from ddplaunch.planning.convert.launcher_options import LAUNCHERS
from ddplaunch.planning.convert.translation import Translation
from tests.golden import sections


def said(line: str) -> Translation:
    found = translate(known_words(shlex.split(line)))
    assert found is not None, line
    return found


@pytest.mark.parametrize(("line", "command"), sections(Path(__file__).with_name("convert_lines.txt")))
def test_a_line(line: str, command: str) -> None:
    """In ``convert_lines.txt`` the command stands below each line, or behind ``?`` what cannot be said."""
    found = said(line)
    assert found.words or found.unknown[0].why
    assert (found.source if found.words else f"? {found.unknown[0].what}") == command.rstrip("\n")


@pytest.mark.parametrize(
    "line", ["python train.py", "echo torchrun t.py", "pip install deepspeed", "srun hostname", "accelerate config", ""]
)
def test_no_launch(line: str) -> None:
    assert translate(known_words(shlex.split(line))) is None


def test_what_is_dropped_and_what_nobody_knows_has_a_reason() -> None:
    found = said("torchrun --nproc_per_node 2 --rdzv_backend c10d --rdzv_id=5 --standalone --node_rank 0 t.py")
    assert [note.what for note in found.dropped] == ["`--rdzv-backend c10d`", "`--rdzv-id 5`", "`--node-rank 0`"]
    assert all(note.why for note in found.dropped)
    (note,) = said("accelerate launch t.py").unknown
    assert note.what == "how many processes accelerate starts" and "default_config.yaml" in note.why
    assert said("accelerate launch --num_processes 2 t.py").unknown == ()


def test_a_variable_stays_one() -> None:
    torchrun = [known_word("torchrun"), Word("--nproc_per_node=$N"), known_word("--nnodes"), Word('"$M"')]
    found = translate(
        [*torchrun, Word('--master_addr="$A"'), known_word("--node_rank=0"), known_word("t.py"), Word('"$@"')]
    )
    assert found is not None
    assert found.source == 'ddplaunch run $N --nnodes "$M" --node-rank 0 --master-addr "$A" -- t.py "$@"'


def test_every_option_of_the_installed_torchrun_is_known() -> None:
    source = Path(sysconfig.get_path("purelib"), "torch/distributed/run.py").read_text()
    flags = torchrun_flags(source)
    assert len(flags) > 20 and flags - {"--help"} <= LAUNCHERS["torchrun"].keys()
