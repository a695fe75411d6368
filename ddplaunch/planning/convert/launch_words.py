"""Words of a launch line: each with its shell text, and with its value if that is known."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from ddplaunch.planning.convert.launcher_options import MODULES, PROGRAMS
from ddplaunch.planning.wrapped import PYTHON
from ddplaunch.planning.wrapped import WRAPPERS as LOCAL_WRAPPERS
from ddplaunch.values.frozen import dataclass

_VARIABLE = re.compile(r'"?\$\{?(\w+)\}?"?\Z')
#: Programs and words of a shell that run the command after them.
WRAPPERS = LOCAL_WRAPPERS.union(
    """
    exec command sudo xargs parallel eval singularity apptainer docker podman enroot kubectl ssh pdsh
    srun mpirun mpiexec horovodrun bash sh zsh dash
    """.split()  # noqa: SIM905
)


class Word(NamedTuple):
    """One word: ``source`` is its shell text, ``text`` its value in a shell, None if that is not known.

    For a variable that its script sets once, ``constant`` is the value if it is one word, ``parts`` are the words if it
    is several. ``span`` is the position of the word in bytes.
    """

    source: str
    text: str | None = None
    constant: str | None = None
    parts: tuple[Word, ...] = ()
    span: tuple[int, int] | None = None

    @property
    def value(self) -> str | None:
        """The word's value, literal or through a variable; None if it is not known."""
        return self.constant if self.text is None else self.text

    @property
    def name(self) -> str:
        """The last part of a path, or NAME of ``$(which NAME)``; empty if it is not known."""
        if self.text is not None:
            return self.text.rpartition("/")[2]
        bare = self.source.strip('"`').removeprefix("$(").removesuffix(")").split()
        looked_up = bare[:1] == ["which"] or bare[:2] == ["command", "-v"]
        return bare[-1] if looked_up and len(bare) > 1 else ""

    def number(self) -> int | None:
        """Return the word as a number, None if it is not a known number."""
        return int(self.text) if self.text and self.text.isascii() and self.text.isdecimal() else None


def known_word(text: str) -> Word:
    """Return the word whose value is ``text``."""
    return Word(shlex.quote(text), text)


def known_words(line: Sequence[str]) -> list[Word]:
    """Return the words of a line that a shell has already split."""
    return [known_word(word) for word in line]


def attached(prefix: str, word: Word) -> Word:
    """Return ``prefix`` and the word as one word."""
    return Word(prefix + word.source, None if word.text is None else prefix + word.text)


def option_of(word: Word) -> tuple[str, Word | None]:
    """Return an option's name and the value after its ``=``, if any; the name is empty if the word is not an option."""
    text = word.text if word.text is not None else word.source.lstrip("\"'")
    if not text.startswith("-") or text == "-":
        return "", None
    name, equals, rest = text.partition("=")
    if not equals:
        return ("", None) if word.text is None else (name, None)
    if word.source.startswith(f"{name}="):
        return name, Word(word.source[len(name) + 1 :], None if word.text is None else rest)
    if word.text is not None:
        return name, known_word(rest)
    quoted = word.source[:1] == '"' and word.source[-1:] == '"'
    return (name, Word(f'"{rest}')) if quoted else ("", None)


_PORT = re.compile(r"\d+\Z|\$\w+\Z|\$\{\w+\}\Z")


def address_and_port(word: Word, port: str) -> tuple[Word, Word] | None:
    """Return address and port of ``HOST:PORT``, by default ``port``; None if they cannot be told apart."""
    if word.text is not None:
        host, colon, own_port = word.text.rpartition(":") if ":" in word.text else (word.text, "", port)
        return known_word(host.strip("[]")), known_word(own_port or port)
    bare = word.source.strip('"')
    host, colon, own_port = bare.rpartition(":")
    if colon and not (host and _PORT.match(own_port)):
        return None
    address = (Word(f'"{host}"') if "$" in host else known_word(host)) if colon else Word(word.source)
    return address, Word(own_port, own_port if own_port.isdecimal() else None) if colon else known_word(port)


def divided(total: Word, parts: Word) -> Word | None:
    """Return ``total`` divided by ``parts``, for variables as shell arithmetic; None if that is not possible."""
    whole, by = total.number(), parts.number()
    if by == 1:
        return total
    if whole is not None and by is not None:
        return known_word(str(whole // by)) if by and whole % by == 0 else None
    sides = [in_arithmetic(word) for word in (total, parts)]
    return None if None in sides else Word(f"$(({sides[0]} / {sides[1]}))")


def in_arithmetic(word: Word) -> str | None:
    """Return a number or a variable as it is written inside ``$((…))``, None for any other word."""
    match = _VARIABLE.match(word.source)
    if match is None and word.number() is None:
        return None
    return match[1] if match and not match[1][0].isdecimal() else word.source.strip('"')


def starts_python(word: Word) -> bool:
    """Return whether the word starts Python, judging by its name or that of its variable."""
    if word.text is not None:
        return PYTHON.match(word.text) is not None
    match = _VARIABLE.match(word.source)
    return word.name.startswith("python") or (match is not None and "PYTHON" in match[1].upper())


@dataclass(frozen=True)
class LauncherPlace:
    """The position of a launcher in a line: it begins at word ``start``, its options begin at word ``options``.

    ``python`` is the interpreter that runs it, None unless the line names a particular one.
    """

    launcher: str
    start: int
    options: int
    python: Word | None = None


def find_launcher(words: Sequence[Word]) -> LauncherPlace | None:
    """Return the innermost launcher of a line: torchrun in ``srun torchrun train.py``, srun in ``srun python``.

    A variable before it, as in ``$WRAPPER torchrun``, is skipped: it may hold any program that runs the rest.
    """
    in_front = (assigns(word) or (variable_of(word.source) and not starts_python(word)) for word in words)
    first = next((i for i, skipped in enumerate(in_front) if not skipped), len(words))
    place = _launcher_at(words, first)
    if first < len(words) and (place is None or place.launcher in ("srun", "mpirun")):
        if place is None and words[first].name not in WRAPPERS:
            return None
        inner = (at for i in range(first + 1, len(words)) if (at := _launcher_at(words, i)) is not None)
        place = next(inner, place)
    return place


def missing_launcher(line: Sequence[str]) -> str | None:
    """Return the program of a launcher's line, which is refused whether it is installed or not; None for others."""
    return None if find_launcher(known_words(line)) is None else line[0]


def assigns(word: Word) -> bool:
    """Return whether the word sets a variable, ``NAME=value``."""
    name, equals, _ = word.source.partition("=")
    return bool(equals) and name.isidentifier()


def _launcher_at(words: Sequence[Word], i: int) -> LauncherPlace | None:
    if i >= len(words):
        return None
    name = words[i].name
    following = words[i + 1].text if i + 1 < len(words) else None
    if (name, following) in (("accelerate", "launch"), ("torchx", "run")):
        return LauncherPlace(name, i, i + 2)
    if name in PROGRAMS:
        return LauncherPlace(PROGRAMS[name], i, i + 1)
    if not starts_python(words[i]):
        return None
    for at in range(i + 1, len(words) - 1):
        text = words[at].text or ""
        if text == "-m":
            launcher = MODULES.get(words[at + 1].text or "")
            bare = words[i].text in ("python", "python3", "python2")
            return LauncherPlace(launcher, i, at + 2, None if bare else words[i]) if launcher else None
        if not text.startswith("-"):
            return _launcher_at(words, at) if at == i + 1 and words[at].name in PROGRAMS else None
    return None


def variable_of(source: str) -> str:
    """Return the variable's name if the word is one, as ``"$X"``, ``${X}`` and ``"${X[@]}"`` are; else ""."""
    bare = source.strip('"')
    if not bare.startswith("$"):
        return ""
    name = bare[1:].removeprefix("{").removesuffix("}").removesuffix("[@]").removesuffix("[*]")
    return name if name.isidentifier() and not option_of(Word(source))[0] else ""
