"""How long people wait for ddplaunch, against plain torchrun in the same run: ``python -m benchmarks.startup``.

Prints a table and writes benchmarks/results/startup.json and startup.md. With ``--check`` a missed target is exit
status 1. Needs an otherwise idle machine; the numbers of two runs are not comparable, the ratios in one are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.timing import Command, Times, busy, imported, in_turns, machine

RESULTS = Path(__file__).with_name("results")
BIN = Path(sys.executable).parent
TORCHRUN, RUN = "torchrun --standalone --nproc-per-node 2 s.py", "ddplaunch run 2 -- s.py"
HELP, PLAN, DRY = (
    "ddplaunch --help",
    "ddplaunch plan 8 --batch-size 8 --base-lr 1e-3",
    "ddplaunch run 2 --dry-run -- s.py",
)
RUN_HELP, DOCTOR, TORCH = "ddplaunch run --help", "ddplaunch doctor", "python -c 'import torch'"
PYTHON = "python -c pass"
SCRIPT = "print('first', flush=True)\n"
LAUNCH_MAX, ANSWER_MAX_S, DOCTOR_MAX_S = 1.15, 0.25, 1.0
BUSY_MAX = 0.1


@dataclass(frozen=True)
class Target:
    """One promise: what was measured, and the most that it may be."""

    name: str
    measured: float
    most: float
    unit: str

    @property
    def kept(self) -> bool:
        """Whether the promise holds."""
        return self.measured <= self.most


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="repetitions of each command, 9 at least")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--busy-ok", action="store_true", help="measure although other programs are running")
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    if arguments.rounds < 9:
        parser.error("--rounds: fewer than 9 repetitions say little")
    others = busy()
    if others > BUSY_MAX and not arguments.busy_ok:
        parser.error(f"other programs use {others:.0%} of the CPUs; wait for them, or add --busy-ok")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PET_", "DDPLAUNCH_"))}
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        (cwd / "s.py").write_text(SCRIPT)
        launches = in_turns(launch_commands(), arguments.rounds, cwd, environment)
        answers = in_turns(answer_commands(), arguments.rounds, cwd, environment)
        with_torch = torch_importers(cwd, environment)
    times = {**launches, **answers}
    targets = judge(times)
    text = report(times, targets, with_torch, (arguments.rounds, others))
    print(text)
    if not arguments.no_write:
        write(times, targets, with_torch, text)
    missed = with_torch or not all(target.kept for target in targets)
    return 1 if arguments.check and missed else 0


def words(name: str) -> tuple[str, ...]:
    """Return the argument vector of a command that is named by its text, with this environment's programs."""
    program, *rest = name.split()
    return (str(BIN / program), *rest)


def launch_commands() -> tuple[Command, ...]:
    """Launches, clocked until the first line of a script that imports nothing."""
    return tuple(Command(name, words(name), until_line=True) for name in (TORCHRUN, RUN))


def answer_commands() -> tuple[Command, ...]:
    """Commands that answer and end. ``doctor`` may find something (status 1)."""
    return (
        Command(PYTHON, (sys.executable, "-c", "pass")),
        *(Command(name, words(name)) for name in (HELP, RUN_HELP, PLAN, DRY)),
        Command(TORCH, (sys.executable, "-c", "import torch")),
        Command(DOCTOR, words(DOCTOR), statuses=(0, 1)),
    )


def torch_importers(cwd: Path, environment: dict[str, str]) -> list[str]:
    """Return the commands that import torch in their own process; ``run`` is seen until it becomes torchrun."""
    asked = (HELP, RUN_HELP, PLAN, DRY, DOCTOR, RUN)
    found = []
    for name in asked:
        argv = (sys.executable, "-X", "importtime", "-m", *name.split())
        modules = imported(argv, cwd, environment)
        if "ddplaunch" not in modules:
            raise RuntimeError(f"{name}: its imports could not be seen")
        if "torch" in modules:
            found.append(name)
    return found


def launch_ratio(times: dict[str, Times]) -> float:
    """Return the median over rounds of ddplaunch / torchrun: both of a round ran within seconds of each other."""
    pairs = zip(times[RUN].seconds, times[TORCHRUN].seconds, strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def judge(times: dict[str, Times]) -> list[Target]:
    """Return every target with what was measured."""
    probe = statistics.median(
        whole - torch for whole, torch in zip(times[DOCTOR].seconds, times[TORCH].seconds, strict=True)
    )
    return [
        Target("`run` until the first line / torchrun", launch_ratio(times), LAUNCH_MAX, ""),
        *(Target(f"`{name}`", times[name].median, ANSWER_MAX_S, " s") for name in (HELP, RUN_HELP, PLAN, DRY)),
        Target("`ddplaunch doctor` beyond `import torch`", probe, DOCTOR_MAX_S, " s"),
    ]


def report(times: dict[str, Times], targets: list[Target], with_torch: list[str], how: tuple[int, float]) -> str:
    """Return both tables in Markdown. ``how`` is the number of rounds and what others used of the CPUs before."""
    rounds, others = how
    about = "; ".join(f"{name} {value}" if name != "processor" else value for name, value in machine().items())
    conditions = (
        f"{rounds} rounds in turns, forwards and backwards; other programs used {others:.0%} of the CPUs before."
    )
    lines = ["# Startup", "", f"{about}.", f"{conditions} Wall time in seconds.", ""]
    lines += ["| command | median | quartiles |", "|---|---|---|"]
    for name, taken in times.items():
        low, high = taken.spread
        lines.append(f"| `{name}` | {taken.median:.3f} | {low:.3f} to {high:.3f} |")
    lines += ["", "| target | measured | at most | |", "|---|---|---|---|"]
    for target in targets:
        verdict = "kept" if target.kept else "**missed**"
        lines.append(f"| {target.name} | {target.measured:.3f}{target.unit} | {target.most}{target.unit} | {verdict} |")
    importers = ", ".join(f"`{name}`" for name in with_torch) or "none of them"
    lines += ["", f"Commands that import torch in their own process: {importers}.", ""]
    return "\n".join(lines)


def write(times: dict[str, Times], targets: list[Target], with_torch: list[str], text: str) -> None:
    """Write results/startup.json and startup.md."""
    RESULTS.mkdir(exist_ok=True)
    value = {
        "machine": machine(),
        "seconds": {name: [round(second, 4) for second in taken.seconds] for name, taken in times.items()},
        "targets": [
            {"name": each.name, "measured": round(each.measured, 4), "most": each.most, "kept": each.kept}
            for each in targets
        ],
        "imports_torch": with_torch,
    }
    (RESULTS / "startup.json").write_text(json.dumps(value, indent=1) + "\n")
    (RESULTS / "startup.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
