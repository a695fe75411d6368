"""``ddplaunch env``: what a bug report needs about this machine and its Python, as text to paste."""

from __future__ import annotations

import os
import subprocess
import sys

from ddplaunch.cli.parsing.command import Command
from ddplaunch.cli.streams import say
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.variable_names import own_command

COMMAND = Command(
    examples=(("ddplaunch env", "versions, hardware and checks, to paste into a bug report"),),
    options=(),
    more="It runs torch's `collect_env` and `ddplaunch doctor`; variables of the environment are not in it.",
)


def env() -> int:
    """Print torch's description of the environment, ddplaunch's version, and what `doctor` finds."""
    # Python warns of how torch's module is started, above its text.
    variables = {**os.environ, "PYTHONWARNINGS": "ignore::RuntimeWarning"}
    for words in (["torch.utils.collect_env"], ["ddplaunch", "--version"], ["ddplaunch", "doctor", "--verbose"]):
        if sys.stderr.isatty():
            say(f"now `python -m {' '.join(words)}`")
        # collect_env starts `python -m pip`, which would take a pip.py here
        subprocess.run(own_command(sys.executable, *words), cwd="." if words[1:] else "/", env=variables, check=False)
    return ExitStatus.DONE
