"""Runs the commands that a document shows and hands back what they print; refuses to edit what it has read.

A block is a fence behind ``<!-- output: MODE -->``. Its lines with ``$`` are run by bash in an empty directory that
holds the document's own ``train.py``; all other lines are output. MODE says which stream is shown (``stdout``,
``stderr``, ``both``), or ``doctor``: all of stdout, of which only the shape has to agree on another machine.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"<!-- output: (?P<mode>\w+) -->\n```console\n(?P<text>.*?)```\n", re.DOTALL)
SAMPLE = re.compile(r"<!-- file: (?P<name>[\w./]+) -->\n```\w+\n(?P<text>.*?)```\n", re.DOTALL)
REDIRECTION = {"stdout": "2>/dev/null", "stderr": "2>&1 >/dev/null", "both": "2>&1", "doctor": "2>/dev/null"}
DEADLINE_S = 240
# Prints a prompt without losing the status of the command before it, so that `echo $?` can be shown.
SHOW = 'show() { local status=$?; printf "%s\\n" "$1"; return $status; }'
#: Findings about the machine that runs the tests; a document shows a machine without any.
OF_THE_MACHINE = (
    "container-cpu-quota|cpus-short|disk-nearly-full|host-name-\\w+|memory-short|open-files-low|processes-low|"
    "shm-nearly-full|shm-too-small|torchrun-of-another-python"
)


@dataclass(frozen=True)
class Block:
    """One console block: its text as it stands in the document, and the commands in it."""

    mode: str
    text: str

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands without their prompt; a line that ends in a backslash goes on in the next."""
        return tuple(re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n", self.text, re.MULTILINE))

    def __str__(self) -> str:
        return self.commands[0] if self.commands else "no command"


def blocks(document: str) -> tuple[Block, ...]:
    """Return the console blocks of a document, in order."""
    return tuple(Block(match["mode"], match["text"]) for match in BLOCK.finditer(document))


def samples(document: str) -> dict[str, str]:
    """Return the files that a document gives, by name."""
    return {match["name"]: match["text"] for match in SAMPLE.finditer(document)}


def run(block: Block, document: str, folder: Path) -> str:
    """Run the block's commands in ``folder`` and return its text anew, with this machine's names taken out."""
    for name, text in samples(document).items():
        folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        folder.joinpath(name).write_text(text, encoding="utf-8")
    lines = [SHOW]
    for command in block.commands:
        lines += [f"show {shlex.quote('$ ' + command)}", f"{{ {command}\n}} {REDIRECTION[block.mode]}"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
    )
    return shown(done.stdout.decode()).rstrip() + "\n"


def environment(home: Path) -> dict[str, str]:
    """Return what the commands see: this interpreter's programs first, 80 columns, no colour, nothing left over."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONWARNINGS": "ignore",  # torch warns of a missing NumPy, which nothing here needs
    }


def shown(output: str) -> str:
    """Replace the names of this machine: its interpreter's path and, where doctor says it, its own name."""
    programs = re.escape(str(Path(sys.executable).parent))
    output = re.sub(rf"{programs}/python[\d.]*", "/venv/bin/python", output)
    output = re.sub(r"^\S+( \(\S+\))?(?=, Python 3)", "node-1", output, flags=re.MULTILINE)
    return re.sub(rf"^warning\[(?:{OF_THE_MACHINE})\]:.*?\n\n", "", output, flags=re.MULTILINE | re.DOTALL)


def comparable(block: Block, text: str) -> str:
    """Return what must be equal on every machine: CPU counts, Python's options and torch's own log lines left out."""
    if block.mode == "doctor":
        families = re.findall(r"^  (\w+) +\d+ (?:passed|skipped|error|warning)", text, re.MULTILINE)
        verdict = re.fullmatch(r".*\d+ checks? passed.*", text.rstrip().rpartition("\n")[2])
        return f"{block.commands} {families} {'a verdict' if verdict else 'no verdict'}"
    text = text.replace("/python -P ", "/python ")  # Python has it since 3.11
    text = re.sub(r"\d+ usable CPUs?", "N usable CPUs", text)
    text = re.sub(r"OMP_NUM_THREADS=\d+", "OMP_NUM_THREADS=N", text)
    text = re.sub(r"\d+ variables set", "N variables set", text)
    text = re.sub(r"(?<=ddplaunch: done after )[\d.]+ s", "N s", text)
    return re.sub(r"^\[?[WI][\d:. ]+.*\n|^\[Gloo\].*\n", "", text, flags=re.MULTILINE)
