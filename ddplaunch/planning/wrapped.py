"""Programs after ``--`` that run a Python script: interpreters, and wrappers such as ``uv run`` and ``numactl``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

from ddplaunch.planning.launch import Target

#: Programs that run the command after their options on this machine, in its file system.
WRAPPERS = frozenset(
    """
    nohup env time nice ionice stdbuf numactl taskset timeout setsid unbuffer strace
    uv poetry pipenv pdm rye hatch pixi conda mamba micromamba
    nsys ncu py-spy viztracer coverage
    """.split()  # noqa: SIM905
)
PYTHON = re.compile(r"(?:.*/)?python(?:[23](?:\.\d+)?)?\Z")


def looked_through(words: tuple[str, ...], is_file: Callable[[str], bool]) -> Target:
    """Return the script or module that a program starts, with the words before it; else the program itself.

    The first word that names a Python file is the script: no wrapper has one among its own options.
    """
    in_python = False
    known = PurePath(words[0]).name in WRAPPERS or PYTHON.match(words[0]) is not None
    for at, word in enumerate(words if known else ()):
        if word.endswith(".py") and is_file(word):
            return Target("script", word, words[at + 1 :], words[:at])
        if in_python and word == "-m" and words[at + 1 :]:
            return Target("module", words[at + 1], words[at + 2 :], words[:at])
        if in_python and word in ("-c", "-"):
            break
        in_python |= PYTHON.match(word) is not None
    return Target("executable", words[0], words[1:])
