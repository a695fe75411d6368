"""``ddplaunch convert``: says a launch line of another launcher, or those of a script, as commands of ddplaunch."""

from __future__ import annotations

import sys

from ddplaunch.cli.streams import answer, answer_json, tell, tell_findings
from ddplaunch.launch.convert.launch_words import plain
from ddplaunch.launch.convert.launcher_line import translate
from ddplaunch.launch.convert.translation import Translation
from ddplaunch.ui.shell import line_json, line_text, not_converted, notes_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, usage


def convert(line: list[str] | None, files: list[str], write: bool | None, json: bool | None) -> int:
    """Print the translation of the ``line`` behind ``--``, or of the launch lines of ``files``."""
    if line is None and not files:
        raise usage(
            "there is nothing to convert",
            why="`convert` reads a script, or a launch line behind `--`",
            fix="`ddplaunch convert train.sh`, or `ddplaunch convert -- torchrun --nproc_per_node=4 train.py`",
        )
    return _line(line or [], bool(json))


def _line(line: list[str], json: bool) -> int:
    words = plain(line)
    said = translate(words)
    if said is None:
        raise usage(
            "there is no launcher in that line",
            why="ddplaunch knows torchrun, accelerate, deepspeed, horovodrun, mpirun, and srun with tasks per node",
            fix="`ddplaunch run 4 -- …` launches any training script",
            code="launcher-missing",
        )
    if json:
        answer_json(line_json(words, said))
    elif said.words:
        answer(line_text(words, said))
    return tell_notes(said, " ".join(word.source for word in words), "")


def tell_notes(said: Translation, line: str, where: str) -> ExitStatus:
    """Tell what was dropped and what is not known; return the exit status that follows."""
    if not said.words:
        tell_findings([not_converted(said, line, where)])
        return ExitStatus.FINDINGS
    tell(notes_text(said, Terminal.of(sys.stderr)))
    return ExitStatus.DONE
