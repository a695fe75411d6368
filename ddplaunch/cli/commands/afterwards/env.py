"""``ddplaunch env``: what a bug report needs about this machine and its Python, as text to paste."""

from __future__ import annotations

import subprocess
import sys

from ddplaunch.cli.parsing.command import Command
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.variable_names import own_command

COMMAND = Command(
    examples=(("ddplaunch env", "versions, hardware and checks, to paste into a bug report"),),
    options=(),
    more="It runs torch's `collect_env` and `ddplaunch doctor`; variables of the environment are not in it.",
)


def env() -> int:
    """Print torch's description of the environment, ddplaunch's version, and what `doctor` finds."""
    # It starts `python -m pip`, which would take a pip.py of this folder; by `-m` Python would warn of the module.
    subprocess.run([sys.executable, "-c", "from torch.utils import collect_env as c; c.main()"], cwd="/", check=False)
    for words in (["--version"], ["doctor", "--verbose"]):
        subprocess.run(own_command(sys.executable, "ddplaunch", *words), check=False)
    return ExitStatus.DONE
