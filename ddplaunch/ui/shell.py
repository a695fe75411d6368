"""Command lines and environments as shell text that can be pasted, and a launch as one such text (`--dry-run`)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from ddplaunch.launch.launch import Launch, Variable
from ddplaunch.machine.environ import redact
from ddplaunch.ui.launch_view import device_text, nodes_text, target_text
from ddplaunch.ui.terminal import Terminal, visible


def quote(word: str, unicode: bool = True) -> str:
    """Return ``word`` as one word of shell text, whatever bytes are in it.

    ``shlex.quote`` wherever it serves, also for newlines. Bytes that are no text, and control characters that a
    terminal would act on, need ``$'\\xff'`` (bash, zsh, ksh, busybox; POSIX.1-2024), as does everything beyond ASCII if
    the stream cannot encode it (``unicode`` False).
    """
    lines = word.replace("\n", "")
    if not lines or (lines.isprintable() and (unicode or lines.isascii())):
        return shlex.quote(word)
    return "$'" + "".join(_ansi_c(byte) for byte in os.fsencode(word)) + "'"


def _ansi_c(byte: int) -> str:
    # Three octal digits, because a hexadecimal escape would swallow a following letter in some shells.
    char = chr(byte)
    if char in "\\'":
        return f"\\{char}"
    return char if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


def assignment(name: str, value: str, unicode: bool = True) -> str:
    """Return ``NAME=value`` as one word; ``env`` accepts names that a shell does not, and those are quoted too."""
    return quote(f"{name}={value}", unicode) if not name.isidentifier() else f"{name}={quote(value, unicode)}"


def command_lines(argv: Sequence[str], width: int, unicode: bool = True) -> list[str]:
    """Return ``argv`` over several lines that end in a backslash, an option and its values kept together."""
    groups: list[str] = []
    for i, word in enumerate(argv):
        text = quote(word, unicode)
        if not groups or (word.startswith("-") and not _belongs(argv, i) and "--" not in argv[:i]):
            groups.append(text)
        else:
            groups[-1] += f" {text}"
    return continued(groups, width)


def _belongs(argv: Sequence[str], i: int) -> bool:
    """The interpreter's own options, the last of which is ``-m``, stay with it."""
    return "-m" in argv[i:] and "-m" not in argv[:i] and all(word.startswith("-") for word in argv[1:i])


def continued(groups: Sequence[str], width: int) -> list[str]:
    """Return ``groups`` joined into lines of about ``width``, all but the last with a backslash at their end."""
    lines: list[str] = []
    for group in groups:
        fits = len(lines) > 1 and len(lines[-1]) + len(group) + 3 <= width
        if fits and group.split(" ")[0] != "--":  # the script starts a line of its own
            lines[-1] += f" {group}"
        else:
            lines.append(f"  {group}" if lines else group)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


_WIDTH = 100


def dry_run_text(launch: Launch, terminal: Terminal) -> str:
    """Return comments and one command: ``env -u X NAME=value … python -m torch.distributed.run …``.

    A variable whose name looks secret is taken from the shell that the text is pasted into, which stops if it is unset.
    """
    about = f"{launch.run_id}: {target_text(launch.target)} on {nodes_text(launch)}, {device_text(launch)}"
    comments = [about, *(_comment(variable) for variable in launch.environment)]
    removed = [
        f"-u {quote(variable.name, terminal.unicode)}" for variable in launch.environment if variable.value is None
    ]
    values = [_set(variable, terminal.unicode) for variable in launch.environment if variable.value is not None]
    lines = [terminal.spell(f"# {visible(comment)}") for comment in comments]
    command = command_lines(launch.argv, _WIDTH - 4, terminal.unicode)
    if removed or values:
        lines += _environment(removed, values)
        command = [f"  {line}" for line in command]
    return "\n".join([*lines, *command]) + "\n"


def _environment(removed: list[str], values: list[str]) -> list[str]:
    """One variable a line; every line goes on in the next."""
    return [f"{line} \\" for line in [" ".join(["env", *removed]), *(f"  {value}" for value in values)]]


def is_secret(variable: Variable) -> bool:
    """Return whether the value of ``variable`` must not be shown."""
    return variable.value is not None and redact(variable.name, variable.value) != variable.value


def _comment(variable: Variable) -> str:
    text = f"{variable.name}: {variable.reason} ({variable.source})"
    if variable.value is None:
        return f"without {text}"
    return f"{text}; its value is not printed, set it before" if is_secret(variable) else text


def _set(variable: Variable, unicode: bool) -> str:
    if is_secret(variable):
        return f'{variable.name}="${{{variable.name}:?}}"'
    return assignment(variable.name, variable.value or "", unicode)
