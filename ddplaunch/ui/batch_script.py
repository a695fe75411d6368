"""A batch script as text that people keep and change; refuses to decide what stands in it."""

from __future__ import annotations

import re

from ddplaunch.launch.sbatch import Batch
from ddplaunch.ui.shell import command_lines
from ddplaunch.ui.style import visible

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
