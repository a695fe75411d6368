"""Failures with the right answer to each: logs, and scripts to launch. README.md beside this file has the form."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ANY = -1  # all ranks fail alike, or which one failed first is not decidable
MEET = "r, w = init()\nreduce()\n"
LAUNCHES = "launches"
with tarfile.open(Path(__file__).with_name("faults.tar.xz")) as _archive:
    _TEXTS = {
        member.name.removesuffix(".txt"): _archive.extractfile(member).read().decode()  # type: ignore[union-attr]
        for member in _archive
    }
#: What the files hold, by their names; all but LAUNCHES are logs.
FILES = tuple(_TEXTS)

_HEAD = re.compile(r"^=== (\S+); ?(.*)$", re.MULTILINE)
_SETTING = re.compile(r"^#(timeout|options|args|file|raw|all) ?(.*)\n", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """A ``log`` for ``explain``, or a script for two ranks after ``tests.faults.catalogue.INIT``, and the right answer.

    ``codes`` are the right ones, best first, "none" for a healthy one; ``rank`` the guilty one, or ANY; ``status`` the
    exit status, or ANY; ``helps`` the words that somebody needs to mend it; ``files`` lie beside the script;
    ``options`` come before ``--``, ``args`` after the script.
    """

    name: str
    codes: tuple[str, ...]
    rank: int
    status: int
    helps: tuple[str, ...]
    log: str = ""
    body: str = ""
    files: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    timeout_s: int = 60

    @property
    def author(self) -> str:
        """Who wrote it: the part of the name before the slash."""
        return self.name.partition("/")[0]


@cache
def faults_of(file: str) -> tuple[Fault, ...]:
    """Return the faults of one of FILES."""
    _, *parts = _HEAD.split(_TEXTS[file])
    parse = _launch if file == LAUNCHES else _log
    return tuple(parse(*parts[at : at + 3]) for at in range(0, len(parts), 3))


def logs(*authors: str) -> Iterator[Fault]:
    """Yield all faults that are logs, or those of these authors."""
    for file in FILES:
        if file != LAUNCHES:
            yield from (fault for fault in faults_of(file) if not authors or fault.author in authors)


def _log(name: str, head: str, text: str) -> Fault:
    codes, rank, words = (part.strip() for part in head.split(";", 2))
    return Fault(name, tuple(codes.split("|")), _number(rank), ANY, _words(words), text.removeprefix("\n"))


def _launch(name: str, head: str, text: str) -> Fault:
    codes, rank, status, words = (part.strip() for part in head.split(";", 3))
    settings = _SETTING.findall(text)
    files = dict(value.split(" ", 1) for setting, value in settings if setting == "file")
    values = {setting: value for setting, value in settings if setting != "file"}
    body = _SETTING.sub("", text).removeprefix("\n")
    if "raw" not in values:
        body = MEET + body if "all" in values else f"{body}{MEET}if r == 1:\n    fail()\nreduce()\n"
    return Fault(
        name,
        tuple(codes.split("|")),
        _number(rank),
        _number(status),
        _words(words),
        body=body,
        files={path: json.loads(content) for path, content in files.items()},
        options=tuple(shlex.split(values.get("options", ""))),
        args=tuple(shlex.split(values.get("args", ""))),
        timeout_s=int(values.get("timeout", "60")),
    )


def _number(text: str) -> int:
    return ANY if text in {"*", "-"} else int(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split("&&"))))
