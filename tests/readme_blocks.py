"""Runs the commands that a document shows and hands back what they print.

A block is a fence behind ``<!-- output: MODE -->``. Its lines with ``$`` are run by bash in an empty directory that
holds the files of all documents; all other lines are output. MODE says which stream is shown (``stdout``,
``both``), ``table``, whose numbers may differ, or ``doctor``: all of stdout, of which only the shape has to agree on
another machine. ``MODE, goes on`` runs in the directory of the block before it; ``MODE, drawn as NAME.svg`` is a
picture in docs/pictures too, with the colours that a terminal gets. A line ``<!-- before: COMMAND -->`` in
front is run first, unseen: what another terminal does; what it leaves in the background is ended with the block.
"""

from __future__ import annotations

import html
import io
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

BLOCK = re.compile(
    r"(?:<!-- before: (?P<before>.*?) -->\n)?"
    r"<!-- output: (?P<mode>\w+)(?P<goes_on>, goes on)?(?:, drawn as (?P<picture>[\w-]+\.svg))? -->\n"
    r"```console\n(?P<text>.*?)```\n",
    re.DOTALL,
)
SAMPLE = re.compile(r"<!-- file: (?P<name>[\w./]+) -->\n```\w+\n(?P<text>.*?)```\n", re.DOTALL)
REDIRECTION = {"stdout": "2>/dev/null", "both": "2>&1", "table": "2>/dev/null", "doctor": "2>/dev/null"}
DEADLINE_S = 200
HOME = "/home/ada"
COLUMNS = 80
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
_SGR = re.compile(r"\x1b\[[\d;]*m")
#: Prints a prompt without losing the status of the command before it, so that `echo $?` can be shown.
SHOW = 'show() { local status=$?; printf "%s\\n" "$1"; return $status; }'
#: Findings about the machine that runs the tests; a document shows a machine without any.
OF_THE_MACHINE = (
    "container-cpu-quota|cpus-short|disk-nearly-full|host-name-\\w+|memory-short|open-files-low|"
    "shm-nearly-full|shm-too-small"
)


@dataclass(frozen=True)
class Block:
    """One console block: its text as it stands in the document, and the commands in it."""

    mode: str
    text: str
    before: str = ""
    goes_on: bool = False
    picture: str = ""

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands without their prompt; a line that ends in a backslash goes on in the next."""
        return tuple(re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n", self.text, re.MULTILINE))

    @property
    def slow(self) -> bool:
        """Return whether torch is imported or ranks are started: runs that go on are named."""
        return any(
            ("--run-id" in command and "--dry-run" not in command)
            or command.startswith(("ddplaunch doctor", "ddplaunch prove"))
            for command in (self.before, *self.commands)
        )

    def __str__(self) -> str:
        return self.commands[0] if self.commands else "no command"


def blocks(document: str) -> tuple[Block, ...]:
    """Return the console blocks of a document, in order."""
    return tuple(
        Block(match["mode"], match["text"], match["before"] or "", bool(match["goes_on"]), match["picture"] or "")
        for match in BLOCK.finditer(document)
    )


def sessions(document: str) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the blocks that run in one directory, for each directory."""
    found: list[tuple[int, ...]] = []
    for number, block in enumerate(blocks(document)):
        if block.goes_on and found:
            found[-1] += (number,)
        else:
            found.append((number,))
    return tuple(found)


def samples(document: str) -> dict[str, str]:
    """Return the files that a document gives, by name."""
    return {match["name"]: match["text"] for match in SAMPLE.finditer(document)}


def run(block: Block, files: Mapping[str, str], folder: Path, draw: bool = False) -> str:
    """Run the block's commands in ``folder`` beside ``files``; return its text anew, without this machine's names.

    ``draw`` writes its picture too.
    """
    for name, text in files.items():
        folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        folder.joinpath(name).write_text(text, encoding="utf-8")
    lines = [SHOW, "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT", block.before]
    for command in block.commands:
        lines += [f"show {shlex.quote('$ ' + command)}", f"{{ {command}\n}} {REDIRECTION[block.mode]}"]
    done = subprocess.run(
        # `timeout` ends the whole process group, so that no run outlives its test
        ["timeout", "--kill-after=20", str(DEADLINE_S), "bash", "-c", "\n".join(lines)],
        cwd=folder,
        env=environment(folder, coloured=bool(block.picture)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode != 124, f"{block}: not done after {DEADLINE_S} s"
    output = done.stdout.decode()
    text = shown(_SGR.sub("", output), str(folder)).rstrip() + "\n"
    if draw and block.picture:
        PICTURES.joinpath(block.picture).write_text(drawn(text, output, str(folder)), encoding="utf-8")
    return text


def drawn(text: str, output: str, folder: str) -> str:
    """Return ``text`` as SVG, with the colours that its lines have in ``output``."""
    coloured = {shown(_SGR.sub("", line), folder).rstrip(): line for line in output.splitlines()}
    width = max(COLUMNS, *(len(line) for line in text.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in text.splitlines():
        shade = coloured.get(line.rstrip(), line).replace(folder, HOME).replace(socket.gethostname(), "node-1")
        console.print(Text.from_ansi(shade) if not line.startswith("$ ") else Text(line, "bold"), soft_wrap=True)
    svg = console.export_svg(title="ddplaunch", unique_id="picture")
    # readers of the site and of a page of a repository fetch no font
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")


def words_of_picture(svg: str) -> str:
    """Return the text of a picture without blanks."""
    body = re.sub(r"<style>.*?</style>|<text class=\"picture-title\".*?</text>", "", svg, flags=re.DOTALL)
    return "".join(html.unescape("".join(re.findall(r"<text[^>]*>([^<]*)</text>", body))).split())


def environment(home: Path, coloured: bool = False) -> dict[str, str]:
    """Return what the commands see: this interpreter's programs first, 80 columns, nothing left over."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "COLUMNS": str(COLUMNS),
        "FORCE_COLOR" if coloured else "NO_COLOR": "1",
        "PYTHONWARNINGS": "ignore",  # torch warns of a missing NumPy, which nothing here needs
    }


def shown(output: str, folder: str = "") -> str:
    """Replace the names of this machine: its interpreter's path, its directory and its own name.

    Of the traceback of a rank that lost the others, which differs between versions of torch, the first line stays.
    """
    programs = re.escape(str(Path(sys.executable).parent))
    output = re.sub(rf"{programs}/python[\d.]*", "/venv/bin/python", output)
    if folder:
        output = output.replace(folder, HOME)
    output = re.sub(rf"(?<= on ){re.escape(socket.gethostname())}\b", "node-1", output)
    output = re.sub(rf"(?<=^\[){re.escape(socket.gethostname())}(?=:\d+\] )", "node-1", output, flags=re.MULTILINE)
    output = re.sub(r"^\S+( \(\S+\))?(?=, Python 3)", "node-1", output, flags=re.MULTILINE)
    lost = r"(^\[rank\d+\]: Traceback .*\n)(?:.*\n)*?(?=^ddplaunch: |\Z)"
    output = re.sub(lost, r"\1...\n", output, flags=re.MULTILINE)
    return re.sub(rf"^warning\[(?:{OF_THE_MACHINE})\]:.*\n(?:  .*\n)*\n?", "", output, flags=re.MULTILINE)


def comparable(block: Block, text: str) -> str:
    """Return what must be equal on every machine.

    Left out are numbers of CPUs and times, all numbers of a table but those of ranks and lines of code, Python's
    options, torch's own log lines, and what the other ranks noticed of a failure, which is a matter of chance.
    Where a line of speech wraps depends on the length of such things, where a command does on its interpreter's path.
    """
    if block.mode == "doctor":
        verdict = re.fullmatch(r".*\d+ checks? passed.*", text.rstrip().rpartition("\n")[2])
        return f"{block.commands} {'a verdict' if verdict else 'no verdict'}"
    text = text.replace("/python -P ", "/python ").replace(" \\\n    ", " ")  # Python has -P since 3.11
    text = re.sub(r"^\[?[WI][\d:. ]+.*\n|^\[Gloo\].*\n", "", text, flags=re.MULTILINE)
    text = re.sub(
        r"^\[rank\d+\]: Traceback .*\n\.\.\.\n|^  followed by: rank \d+: gloo .*\n", "", text, flags=re.MULTILINE
    )
    if block.mode == "table":
        # `ps` has a column only where a run of this machine has something for it
        text = re.sub(rf"(?<=STATE) .*|\b(?:node-1|{re.escape(socket.gethostname())})\b", "", text)
        text = re.sub(r"(?<!rank )(?<!py:)\b\d[\d.:]*(?:e-\d+| min \d+ s| s| min)?\b", "N", text)
        # nor columns of numbers beside the runs of others, whose long names leave no cells for them
        return re.sub(r"\bN(?: N)+\b", "N", " ".join(text.split()))
    # whether ranks have cores of their own
    text = re.sub(r"^  cpus    .*\n(?: {10}.*\n)*|^  CPUs  .*\n(?: {12}.*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r',"cpus":\[[^]]*\]', "", text)
    if block.mode != "stdout":
        text = re.sub(r"\s+", " ", text)
    text = re.sub(
        r"\d+ usable (?:CPUs?|physical cores) / \d+ process(?:es)?; unset, torchrun would say 1"
        r"|(?:each rank has|a rank's share of its node is) \d+ physical cores?(?: of its own)?",
        "threads for the CPUs",
        text,
    )
    text = re.sub(r"\d+ usable CPUs?", "N usable CPUs", text)
    text = re.sub(r"OMP_NUM_THREADS=\d+", "OMP_NUM_THREADS=N", text)
    text = re.sub(r"(?<=\.err:)\d+", "N", text)  # Python versions draw tracebacks with more or fewer lines
    text = re.sub(r"\(pid \d+\)", "(pid N)", text)
    return re.sub(r"\b(after|for) (?:\d+ min )?[\d.]+ s\b", r"\1 N s", text)
