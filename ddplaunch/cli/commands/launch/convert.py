"""``ddplaunch convert``: says a launch line of another launcher, or those of a script, as commands of ddplaunch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ddplaunch.cli.parsing.command import Command
from ddplaunch.cli.streams import answer, tell, tell_findings
from ddplaunch.machine.files import read_plain
from ddplaunch.planning.convert.launch_words import Word, known_words
from ddplaunch.planning.convert.launcher_line import translate
from ddplaunch.planning.convert.launcher_options import PORT
from ddplaunch.planning.convert.translation import Site, Translation, changed
from ddplaunch.planning.flag import Flag
from ddplaunch.ui.shell import diff_text, line_text, not_converted, notes_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, UsageError, usage

COMMAND = Command(
    examples=(
        ("ddplaunch convert -- torchrun --nproc_per_node=4 train.py", "the command that starts the same ranks"),
        ("ddplaunch convert train.sh", "what changes in a script, as a diff; `| patch -p0` changes it"),
    ),
    options=(Flag("files", "arguments", "", "Shell and sbatch scripts; - for stdin.", "FILE"),),
)

_LARGEST = 64 << 20  # of a script, in bytes


def convert(line: list[str] | None, files: list[str]) -> int:
    """Print the translation of the ``line`` after ``--``, or of the launch lines in ``files``.

    Raises UsageError without either, and with both.
    """
    if bool(line) == bool(files):
        raise usage(
            "there is nothing to convert" if not files else "a file and a line after `--`",
            why="`convert` reads scripts, or one launch line after `--`",
            fix="`ddplaunch convert train.sh`, or `ddplaunch convert -- torchrun --nproc_per_node=4 train.py`",
        )
    if line:
        return _line(known_words(line))
    return max(map(_file, files))


def _line(words: list[Word]) -> ExitStatus:
    translation = translate(words, {PORT: words[0]} if PORT in os.environ else None)
    if translation is None:
        raise _no_launcher("that line")
    if translation.words:
        answer(line_text(words, translation))
    return tell_notes(translation, " ".join(word.source for word in words), "")


def _no_launcher(place: str) -> UsageError:
    return usage(
        f"there is no launcher in {place}",
        why="ddplaunch knows torchrun, accelerate, deepspeed, and srun with tasks per node",
        fix="`ddplaunch run 4 -- …` launches any training script",
        code="launcher-missing",
    )


def tell_notes(translation: Translation, line: str, place: str) -> ExitStatus:
    """Print what was dropped and what is unknown; return the exit status that follows."""
    if not translation.words:
        tell_findings([not_converted(translation, line, place)])
        return ExitStatus.FINDINGS
    if translation.dropped or translation.unknown:
        tell(notes_text(translation, Terminal.of(sys.stderr), f"{place}: " if place else ""))
    return ExitStatus.DONE


def _file(name: str) -> ExitStatus:
    """Convert one script."""
    from ddplaunch.planning.convert.shell_script import sites_of  # a parser of bash, not needed for one line

    data = _read(name)
    name = "stdin" if name == "-" else name
    if name.endswith(".py"):
        raise _no_script(name, "is a program of Python")
    sites = sites_of(data)
    if not any(site.text for site in sites):  # notes on the script as a whole, at most
        _tell_asides(name, sites)
        raise _no_launcher(f"`{name}`")
    new = changed(data, sites)
    status = ExitStatus.DONE
    if new != data:
        answer(diff_text(name, data, new))
    for site in sites:
        if site.aside:
            _tell_asides(name, [site])
        else:
            status = max(status, tell_notes(site.said, site.text, f"{name}:{site.line}"))
    return status


def _tell_asides(name: str, sites: Sequence[Site]) -> None:
    for site in sites:
        tell(notes_text(site.said, Terminal.of(sys.stderr), f"{name}:{site.line}: "))


def _read(name: str) -> bytes:
    """Return the bytes of a script; ``-`` is stdin. Raises UsageError where it cannot be read or is not text."""
    try:
        if name == "-":
            with open(0, "rb", closefd=False) as stream:
                data = stream.read()
        else:
            data = read_plain(name, _LARGEST)
    except OSError as problem:
        raise _no_script(name, f"cannot be read: {problem.strerror}") from problem
    if b"\0" in data:
        raise _no_script("stdin" if name == "-" else name, "is not text")
    return data


def _no_script(name: str, problem: str) -> UsageError:
    return usage(
        f"`{name}` {problem}",
        why="`convert` reads shell scripts and sbatch scripts",
        fix="`ddplaunch convert train.sh`, or a launch line after `--`",
        code="file-not-readable",
    )
