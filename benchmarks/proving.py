"""Whether `prove` finds planted mistakes and stays silent on right scripts: ``python -m benchmarks.proving [NAMES]``.

Each case is one of a few scripts (``proving_scripts``) with changes. Ranks and the one process are forked from this
process, which has imported torch, and recorded and judged by `prove`'s own code; a case takes a second or two, where
the command would start torchrun three times. Prints a line for each answer that is not the wanted one, and a table;
writes benchmarks/results/proving.json and proving.md. Accelerate, transformers and Lightning have to be installed for
their cases. ``--others`` takes the scripts of ``proving_others.tar.xz`` instead, which somebody wrote who had not seen
`prove`; its ``truth.tsv`` says in words what is wrong in each, so that any finding counts as found. ``--blind`` takes
those of ``proving_blind.tar.xz``: 19 of 72 that another author wrote later, who had not seen it either. At first sight,
by the command with ``--device cpu``, 26 of 36 mistakes were found, and nothing was said of 36 right scripts. The 19 are
the ten missed mistakes, three whose finding was read twice, and right ones that look like them. Nothing is written for
these.
``--times`` measures instead what the command costs beside a plain run of the same steps: results/proving_times.md.
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from benchmarks.proving_scripts import CASES, SCRIPTS, Case
from benchmarks.publishing import parser, publish
from benchmarks.timing import machine
from ddplaunch.prove.claims import Claim
from ddplaunch.prove.in_rank import RANKS, VARIABLE, begin
from ddplaunch.prove.proof import ALONE, claims_of
from ddplaunch.prove.recording import Recorded, read_recording
from ddplaunch.values.finding import Severity

STEPS = 6
GPUS = 4  # for which the CPU stands in; no case has more ranks
DEADLINE_S = 600.0
#: Codes of a case for which any finding counts.
ANY = frozenset({"any"})
_FRAMEWORKS = ("accelerate", "transformers", "lightning")  # imported once, if a case needs them


def _port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _rank(script: Path, variables: Mapping[str, str], log: Path) -> int:
    """Be one rank: run the script, and return its exit status."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(variables)
    os.chdir(script.parent)
    sys.argv = [script.name]
    sys.path.insert(0, str(script.parent))
    try:
        begin()
        runpy.run_path(script.name, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def record(folder: Path, script: Path, name: str, ranks: int) -> Recorded:
    """Run the script as that many ranks; return what they recorded. A recording that exists is not made again."""
    if (folder / name).exists():
        return read_recording(folder / name)
    (folder / name).mkdir()
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_port()),
        "TORCHELASTIC_RUN_ID": "proving",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        VARIABLE: f"{STEPS}:{GPUS}:{folder / name}",
    }
    children: dict[int, int | None] = {}
    for rank in range(ranks):
        if not (pid := os.fork()):
            variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            os._exit(_rank(script, variables, folder / f"{name}-{rank}.log"))
        children[pid] = None
    end_s = time.monotonic() + DEADLINE_S
    while None in children.values():
        for pid in [pid for pid, status in children.items() if status is None]:
            found, status = os.waitpid(pid, os.WNOHANG)
            children[pid] = os.waitstatus_to_exitcode(status) if found else None
            if children[pid]:
                end_s = min(end_s, time.monotonic() + 5)  # the others wait for it
        if time.monotonic() > end_s:
            for pid in [pid for pid, status in children.items() if status is None]:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return read_recording(folder / name)


def prove(script: Path, ranks: int) -> tuple[list[Claim], str]:
    """Return all claims about a script, and why there are none."""
    folder = script.parent / "recorded"
    folder.mkdir(exist_ok=True)
    recorded = {RANKS: record(folder, script, RANKS, ranks)}
    log = (folder / f"{RANKS}-0.log").read_text()[-1500:]
    if not recorded[RANKS].steps():
        return [], log
    recorded[ALONE] = record(folder, script, ALONE, 1)
    log += (folder / f"{ALONE}-0.log").read_text()[-1500:]
    return [*claims_of(recorded)], log


def judged(case: Case, folder: Path) -> tuple[str, list[Claim], str]:
    """Return "found", "missed", "silent", "false error" or "false note" for a case, its claims, and its log."""
    script = folder / re.sub(r"\W+", "-", case.name) / "train.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(case.text)
    claims, log = prove(script, case.ranks)
    findings = [claim.finding for claim in claims if claim.finding is not None]
    if not claims:
        return "not run", claims, log
    if case.codes:
        named = case.codes == ANY or {one.code for one in findings} & case.codes
        return "found" if findings and named else "missed", claims, log
    errors = any(one.severity is Severity.ERROR for one in findings)
    return "false error" if errors else "false note" if findings else "silent", claims, log


def archived(name: str) -> list[Case]:
    """Return the cases of an archive in this folder, planted mistakes first."""
    with tarfile.open(Path(__file__).with_name(name)) as archive:
        texts = {name: file.read().decode() for name in archive.getnames() if (file := archive.extractfile(name))}
    rows = [line.split("\t") for line in texts["truth.tsv"].splitlines()[1:]]
    return [
        Case(f"{kind}: {name}", texts[f"{kind}/{name}.py"], ANY if kind == "planted" else frozenset(), int(ranks))
        for name, kind, *_, ranks in rows
    ]


def table(answers: Mapping[str, str]) -> str:
    """Return how many cases had each answer, and the names of those that did not have the wanted one."""
    counts = Counter(answers.values())
    lines = [f"{', '.join(machine().values())}; {STEPS} steps of each case", "", "| answer | cases |", "|---|---|"]
    lines += [f"| {answer} | {number} |" for answer, number in sorted(counts.items())]
    lines += ["", *(f"- {answer}: {name}" for name, answer in answers.items() if answer not in ("found", "silent"))]
    return "\n".join([*lines, ""])


#: Ends a script at the start of its first step, or after the last of some steps.
_ENDING = """
import os as _os, torch.optim.optimizer as _optimizer
_left = [None] * max({steps}, 1)
def _end(*_):
    _left.pop()
    if not _left:
        _os._exit(0)
_optimizer.register_optimizer_step_{when}_hook(_end)
"""
_TIMED = ("ddp", "gpt", "trainer")
_ROUNDS = 3


def _cpu_s(script: Path, text: str, *command: str) -> float:
    """Return the CPU time of a command and all its processes, in seconds; raises CalledProcessError."""
    script.write_text(text)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-m", *command, script.name]
    subprocess.run(argv, cwd=script.parent, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def times() -> tuple[str, dict[str, dict[str, float]]]:
    """Return a table of CPU time: of a start, of a plain run of the same steps, of `prove`; and the numbers."""
    plain = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    proving = ("ddplaunch", "prove", "2", "--device", "cpu", "--ignore", "cpus-short", "--steps", str(STEPS), "--")
    rows = {}
    for name in _TIMED:
        text = SCRIPTS[name]
        start, run = (_ENDING.format(steps=steps, when=when) + text for steps, when in ((0, "pre"), (STEPS, "post")))
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            rounds = [
                (_cpu_s(script, start, *plain), _cpu_s(script, run, *plain), _cpu_s(script, text, *proving))
                for _ in range(_ROUNDS)
            ]
        rows[name] = dict(zip(("start", "plain", "prove"), map(median, zip(*rounds, strict=True)), strict=True))
    lines = [
        f"{', '.join(machine().values())}; CPU time of 2 ranks, {STEPS} steps, median of {_ROUNDS}",
        "",
        "| script | start | plain run | `prove` | times the plain run | of 4 plain runs and 2 starts |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        most_s = 4 * row["plain"] + 2 * row["start"]
        measured = " | ".join(f"{seconds:.1f} s" for seconds in row.values())
        lines.append(f"| {name} | {measured} | {row['prove'] / row['plain']:.1f} | {row['prove'] / most_s:.0%} |")
    return "\n".join([*lines, ""]), rows


def main() -> int:
    """Run the cases."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", help="parts of names")
    arguments.add_argument("--show", action="store_true", help="show every claim")
    arguments.add_argument("--recorded", type=Path, help="keep recordings there; judge those that are there again")
    arguments.add_argument("--others", action="store_true", help="the scripts of somebody who had not seen it")
    arguments.add_argument("--blind", action="store_true", help="19 later scripts of somebody who had not seen it")
    arguments.add_argument("--times", action="store_true", help="what the command costs, beside a plain run")
    asked = arguments.parse_args()
    if asked.times:
        publish("proving_times", *times(), write=not asked.no_write)
        return 0
    archive = "proving_others.tar.xz" if asked.others else "proving_blind.tar.xz" if asked.blind else ""
    every = archived(archive) if archive else CASES
    cases = [case for case in every if not asked.names or any(name in case.name for name in asked.names)]
    frameworks = (name for name in _FRAMEWORKS if any(name in case.text for case in cases))
    for module in ("torch.distributed", "torch.utils.data", "torch._dynamo", "torch.optim", "numpy", *frameworks):
        try:
            importlib.import_module(module)
        except ImportError:
            print(f"{module} is not installed")
    answers: dict[str, str] = {}
    made = tempfile.TemporaryDirectory(prefix="proving-")
    folder = asked.recorded or Path(made.name)
    for case in cases:
        began_s = time.monotonic()
        answer, claims, log = judged(case, folder)
        answers[case.name] = answer
        print(f"{answer:12} {case.name} ({time.monotonic() - began_s:.1f} s)", flush=True)
        if asked.show or answer not in ("found", "silent"):
            print(*(f"    {claim.verdict} {claim.subject}: {claim.text}" for claim in claims), sep="\n")
            if not claims or asked.show:
                print(log)
    made.cleanup()
    publish("proving", table(answers), Counter(answers.values()), write=not (asked.no_write or asked.names or archive))
    return int(asked.check and bool({*answers.values()} - {"found", "silent"}))


if __name__ == "__main__":
    sys.exit(main())
