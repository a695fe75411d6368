"""The translation of a launch line: the new words, what was dropped and what is unknown; and a rank's command."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddplaunch.planning.convert.launch_words import Word, known_word, starts_python
from ddplaunch.planning.script_numbers.handed_out import as_literal
from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class Note:
    """A part of a line that was left out, or a fact that its text does not tell: ``what``, and ``why``."""

    what: str
    why: str


@dataclass(frozen=True)
class Translation:
    """The translation of a launch line: the ``words`` that replace it from word ``start`` on.

    ``words`` is empty if the line cannot be translated; ``unknown`` then says why.
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
    """A launch in a script: its line (from 1), its text, the range of bytes to replace, and their replacement.

    ``aside`` is True for a line that launches nothing itself but needs a note.
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
    """Raised if a line has no equivalent, or its text does not tell which one."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.note = Note(what, why)


# Variables that a shell inside of a task would expand: a task is one rank in the script, but a node with torchrun.
_OF_TASKS = re.compile(
    r"\$\{?(?:SLURM_(?:PROCID|LOCALID|NODEID|NTASKS|TASK_PID)|OMPI_COMM_WORLD_\w+|PMI_\w+|PMIX_RANK)\}?"
)
_ESCAPED = re.compile(rf"(?<=\\){_OF_TASKS.pattern}")


def rank_program(command: Sequence[Word], unknown: list[Note]) -> list[Word]:
    """Return the words after ``--`` for a rank's command such as ``python train.py``; add notes to ``unknown``.

    Raises CannotSay.
    """
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
    while arguments and arguments[0].text == "-u":  # torchrun adds it itself
        del arguments[0]
    if not arguments or rest[0].text not in ("python", "python3"):
        return rest
    if (arguments[0].text or "").startswith("-"):
        return arguments if arguments[0].text == "-m" else rest
    if arguments[0].value is None:
        unknown.append(unsure(arguments[0]))
        return arguments
    return arguments if arguments[0].value.endswith(".py") else rest


def unsure(word: Word) -> Note:
    """Return the note on a script whose name is in a variable."""
    why = "a script whose name does not end in .py needs `python` before it; options go before `--`"
    return Note(f"what `{word.source}` holds", why)


def without_placeholders(word: Word) -> Word:
    """Return an argument with its placeholders escaped, so that ddplaunch leaves them as they are."""
    source = as_literal(word.source)
    return word if source == word.source else Word(source, None if word.text is None else as_literal(word.text))
