"""How often a failure is named rightly: ``python -m benchmarks.fault_sets [NAME ...] [--only gpus ...] [--show]``.

Looked at are the code, the rank, the exit status, and whether the last screen (24 lines of 80 columns) holds the words
that somebody needs to mend it. The logs of all files are put to `explain`; ``--only launches`` starts each script with
two ranks and gloo, which takes long. The figures go to benchmarks/results/fault_sets.json and fault_sets.md;
``--show`` prints the last screens.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fault_sets import ANY, FILES, LAUNCHES, Fault, faults_of
from benchmarks.publishing import RESULTS, parser, publish
from ddplaunch.explain.diagnosis import LogSource
from ddplaunch.explain.explain_logs import explain_texts
from ddplaunch.values.codec import plain
from tests.faults.catalogue import INIT
from tests.hosts.launching import clean_environment, ddplaunch, run_to_end

DEADLINE_S, AT_ONCE, LINES, COLUMNS = 340, 2, 24, 80  # a FileStore tries for 300 s


@dataclass(frozen=True)
class Answer:
    """What was said of one fault; ``screen`` are the lines from the diagnosis on."""

    name: str
    code: str | None
    right: bool
    rank: bool
    status: bool
    helps: bool
    fits: bool
    screen: str = ""
    likely: bool = False

    @property
    def wrong(self) -> bool:
        """Whether a code was named, or that nothing failed, and that is not right."""
        return not self.right and self.code not in (None, "unknown")


def main() -> int:
    """Explain or launch, print, write; return the exit status."""
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="only these faults; nothing is written")
    options.add_argument("--only", nargs="+", choices=FILES, metavar="FILE", help=f"of {', '.join(FILES)} [all logs]")
    options.add_argument("--show", action="store_true", help="print the last screen of each")
    arguments = options.parse_args()
    path = RESULTS / "fault_sets.json"
    sums_of_file = json.loads(path.read_text()) if path.exists() else {}
    wrong = 0
    for file in arguments.only or [file for file in FILES if arguments.names or file != LAUNCHES]:
        faults = [fault for fault in faults_of(file) if not arguments.names or fault.name in arguments.names]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(answer, faults))
        for each in answers:
            marks = [name for name in ("right", "rank", "status", "helps", "fits") if not getattr(each, name)]
            if marks or arguments.names:
                print(f"{each.name}: {each.code}" + (f"; not {', '.join(marks)}" if marks else ""))
            if arguments.show:
                print(each.screen)
        wrong += sum(not each.right for each in answers)
        sums_of_file[file] = sums_of(answers)
    if not arguments.names:
        publish("fault_sets", report(sums_of_file), sums_of_file, write=not arguments.no_write)
    return int(arguments.check and wrong > 0)


def answer(fault: Fault) -> Answer:
    """Launch it in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        if fault.log:
            Path(folder, "train.log").write_text(fault.log, encoding="utf-8")
            found = explain_texts([LogSource("train.log", Path(folder, "train.log"))]).diagnosis
            words = ddplaunch("explain", "train.log")
            status, said = run_to_end(words, Path(folder), clean_environment(COLUMNS=str(COLUMNS)), DEADLINE_S)
            told = {"code": "none", "rank": ANY} if found is None else plain(found)
            return compared(fault, told, status or 0, said)
        for name, text in {**fault.files, "train.py": INIT + fault.body}.items():
            Path(folder, name).write_text(text)
        words = ddplaunch("run", "2", "--device", "cpu", "--no-checks", *fault.options, "--", "train.py", *fault.args)
        variables = clean_environment(COLUMNS=str(COLUMNS), PG_TIMEOUT=str(fault.timeout_s))
        status, said = run_to_end(words, Path(folder), variables, DEADLINE_S)
        if status is None:
            status, said = -signal.SIGKILL, f"{said}\nended after {DEADLINE_S} s"
        return judged(fault, Path(folder), status, said)


def judged(fault: Fault, folder: Path, status: int, said: str) -> Answer:
    """Return what is right in what was said."""
    found = None
    for path in (folder / ".ddplaunch" / "latest").glob("**/outcome.json"):
        found = json.loads(path.read_text())["diagnosis"]
    healthy = "none" in fault.codes and not status
    return compared(fault, found or {"code": "none" if healthy else None, "rank": None}, status, said)


def compared(fault: Fault, found: dict[str, Any], status: int, said: str) -> Answer:
    """Return what is right in the code and rank that were ``found``, and in what was said."""
    code, rank = found["code"], found["rank"]
    begin = 0 if fault.log else said.rfind("ddplaunch: ")
    screen = said[begin:].rstrip().splitlines()
    text = re.sub(r"\s+", " ", " ".join(screen[-LINES:]))
    words = [each.split("|") for each in fault.helps]
    return Answer(
        fault.name,
        code,
        code in fault.codes,
        fault.rank in (rank, ANY),
        fault.status in (status, ANY) or (fault.status == 1 and status == 134),  # gloo aborts an interpreter's end
        all(any(re.sub(r"\s+", " ", one) in text for one in some) for some in words),
        len(screen) <= LINES and max(map(len, screen), default=0) <= COLUMNS,
        "\n".join(screen),
        found.get("certainty") == "likely",
    )


def sums_of(answers: Sequence[Answer]) -> list[int]:
    """Return how many answers there are, and how many have each of the report's qualities."""
    return [
        len(answers),
        sum(answer.right for answer in answers),
        sum(answer.right and answer.likely for answer in answers),
        sum(answer.wrong and not answer.likely for answer in answers),
        sum(answer.wrong and answer.likely for answer in answers),
        sum(not answer.right and not answer.wrong for answer in answers),
        *(sum(getattr(answer, name) for answer in answers) for name in ("rank", "status", "helps", "fits")),
    ]


def report(values: dict[str, Sequence[int]]) -> str:
    """Return the figures as a table in Markdown."""
    head = (
        "| faults | number | right code | of them likely | confidently wrong | wrong, likely | unknown or none "
        "| rank | status | useful | fits 24x80 |"
    )
    lines = [head, "|---" * 11 + "|"]
    lines += [f"| {file} | {' | '.join(map(str, sums))} |" for file, sums in sorted(values.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
