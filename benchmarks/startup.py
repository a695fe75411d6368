"""How long people wait for ddplaunch, beside torchrun, accelerate and DeepSpeed: ``python -m benchmarks.startup``.

Prints tables, writes benchmarks/results/startup.json and startup.md, and draws docs/startup.svg, on an idle machine
within a quarter of an hour. With ``--check`` a missed target is exit status 1. ``--quick`` does a fifth and writes
nothing. The numbers of two runs are not comparable, the ratios in one are. ``--also PYTHON`` measures `run` beside
torchrun in another environment too, where ddplaunch is installed from a wheel if it is editable here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import plot
from benchmarks.launchers import BIN, install_peers, launchers
from benchmarks.rounds import Launches, Target, judge_launches, launches_text, measure_launches
from benchmarks.timing import ROOT, Command, Times, busy, imported, in_turns, machine

RESULTS = Path(__file__).with_name("results")
TORCHRUN, RUN = "torchrun --standalone --nproc-per-node 2 s.py", "ddplaunch run 2 -- s.py"
HELP, PLAN, DRY = (
    "ddplaunch --help",
    "ddplaunch plan 8 --batch-size 8 --base-lr 1e-3",
    "ddplaunch run 2 --dry-run -- s.py",
)
RUN_HELP, DOCTOR, TORCH = "ddplaunch run --help", "ddplaunch doctor", "python -c 'import torch'"
PYTHON = "python -c pass"
SCRIPT = "print('first', flush=True)\n"
LAUNCH_MAX, ANSWER_MAX_S, DOCTOR_MAX_S = 1.03, 0.25, 1.0
BUSY_MAX = 0.1


@dataclass(frozen=True)
class Measured:
    """All that a run has found. ``others`` is the share of the CPUs that other programs used before."""

    rounds: int
    launch_rounds: int
    others: float
    times: dict[str, Times]
    launches: Launches
    with_torch: list[str]
    also: str | None = None

    @property
    def targets(self) -> list[Target]:
        """Every promise with what was measured."""
        return [*judge(self.times, self.also), *judge_launches(self.launches)]


def main() -> int:
    """Measure, print, write; return the exit status."""
    options = parsed()
    others = busy()
    if others > BUSY_MAX and not options.busy_ok:
        raise SystemExit(f"other programs use {others:.0%} of the CPUs; wait for them, or add --busy-ok")
    measured = measure_all(options, others)
    text = report(measured)
    print(text)
    if not options.no_write:
        write(measured, text)
    missed = measured.with_torch or not all(target.kept for target in measured.targets)
    return 1 if options.check and missed else 0


def parsed() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11, help="repetitions of each command that answers")
    parser.add_argument("--launch-rounds", type=int, default=5, help="repetitions of each launch")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--peers-bin", type=Path, help="folder with the programs of accelerate and DeepSpeed")
    parser.add_argument("--install-peers", type=Path, metavar="DIR", help="install both there first, if they are not")
    parser.add_argument("--also", type=Path, metavar="PYTHON", help="another environment's interpreter")
    parser.add_argument("--quick", action="store_true", help="2 and 8 ranks, 2 rounds, and write nothing")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--busy-ok", action="store_true", help="measure although other programs are running")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.launch_rounds, options.ranks, options.no_write = 3, 2, [2, 8], True
    if options.install_peers:
        options.peers_bin = install_peers(options.install_peers)
    return options


def measure_all(options: argparse.Namespace, others: float) -> Measured:
    """Return everything. Raises RuntimeError for what does not end as it should."""
    ours = ("PET_", "DDPLAUNCH_", "OMP_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        (cwd / "s.py").write_text(SCRIPT)
        also = None if options.also is None else how_installed_in(options.also)
        elsewhere = () if also is None else launch_commands(options.also.parent, also)
        first_lines = in_turns((*launch_commands(), *elsewhere), options.rounds, cwd, environment)
        answers = in_turns(answer_commands(), options.rounds, cwd, environment)
        with_torch = torch_importers(cwd, environment)
    ways = launchers(options.peers_bin)
    launches = measure_launches(ways, options.ranks, options.launch_rounds, environment)
    times = {**first_lines, **answers}
    return Measured(options.rounds, options.launch_rounds, others, times, launches, with_torch, also)


def words(name: str, programs: Path = BIN) -> tuple[str, ...]:
    """Return the argument vector of a command that is named by its text, with the programs of an environment."""
    program, *rest = name.split()
    return (str(programs / program), *rest)


def launch_commands(programs: Path = BIN, how: str | None = None) -> tuple[Command, ...]:
    """Launches, clocked until the first line of a script that imports nothing; ``how`` names another environment."""
    return tuple(Command(named(name, how), words(name, programs), until_line=True) for name in (TORCHRUN, RUN))


def named(name: str, how: str | None) -> str:
    """Return how the tables call a command, of the other environment with how ddplaunch is installed there."""
    return name if how is None else f"{name} ({how})"


def how_installed_in(python: Path) -> str:
    """Return what ``how_installed`` says there; raises CalledProcessError where the interpreter does not run."""
    ask = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from benchmarks import timing; print(timing.how_installed())"
    done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.strip()


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


def launch_ratio(times: dict[str, Times], how: str | None = None) -> float:
    """Return the median over rounds of ddplaunch / torchrun: both of a round ran within seconds of each other."""
    pairs = zip(times[named(RUN, how)].seconds, times[named(TORCHRUN, how)].seconds, strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def judge(times: dict[str, Times], also: str | None = None) -> list[Target]:
    """Return every target with what was measured, of the environment ``also`` too."""
    probe = statistics.median(
        whole - torch for whole, torch in zip(times[DOCTOR].seconds, times[TORCH].seconds, strict=True)
    )
    return [
        *(
            Target(named("`run` until the first line / torchrun", how), launch_ratio(times, how), LAUNCH_MAX, "")
            for how in (None, *([also] if also else []))
        ),
        *(Target(f"`{name}`", times[name].median, ANSWER_MAX_S, " s") for name in (HELP, RUN_HELP, PLAN, DRY)),
        Target("`ddplaunch doctor` beyond `import torch`", probe, DOCTOR_MAX_S, " s"),
    ]


def report(measured: Measured) -> str:
    """Return all tables in Markdown."""
    about = "; ".join(f"{name} {value}" if name != "processor" else value for name, value in machine().items())
    lines = [
        "# Startup",
        "",
        f"{about}.",
        f"{measured.rounds} rounds of commands, {measured.launch_rounds} of launches, in turns, forwards and "
        f"backwards; other programs used {measured.others:.0%} of the CPUs before.",
        "",
        *launches_text(measured.launches),
        "",
        "Commands, wall time in seconds; both launches until the first line of a script that imports nothing.",
        "",
        "| command | median | quartiles |",
        "|---|---|---|",
    ]
    for name, taken in measured.times.items():
        low, high = taken.spread
        lines.append(f"| `{name}` | {taken.median:.3f} | {low:.3f} to {high:.3f} |")
    lines += ["", "| target | measured | at most | |", "|---|---|---|---|"]
    for target in measured.targets:
        verdict = "kept" if target.kept else "**missed**"
        lines.append(f"| {target.name} | {target.measured:.3f}{target.unit} | {target.most}{target.unit} | {verdict} |")
    importers = ", ".join(f"`{name}`" for name in measured.with_torch) or "none of them"
    lines += ["", f"Commands that import torch in their own process: {importers}.", ""]
    return "\n".join(lines)


def write(measured: Measured, text: str) -> None:
    """Write results/startup.json and startup.md, and the picture; what was added below by hand stays."""
    RESULTS.mkdir(exist_ok=True)
    launches = measured.launches
    value = {
        "machine": machine(),
        "others": round(measured.others, 3),
        "seconds": {name: _rounded(taken.seconds) for name, taken in measured.times.items()},
        "launches": {
            ranks: {
                name: {figure: _rounded(values) for figure, values in figures.items()}
                for name, figures in by_name.items()
            }
            for ranks, by_name in launches.taken.items()
        },
        "missing": launches.missing,
        "floor": _rounded(launches.floor),
        "targets": [
            {"name": each.name, "measured": round(each.measured, 4), "most": each.most, "kept": each.kept}
            for each in measured.targets
        ],
        "imports_torch": measured.with_torch,
    }
    (RESULTS / "startup.json").write_text(json.dumps(value) + "\n")
    page = RESULTS / "startup.md"
    _, heading, added = page.read_text().partition("\n## ") if page.exists() else ("", "", "")
    page.write_text(text + heading + added)
    plot.main()


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 4) for value in values]


if __name__ == "__main__":
    sys.exit(main())
