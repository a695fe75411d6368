"""Command lines and environments as shell text that can be pasted: a launch (`--dry-run`), a line of `convert`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddplaunch.planning.launch import Launch, Variable
from ddplaunch.ui.launch_view import device_text, nodes_text, target_text
from ddplaunch.ui.terminal import Emphasis, Terminal, visible, wrap
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.secrets import in_words, is_secret

if TYPE_CHECKING:
    from ddplaunch.planning.convert.launch_words import Word
    from ddplaunch.planning.convert.translation import Translation


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


_NO_NAME = re.compile(r"[^A-Za-z0-9]+")


def shell_words(
    argv: Sequence[str], taken: Mapping[str, str], unicode: bool = True
) -> tuple[list[str], dict[str, str]]:
    """Return ``argv`` quoted, variables in the place of what looks like a secret, and these variables with the values.

    A variable has the name of its option, ``"${HF_TOKEN:?}"``, and the shell stops where it is not set. ``taken`` are
    the variables that have values already.
    """
    words: list[str] = []
    found: dict[str, str] = {}
    for i, (word, spans) in enumerate(zip(argv, in_words(argv), strict=True)):
        text, at = "", 0
        for start, end in spans:
            name = _name_for(argv, i, start, word[start:end], {**taken, **found})
            found[name] = word[start:end]
            text += (quote(word[at:start], unicode) if start > at else "") + f'"${{{name}:?}}"'
            at = end
        words.append(text + quote(word[at:], unicode) if at < len(word) or not word else text)
    return words, found


def _name_for(argv: Sequence[str], i: int, start: int, secret: str, taken: Mapping[str, str]) -> str:
    """Return the name of a variable for the secret at ``start`` of a word, which no other value has."""
    before, equals, _ = argv[i][:start].rpartition("=")
    named = before.rpartition("=")[2] if equals else argv[i - 1] if i and not start and argv[i - 1][:1] == "-" else ""
    name = _NO_NAME.sub("_", named).strip("_").upper()
    name = name if 1 < len(name) <= 40 and not name[0].isdecimal() else "SECRET"
    number = 1
    while taken.get(name if number == 1 else f"{name}_{number}", secret) != secret:
        number += 1
    return name if number == 1 else f"{name}_{number}"


def command_lines(
    argv: Sequence[str], width: int, unicode: bool = True, taken: Mapping[str, str] | None = None
) -> list[str]:
    """Return ``argv`` over several lines that end in a backslash, an option and its values kept together.

    Variables stand in the place of what looks like a secret, as in ``shell_words``.
    """
    groups: list[str] = []
    for i, (word, text) in enumerate(zip(argv, shell_words(argv, taken or {}, unicode)[0], strict=True)):
        if not groups or (word.startswith("-") and not _belongs(argv, i) and "--" not in argv[:i]):
            groups.append(text)
        else:
            groups[-1] += f" {text}"
    lines: list[str] = []
    for group in groups:
        fits = len(lines) > 1 and len(lines[-1]) + len(group) + 3 <= width
        if fits and group.split(" ")[0] != "--":  # the script starts a line of its own
            lines[-1] += f" {group}"
        else:
            lines.append(f"  {group}" if lines else group)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _belongs(argv: Sequence[str], i: int) -> bool:
    """The interpreter's own options, the last of which is ``-m``, stay with it."""
    return "-m" in argv[i:] and "-m" not in argv[:i] and all(word.startswith("-") for word in argv[1:i])


_WIDTH = 100
NOT_PRINTED = "its value is not printed, set it before"


def dry_run_text(launch: Launch, terminal: Terminal) -> str:
    """Return comments and one command: ``env -u X NAME=value … python -m torch.distributed.run …``.

    What looks like a secret is taken from the shell that the text is pasted into, which stops if it is not set there.
    """
    about = f"{launch.run_id}: {target_text(launch.target)} on {nodes_text(launch)}, {device_text(launch)}"
    comments = [about, *(_comment(variable) for variable in launch.environment)]
    removed = [
        f"-u {quote(variable.name, terminal.unicode)}" for variable in launch.environment if variable.value is None
    ]
    values = [_set(variable, terminal.unicode) for variable in launch.environment if variable.value is not None]
    taken = {variable.name: variable.value for variable in launch.environment if variable.value is not None}
    unset = [name for name in shell_words(launch.argv, taken)[1] if name not in taken]
    comments += [f"{name}: {NOT_PRINTED}" for name in unset]
    lines = [terminal.spell(f"# {visible(comment)}") for comment in comments]
    command = command_lines(launch.argv, _WIDTH - 4, terminal.unicode, taken)
    if removed or values:
        lines += [f"{line} \\" for line in (" ".join(["env", *removed]), *(f"  {value}" for value in values))]
        command = [f"  {line}" for line in command]
    return "\n".join([*lines, *command]) + "\n"


def _comment(variable: Variable) -> str:
    text = f"{variable.name}: {variable.reason} ({variable.source})"
    if variable.value is None:
        return f"without {text}"
    return f"{text}; {NOT_PRINTED}" if is_secret(variable.name, variable.value) else text


def _set(variable: Variable, unicode: bool) -> str:
    """Return ``NAME=value`` as one word; ``env`` accepts names that a shell does not, and those are quoted too."""
    if is_secret(variable.name, variable.value or ""):
        return f'{variable.name}="${{{variable.name}:?}}"'
    name, value = variable.name, variable.value or ""
    return f"{name}={quote(value, unicode)}" if name.isidentifier() else quote(f"{name}={value}", unicode)


_MOST_COMPARED = 5000  # lines
_LONGEST = 60  # of a line that is quoted in a finding


def line_text(words: Sequence[Word], said: Translation) -> str:
    """Return the line with the launcher's part replaced, as shell text."""
    return " ".join([*(word.source for word in words[: said.start]), said.source]) + "\n"


def line_json(words: Sequence[Word], said: Translation) -> dict[str, Any]:
    """Return a translation as JSON values: ``command`` is None where there is none."""
    return {
        "schema": 1,
        "launcher": said.launcher,
        "command": line_text(words, said).rstrip("\n") if said.words else None,
        "dropped": [{"what": note.what, "why": note.why} for note in said.dropped],
        "unknown": [{"what": note.what, "why": note.why} for note in said.unknown],
    }


def notes_text(said: Translation, terminal: Terminal, where: str = "") -> str:
    """Return a line for each thing that was dropped and each that is not known; ``where`` stands in front."""
    lines: list[str] = []
    for label, notes in (("dropped", said.dropped), ("unknown", said.unknown)):
        for note in notes:
            head = f"{where}{label} "
            found = wrap(visible(f"{note.what}: {note.why}"), terminal.width, head, "  ")
            lines += [terminal.paint(head, "dim") + found[0][len(head) :], *found[1:]]
    return terminal.spell("".join(f"{line}\n" for line in lines))


def not_converted(said: Translation, line: str, where: str) -> Finding:
    """Return the finding for a line that stays as it is."""
    note = said.unknown[0]
    short = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return error(
        "line-not-converted",
        f"`{visible(short)}` stays as it is: {note.what}",
        why=note.why,
        fix="say it by hand: `ddplaunch run NPROC -- train.py`; `ddplaunch run --help` lists the options",
        where=where or (),
    )


def diff_text(path: str, old: bytes, new: bytes, terminal: Terminal) -> str:
    """Return what changes in a script as a unified diff, which ``patch`` takes.

    The lines between two changes are compared by their place alone: comparing long scripts as texts takes minutes.
    """
    before, after = (data.decode("utf-8", "surrogateescape").splitlines(keepends=True) for data in (old, new))
    first = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    most = min(len(before), len(after)) - first
    same = next((i for i in range(most) if before[-1 - i] != after[-1 - i]), most)
    start = max(0, first - 3)
    ends = [len(lines) - max(0, same - 3) for lines in (before, after)]
    if max(ends) - start > _MOST_COMPARED:
        hunk = [f"-{line}" for line in before[start : ends[0]]] + [f"+{line}" for line in after[start : ends[1]]]
        head = f"@@ -{start + 1},{ends[0] - start} +{start + 1},{ends[1] - start} @@\n"
        lines = [f"--- {path}\n", f"+++ {path}\n", head, *hunk]
    else:
        import difflib  # for this alone

        lines = list(difflib.unified_diff(before, after, path, path))
    shown = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    emphasis: dict[str, Emphasis] = {"+": "good", "-": "error", "@": "dim"}
    return "".join(
        terminal.paint(line[:-1], emphasis[line[0]]) + "\n" if line[0] in emphasis else line for line in shown
    )
