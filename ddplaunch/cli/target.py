"""The words after ``--``: a script, ``-m module`` or an executable, and its arguments."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ddplaunch.cli.parsing.command import COMMANDS, LAUNCHING, options_of, spellings
from ddplaunch.cli.parsing.typed_words import parse_quickly
from ddplaunch.planning.launch import Target
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.words import nearest

#: What web pages and word processors make of ``--``, which is read as one.
_DASHES = re.compile("^-?[\u2010-\u2015\u2212][-\u2010-\u2015\u2212]*")


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split at the first ``--`` into ddplaunch's words and the script's (None without ``--``).

    A launch line right after ``convert`` is not split: its options are another launcher's.
    """
    if argv[:1] == ["convert"] and _is_launch_line(argv[1:]):
        return ["convert"], list(argv[1:])
    plain = [_DASHES.sub("--", word) for word in argv]
    at = plain.index("--") if "--" in plain else None
    return plain[:at], None if at is None else list(argv[at + 1 :])


def _is_launch_line(words: Sequence[str]) -> bool:
    from ddplaunch.planning.convert.launcher_options import named_in  # only for `convert`

    may_be_one = len(words) > 1 and not words[0].startswith("-") and not _exists(words[0])
    return may_be_one and named_in(os.fsencode(" ".join(words)))


def parse_target(words: Sequence[str]) -> Target:
    """Return what every rank runs. Raises UsageError if it is missing, a directory, or not found."""
    words = required(words)
    if words[0] == "-m":
        return _module(words)
    name, args = words[0], tuple(words[1:])
    path = Path(name)
    is_folder_to_run = _exists(f"{name}/__main__.py")
    if os.path.isdir(name) and not is_folder_to_run:  # noqa: PTH112 - Path.is_dir() raises for a name that is too long
        raise _not_runnable(name, "is a directory", f"name the file, as in `-- {shlex.quote(str(path / 'train.py'))}`")
    if is_folder_to_run or name.endswith((".py", ".pyz")):
        if not _exists(name):
            raise _missing(path)
        if not os.access(path, os.R_OK):
            raise _not_runnable(name, "cannot be read", f"`chmod +r {shlex.quote(name)}`")
        return Target("script", f"./{name}" if name.startswith("-") else name, args)  # Python would read an option
    program = _which(name)
    if program is None:
        from ddplaunch.planning.convert.launch_words import missing_launcher

        program = missing_launcher(words)
    if program is not None:
        from ddplaunch.planning.wrapped import looked_through  # not needed for scripts

        return looked_through((program, *args), _exists)
    if _exists(name):
        runs = "bash" if name.endswith(".sh") else "python"
        raise _not_runnable(
            name,
            "is not executable",
            f"`chmod +x {shlex.quote(name)}`, or name what runs it: `-- {runs} {shlex.quote(name)}`",
        )
    raise _missing(path)


def _module(words: Sequence[str]) -> Target:
    name = "".join(words[1:2])
    whole = name.lstrip(".")
    if not name.replace(".", "0").isidentifier():  # a dot in front is refused: such names are for import statements
        raise usage(
            f"`-m {name}` names no module",
            why="a module is `package.name`",
            fix=f"`-- -m {whole}`; in a package, `-- -m package.{whole}` from the folder that holds it"
            if whole.isidentifier()
            else "`-- -m package.train`",
        )
    return Target("module", name, tuple(words[2:]))


def required(script: Sequence[str] | None) -> Sequence[str]:
    """Return the words after ``--``. Raises UsageError where there are none."""
    if not script or not script[0]:
        raise usage(
            "no script was named",
            why="the script and its arguments go after `--`",
            fix="`ddplaunch run -- train.py`",
            code="script-missing",
        )
    return script


def corrected_line(words: Sequence[str], script: Sequence[str] | None) -> str:
    """Return a command line to type, in backticks, with the ``--`` that a launch lacks; none with more mistakes."""
    problem = misplaced_script(words, script) if words[0] in LAUNCHING else None
    if problem:
        return problem.findings[0].fix
    line = words if script is None else [*words, "--", *script]
    understood = words[0] in COMMANDS and parse_quickly(words[0], [*words[1:]])
    return f"`{shlex.join(['ddplaunch', *line])}`" if understood else ""


def misplaced_script(argv: Sequence[str], script: Sequence[str] | None = None) -> UsageError | None:
    """Return the error for a script before ``--`` or without it, and for options of ddplaunch after it, with the
    corrected command.

    ``script`` are the words after ``--``. A word after an option that takes a value is that value, not a script. The
    search ends at an unknown option, which is reported first.
    """
    at = next((at for at, word in enumerate(script or ()) if word.endswith(".py")), 0)
    if script and at and script[0].startswith("--"):
        return usage(
            f"`{script[0]}` after `--` is not a script",
            why="options of ddplaunch go before `--`, the script and its options after it",
            fix=f"`{shlex.join(['ddplaunch', *argv, *script[:at], '--', *script[at:]])}`",
            code="script-not-found",
        )
    spelled = spellings(options_of(argv[0]))
    # The first argument of submit is no script, and one before `--` rather a number that is misspelt.
    position, arguments = 1, int(script is None and argv[0] != "submit")
    while position < len(argv):
        word = argv[position]
        is_option = word.startswith("-")
        if word == "-m" or (not is_option and _names_script(word, arguments)):
            # every rank would start what torchrun itself is: all ranks
            corrected = [*argv[:position], "--", *argv[position + (word == "torchrun") :], *(script or ())]
            return usage(
                f"there is no `--` before `{word}`",
                why="everything after `--` is the script and its arguments, everything before it options of ddplaunch",
                fix=f"`{shlex.join(['ddplaunch', *corrected])}`",
                code="separator-missing",
            )
        name, equals, _ = word.replace("_", "-").partition("=")
        if is_option and name not in spelled:
            return None
        arguments += not is_option
        takes_value = name in spelled and spelled[name][1] is None
        position += 2 if takes_value and not equals else 1
    return None


def _names_script(word: str, arguments: int) -> bool:
    """Whether ``word`` is a script: a .py file, or a program with a slash or after the first word, often NPROC."""
    return word.endswith(".py") or ((arguments > 0 or "/" in word) and _which(word) is not None)


def _which(name: str) -> str | None:
    """Return the program of that name: on PATH, else the file itself, which a shell runs only as ``./NAME``."""
    import shutil  # only without .py: with bz2 and lzma this import takes 1.5 ms

    return shutil.which(name) or (None if "/" in name else shutil.which(f"./{name}"))


def _not_runnable(name: str, problem: str, fix: str) -> UsageError:
    return usage(f"`{name}` {problem}", why="it is what every rank would run", fix=fix, code="script-not-runnable")


def _missing(path: Path) -> UsageError:
    parent = path.parent
    has_directory = os.path.isdir(parent)  # noqa: PTH112
    names = os.listdir(parent) if has_directory and os.access(parent, os.R_OK | os.X_OK) else []  # noqa: PTH208
    near = nearest(path.name, names, cutoff=0.75)  # the ending alone makes any two scripts similar
    fix = f"did you mean `{shlex.quote(str(parent / near))}`?" if near else "correct the path, or `cd` to it first"
    if any(map(_exists, str(path).split())):
        fix = f"leave out the quotes: `{path}`"
    place = f"looked in {os.path.realpath(parent)}" if has_directory else f"there is no directory {parent}"
    return usage(f"`{path}` does not exist", why=place, fix=fix, code="script-not-found")


def _exists(name: str) -> bool:
    return os.path.exists(name)  # noqa: PTH110 - Path.exists() raises for a name that is too long
