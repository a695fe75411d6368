"""Command lines and environments as shell text to paste: a launch (`--dry-run`), a line of `convert`."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ddplaunch.planning.launch import Launch
from ddplaunch.ui.launch_view import device_text, nodes_text, target_text
from ddplaunch.ui.terminal import Terminal, cut, visible
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.secrets import in_words, is_secret

if TYPE_CHECKING:
    from ddplaunch.planning.convert.launch_words import Word
    from ddplaunch.planning.convert.translation import Translation


def quote(word: str) -> str:
    """Return ``word`` as one word of shell text, whatever bytes it contains.

    ``shlex.quote`` suffices in most cases, also for newlines. Bytes that are not text, and control characters that
    would affect a terminal, need ``$'\\xff'`` (bash, zsh, ksh, busybox; POSIX.1-2024).
    """
    lines = word.replace("\n", "")
    if not lines or lines.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_ansi_c(byte) for byte in os.fsencode(word)) + "'"


def _ansi_c(byte: int) -> str:
    # Three octal digits, because a hexadecimal escape would swallow a following letter in some shells.
    char = chr(byte)
    if char in "\\'":
        return f"\\{char}"
    return char if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


_OPTION = re.compile(r"([A-Za-z][\w-]{1,39})=?\Z", re.ASCII)


def shell_words(argv: Sequence[str], variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return ``argv`` quoted, with variables in place of likely secrets, and those variables with their values.

    A variable is named after its option, ``"${HF_TOKEN:?}"``, and the shell stops where it is not set.
    ``variables`` are those that already have a value.
    """
    words: list[str] = []
    secrets: dict[str, str] = {}
    for i, (word, spans) in enumerate(zip(argv, in_words(argv), strict=True)):
        text, at = "", 0
        for start, end in spans:
            name = _name_for(word[:start] or argv[max(0, i - 1)], word[start:end], {**variables, **secrets})
            secrets[name] = word[start:end]
            text += (quote(word[at:start]) if start > at else "") + f'"${{{name}:?}}"'
            at = end
        words.append(text + quote(word[at:]) if at < len(word) or not word else text)
    return words, secrets


def _name_for(option: str, secret: str, variables: Mapping[str, str]) -> str:
    """Return a variable's name for a secret after the words ``option``; no variable with another value has it."""
    match = _OPTION.search(option)
    name = match[1].replace("-", "_").upper() if match else "SECRET"
    names = (name if number == 1 else f"{name}_{number}" for number in itertools.count(1))
    return next(name for name in names if variables.get(name, secret) == secret)


def command_lines(argv: Sequence[str], width: int, variables: Mapping[str, str] | None = None) -> list[str]:
    """Return ``argv`` over several lines that end in a backslash; the script begins a line.

    An option and its values stay together. Variables replace likely secrets, as in ``shell_words``.
    """
    lines: list[str] = []
    script = argv.index("--") if "--" in argv else len(argv)
    for i, (word, text) in enumerate(zip(argv, shell_words(argv, variables or {})[0], strict=True)):
        fits = lines and i != script and len(lines[-1]) + len(text) + 3 <= width
        if lines and (fits or i > script or word[:1] != "-"):
            lines[-1] += f" {text}"
        else:
            lines.append(f"  {text}" if lines else text)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


_WIDTH = 100


def dry_run_text(launch: Launch) -> str:
    """Return comments and one command: ``env -u X NAME=value … python -m torch.distributed.run …``.

    Likely secrets are taken from the shell into which the text is pasted, which stops if one is not set there.
    """
    summary = f"{launch.run_id}: {target_text(launch.target)} on {nodes_text(launch)}, {device_text(launch)}"
    comments = [summary, *(f"{one.name}: {one.reason} ({one.source})" for one in launch.environment)]
    variables = {variable.name: variable.value for variable in launch.environment if variable.value is not None}
    lines = [f"# {visible(comment)}" for comment in comments]
    command = command_lines(launch.argv, _WIDTH - 4, variables)
    if launch.environment:
        removed = [f"-u {quote(one.name)}" for one in launch.environment if one.value is None]
        values = [f"  {_set(name, value)}" for name, value in variables.items()]
        lines += [f"{line} \\" for line in (" ".join(["env", *removed]), *values)]
        command = [f"  {line}" for line in command]
    return "\n".join([*lines, *command]) + "\n"


def _set(name: str, value: str) -> str:
    """Return ``NAME=value`` as one word; names that ``env`` accepts but a shell does not are quoted too."""
    if is_secret(name, value):
        return f'{name}="${{{name}:?}}"'
    return f"{name}={quote(value)}" if name.isidentifier() else quote(f"{name}={value}")


def line_text(words: Sequence[Word], translation: Translation) -> str:
    """Return the line with the launcher's part replaced, as shell text."""
    return " ".join([*(word.source for word in words[: translation.start]), translation.source]) + "\n"


def notes_text(translation: Translation, terminal: Terminal, place: str = "") -> str:
    """Return a line for each dropped and each unknown part; each line begins with ``place``."""
    groups = {"dropped": translation.dropped, "unknown": translation.unknown}
    return "".join(
        terminal.note(f"{note.what}: {note.why}", f"{place}{label} ")
        for label, notes in groups.items()
        for note in notes
    )


def not_converted(translation: Translation, line: str, place: str) -> Finding:
    """Return the finding for a line that was not changed."""
    note = translation.unknown[0]
    return error(
        "line-not-converted",
        f"`{cut(line, 60)}` stays as it is: {note.what}",
        why=note.why,
        fix="write it by hand: `ddplaunch run NPROC -- train.py`; `ddplaunch run --help` lists the options",
        where=place or (),
    )


def diff_text(path: str, old: bytes, new: bytes) -> str:
    """Return the changes to a script as a unified diff for ``patch``."""
    import difflib  # used only here

    old_lines, new_lines = (data.decode("utf-8", "surrogateescape").splitlines(keepends=True) for data in (old, new))
    lines = difflib.unified_diff(old_lines, new_lines, path, path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
