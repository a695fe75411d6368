"""What becomes of a launch line: the words in its place, what was dropped and what is unknown; a rank's command."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddplaunch.planning.convert.launch_words import Word, known_word, option_of, starts_python
from ddplaunch.planning.script_numbers.handed_out import as_literal
from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class Note:
    """One thing of a line that was left out, or that its text does not tell: ``what`` as it was typed, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Translation:
    """What became of a launch line: the ``words`` in its place, from the word ``start`` on.

    No words where it cannot be said at all; ``unknown`` says why then.
    """

    launcher: str
    start: int
    words: tuple[Word, ...] = ()
    dropped: tuple[Note, ...] = ()
    unknown: tuple[Note, ...] = ()

    @property
    def source(self) -> str:
        """The shell text of the words."""
        return " ".join(word.source for word in self.words)


@dataclass(frozen=True)
class Site:
    """A launch in a script: its line from 1, its text, the bytes that change and what stands there then.

    ``aside`` is True for a line that starts nothing itself, of which there is something to say.
    """

    line: int
    text: str
    said: Translation
    start: int = 0
    end: int = 0
    replacement: bytes = b""
    aside: bool = False


def changed(data: bytes, sites: Sequence[Site]) -> bytes:
    """Return the script with every launch replaced."""
    parts, at = [], 0
    for site in sorted((each for each in sites if each.replacement), key=lambda each: each.start):
        parts += [data[at : site.start], site.replacement]
        at = site.end
    return b"".join([*parts, data[at:]])


class CannotSay(Exception):
    """A line has no equivalent, or its text does not tell which one."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.note = Note(what, why)


# What a shell inside of a task would look up: one task is one rank there, and a whole node with torchrun.
_OF_TASKS = re.compile(
    r"\$\{?(?:SLURM_(?:PROCID|LOCALID|NODEID|NTASKS|TASK_PID)|OMPI_COMM_WORLD_\w+|PMI_\w+|PMIX_RANK)\}?"
)
_ESCAPED = re.compile(rf"(?<=\\){_OF_TASKS.pattern}")


def rank_program(command: Sequence[Word], unknown: list[Note]) -> list[Word]:
    """Return what stands behind ``--`` for the program of a rank, ``python train.py``."""
    rest = [without_placeholders(word) for word in command]
    for word in rest:
        named = _OF_TASKS.search(word.text or "") or (word.text is None and _ESCAPED.search(word.source))
        if named:
            raise CannotSay(
                f"`{named[0]}`", "torchrun sets no such variable: write `$RANK` or `$LOCAL_RANK` there first"
            )
    if not rest or not starts_python(rest[0]):
        direct = bool(rest) and (rest[0].text or "").endswith(".py")
        return [*([known_word("env")] if direct else []), *rest]
    arguments = rest[1:]
    while arguments and arguments[0].text == "-u":  # torchrun's ranks get it
        del arguments[0]
    if not arguments or rest[0].text not in ("python", "python3"):
        return rest
    if (arguments[0].text or "").startswith("-"):
        return arguments if arguments[0].text == "-m" else rest
    if arguments[0].value is None:
        unknown.append(unsure(arguments[0]))
        return arguments
    return arguments if arguments[0].value.endswith(".py") else rest


_CONTAINERS = ("docker", "podman", "singularity", "apptainer", "enroot", "kubectl")


def of_container(container_words: Sequence[Word]) -> list[Note]:
    """Return the notes on a launch after ``container_words``, where these start or enter a container."""
    inside = any(word.name in _CONTAINERS or option_of(word)[0].startswith("--container-") for word in container_words)
    why = "it runs in a container, whose image or environment may not have it: `pip install ddplaunch` there"
    return [Note("whether ddplaunch is installed", why)] if inside else []


def unsure(word: Word) -> Note:
    """Return what is not known of a script that stands in a variable."""
    why = "a script whose name does not end in .py needs `python` before it; options go before `--`"
    return Note(f"what `{word.source}` holds", why)


def without_placeholders(word: Word) -> Word:
    """Return an argument so that ddplaunch finds no placeholder in it."""
    source = as_literal(word.source)
    return word if source == word.source else Word(source, None if word.text is None else as_literal(word.text))
