"""Whether `scale` names a planted bottleneck, run after run: ``python -m benchmarks.planted``.

Six scripts with one fault each, and one without (``tests/cli/test_scale.py``), are measured in turns at whatever load
the machine has, which is told beside. Prints a table and writes benchmarks/results/planted.json and planted.md after
each round. With ``--check`` a bottleneck that was not named in every run is exit status 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.publishing import parser, publish
from benchmarks.timing import machine
from tests.cli.test_scale import CODES, PLANTED, SIZE_OF
from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch

DEADLINE_S = 300


def named(planted: str) -> str:
    """Return the code of the verdict on a script, "none" where nothing holds it back, or how `scale` failed."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").write_text(PLANTED)
        size = SIZE_OF.get(planted, "2")
        argv = ddplaunch("scale", size, *ANYWHERE, "--steps", "25", "--json", "--", "train.py", "--planted", planted)
        done = subprocess.run(
            argv, cwd=name, env=clean_environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        if done.returncode != 0:
            return f"exit status {done.returncode}"
        (one,) = json.loads(done.stdout)["sizes"]
        finding = one["verdict"]["finding"]
        return "none" if finding is None else str(finding["code"])


def table(found: dict[str, list[str]], loads: list[float]) -> str:
    """Return how often each was named, and what else was."""
    lines = [f"{', '.join(machine().values())}; load {min(loads):.0f} to {max(loads):.0f}", ""]
    lines += ["| planted | verdict wanted | named | instead |", "|---|---|---|---|"]
    for planted, answers in found.items():
        wanted = CODES[planted] or "none"
        others = ", ".join(sorted({each for each in answers if each != wanted}))
        lines.append(f"| {planted} | {wanted} | {answers.count(wanted)} of {len(answers)} | {others} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Measure and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=10)
    asked = arguments.parse_args()
    found: dict[str, list[str]] = {planted: [] for planted in CODES}
    loads = []
    for _ in range(asked.rounds):
        for planted, answers in found.items():
            loads.append(os.getloadavg()[0])
            answers.append(named(planted))
        value = {"named": found, "load": [min(loads), max(loads)]}
        publish("planted", table(found, loads), value, write=not asked.no_write)
    wrong = [each for planted, answers in found.items() for each in answers if each != (CODES[planted] or "none")]
    return int(asked.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
