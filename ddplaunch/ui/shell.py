"""Words as shell text that can be pasted; refuses to run any of it.

A batch script as text that people keep and change; refuses to decide what stands in it.

A launch as shell text that runs when pasted, with the reasons as comments; refuses to print a secret.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from ddplaunch.launch.job.sbatch import Batch
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
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+\Z")


def sbatch_text(batch: Batch) -> str:
    """Return the batch script: options, the user's setup, one srun line."""
    lines = [
        "#!/bin/bash -l" if batch.setup else "#!/bin/bash",
        f"# {visible(batch.about)}; written by `ddplaunch submit`.",
        "# To change and submit it by hand: `sbatch FILE` in the directory where the training starts.",
        *(f"#SBATCH {directive_text(directive)}" for directive in batch.directives),
        "",
    ]
    if batch.setup:
        lines += ["set -e  # a line of the setup that fails ends the job", *batch.setup, "set +e", ""]
    lines += ["# One task on each node; ddplaunch learns from Slurm what it got. A task that fails ends all."]
    lines += [f"{' '.join(batch.step)} \\"]
    lines += [f"  {line}" for line in command_lines(batch.command, _WIDTH - 2)]
    if batch.requeue_after_s is not None:
        lines += [
            "status=$?",
            "# Slurm requeues after preemption and lost nodes; after the time limit somebody has to ask for it.",
            f'if [ "$status" -ne 0 ] && [ "$SECONDS" -ge {batch.requeue_after_s} ]; then',
            '  scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$status"',
        ]
    return "\n".join(lines) + "\n"


def directive_text(directive: str) -> str:
    """Return an option as Slurm reads it in a ``#SBATCH`` line: in double quotes, a backslash before ``"`` and ``\\``.

    Slurm's reader is no shell: https://github.com/SchedMD/slurm/blob/master/src/sbatch/opt.c (_get_next_opt).
    """
    if _PLAIN.match(directive):
        return directive
    name, equals, value = directive.partition("=")
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'{name}{equals}"{escaped}"'


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
