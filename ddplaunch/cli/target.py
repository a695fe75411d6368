"""What stands behind ``--``: a script, ``-m module`` or an executable; refuses to look inside it."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from ddplaunch.errors import UsageError, usage
from ddplaunch.launch.plan import Target


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split at the first ``--``: what is ours, and what belongs to the script (None without ``--``)."""
    if "--" not in argv:
        return list(argv), None
    at = list(argv).index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def parse_target(words: Sequence[str]) -> Target:
    """Return what every rank runs. Raises UsageError if it is missing, a directory or nowhere to be found."""
    if not words or words[0] == "":
        raise usage(
            "nothing stands behind `--`",
            why="the script and its arguments go there",
            fix="`ddplaunch run 4 -- train.py --epochs 20`",
            code="script-missing",
        )
    if words[0] == "-m":
        if len(words) < 2 or not words[1].replace(".", "_").isidentifier():
            name = words[1] if len(words) > 1 else ""
            raise usage(f"`-m {name}` names no module", why="a module is `package.name`", fix="`-- -m package.train`")
        return Target("module", words[1], tuple(words[2:]))
    name, args = words[0], tuple(words[1:])
    path = Path(name)
    if path.is_dir():
        raise _not_runnable(name, "is a directory", f"name the file, as in `-- {shlex.quote(str(path / 'train.py'))}`")
    if name.endswith(".py"):
        if not path.exists():
            raise _missing(path)
        if not os.access(path, os.R_OK):
            raise _not_runnable(name, "cannot be read", f"`chmod +r {shlex.quote(name)}`")
        return Target("script", name, args)
    found = shutil.which(name)
    if found is not None:
        return Target("executable", found, args)
    if path.exists():
        raise _not_runnable(name, "is not executable", f"`chmod +x {shlex.quote(name)}`, or give it the name `….py`")
    raise _missing(path)


def required(script: list[str] | None) -> list[str]:
    """Return the words behind ``--``. Raises UsageError where there is no ``--`` at all."""
    if script is None:
        raise usage(
            "no script was named",
            why="the script and its arguments go behind `--`",
            fix="`ddplaunch run 4 -- train.py --epochs 20`",
            code="script-missing",
        )
    return script


def misplaced_script(argv: Sequence[str]) -> UsageError | None:
    """Return the error for a command without ``--`` that seems to name a script, with the corrected command."""
    for position, word in enumerate(argv):
        if position > 0 and (word.endswith(".py") or word == "-m" or (position > 1 and _is_program(argv, position))):
            corrected = [*argv[:position], "--", *argv[position:]]
            return usage(
                f"`{word}` stands where ddplaunch's own options go",
                why="the script and everything that belongs to it goes behind `--`",
                fix=f"`{shlex.join(['ddplaunch', *corrected])}`",
                code="separator-missing",
            )
    return None


def _is_program(argv: Sequence[str], position: int) -> bool:
    """A word that is no option, no option's value and a program: ``run 4 ./train``."""
    word, before = argv[position], argv[position - 1]
    return not word.startswith("-") and not before.startswith("-") and shutil.which(word) is not None


def _not_runnable(name: str, problem: str, fix: str) -> UsageError:
    return usage(
        f"`{name}` {problem}", why="every rank runs what stands behind `--`", fix=fix, code="script-not-runnable"
    )


def _missing(path: Path) -> UsageError:
    parent = path.parent
    names = [item.name for item in parent.iterdir()] if parent.is_dir() and os.access(parent, os.R_OK) else []
    near = difflib.get_close_matches(path.name, names, n=1)
    fix = f"did you mean `{shlex.quote(str(parent / near[0]))}`?" if near else "correct the path, or `cd` to it first"
    where = f"looked in {parent.resolve()}" if parent.is_dir() else f"there is no directory {parent}"
    return usage(f"`{path}` does not exist", why=where, fix=fix, code="script-not-found")
