"""Twenty real launches and the quick tests with several Pythons and torches, each pair in an environment of its own.

    python -m benchmarks.matrix [PYTHON:TORCH ...] [--index URL] [--folder DIR] [--no-tests]
    python -m benchmarks.matrix --without-torch

A PYTHON is a version, which uv finds or fetches, or the path of an interpreter; `newest` is a TORCH too. ``--index`` is
where torch comes from, https://download.pytorch.org/whl/cpu for instance. The table goes to
benchmarks/results/matrix.md. ``--without-torch`` tries what needs no torch, with every other Python of this machine,
and writes nothing; the first of them gets the oldest dependencies that are declared. The exit status is 1 if anything
failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts.launching import clean_environment
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent
PAIRS = ("3.10:2.4.0", "3.12:2.6.0", "3.13:2.8.0", "3.14:newest")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
DEADLINE_S, TESTS_DEADLINE_S = 150, 900
TOOLS = ("pytest>=8", "pytest-timeout", "pytest-xdist", "hypothesis")
WITHOUT_TORCH = ("tests/values", "tests/scaling", "tests/script")
#: What uses the declared dependencies; tried with the oldest ones that pyproject.toml allows.
WITH_OLDEST = ("tests/cli/test_parsers.py", "tests/machine", "tests/ui", "tests/planning/test_convert_scripts.py")

#: What a rank does is the first argument; it fails in the first attempt only.
SCRIPT = """
import os, signal, sys, time
import torch.distributed as dist
what, first = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
dist.barrier()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
if first and dist.get_rank() == 1:
    if what == "exit":
        os._exit(42)
    if what == "raise":
        raise ValueError("no such pet")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(1000)
if what == "sleep":
    time.sleep(1000)
dist.barrier()
print("trained", flush=True)
os._exit(0)
"""


def path_of(python: Path) -> str:
    """Return PATH with the environment's programs first: another's torchrun in front is a finding of its own."""
    return os.pathsep.join((str(python.parent), os.environ.get("PATH", os.defpath)))


@dataclass
class Place:
    """A folder for launches and the ddplaunch of one environment."""

    folder: Path
    python: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``ddplaunch WORDS``; its output is one text."""
        command = [str(self.python), "-m", "ddplaunch", *words]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=clean_environment(COLUMNS="200", PATH=path_of(self.python)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def ends(self, process: subprocess.Popen[str], status: int, *says: str) -> str | None:
        """Return None if it ends with the status and has said all of it, else what was wrong."""
        try:
            said, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            return f"did not end within {DEADLINE_S} s"
        if process.returncode != status:
            return f"status {process.returncode} instead of {status}: {said[-300:]!r}"
        missing = [each for each in says if each not in said]
        return f"has not said {missing[0]!r}: {said[-300:]!r}" if missing else None

    def run(
        self, *options: str, script: Sequence[str] = ("train",), status: int = 0, says: Sequence[str] = ()
    ) -> str | None:
        """Launch two ranks and wait; return what was wrong."""
        words = ("run", "2", "--device", "cpu", *options, "--", "train.py", *script)
        return self.ends(self.start(*words), status, *says)

    def until_recorded(self, text: str) -> None:
        """Wait until rank 0 of the youngest run has written ``text``; the launch is looked at later anyway."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            records = sorted((self.folder / ".ddplaunch" / "runs").glob("*/node-0/attempt-0/rank-0.out"))
            if records and text in records[-1].read_text(errors="replace"):
                return
            time.sleep(0.2)


def _while_it_sleeps(*command: str, status: int, says: str) -> Callable[[Place], str | None]:
    def launch(place: Place) -> str | None:
        running = place.start("run", "2", "--device", "cpu", "--stacks", "--grace", "5", "--", "train.py", "sleep")
        place.until_recorded("rank 0 of 2")
        told = place.ends(place.start(*command), 0, says)
        if command[0] != "stop":
            running.terminate()
        return told or place.ends(running, status)

    return launch


def _two_nodes(place: Place) -> str | None:
    port = str(free_port())
    words = ("run", "1", "--device", "cpu", "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port)
    here = ("--ignore", "host-name-loopback,master-addr-is-loopback-for-several-nodes")
    nodes = [place.start(*words, *here, "--node-rank", rank, "--", "train.py", "train") for rank in ("0", "1")]
    ends = [place.ends(each, 0) for each in nodes]
    return next((each for each in ends if each), None)


def _pasted(place: Place) -> str | None:
    options = ("--device", "cpu", "--no-capture", "--dry-run")
    shown = subprocess.run(
        [place.python, "-m", "ddplaunch", "run", "2", *options, "--", "train.py", "train"],
        cwd=place.folder,
        env=clean_environment(),
        capture_output=True,  # a warning is no part of what one pastes
        text=True,
        timeout=DEADLINE_S,
    )
    (place.folder / "pasted.sh").write_text(shown.stdout)
    pasted = subprocess.run(
        ["sh", "pasted.sh"],
        cwd=place.folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return None if pasted.stdout.count("trained") == 2 else f"status {pasted.returncode}: {pasted.stderr[-300:]!r}"


def _explained(place: Place) -> str | None:
    return place.run(script=("raise",), status=1) or place.ends(place.start("explain"), 1, "no such pet")


Launch = Callable[[Place], "str | None"]
LAUNCHES: dict[str, Launch] = {
    "cold": lambda at: at.run(says=["trained", "done"]),
    "warm": lambda at: at.run("--start", "warm", says=["trained", "done"]),
    "exit 42, cold": lambda at: at.run(script=["exit"], status=42, says=["rank 1"]),
    "exit 42, warm": lambda at: at.run("--start", "warm", script=["exit"], status=42, says=["rank 1"]),
    "exception, cold": lambda at: at.run(script=["raise"], status=1, says=["script-exception", "no such pet"]),
    "exception, warm": lambda at: at.run("--start", "warm", script=["raise"], status=1, says=["no such pet"]),
    "SIGKILL, cold": lambda at: at.run(script=["kill"], status=137, says=["SIGKILL"]),
    "SIGKILL, warm": lambda at: at.run("--start", "warm", script=["kill"], status=137, says=["SIGKILL"]),
    "restart, cold": lambda at: at.run("--max-restarts", "1", script=["exit"], says=["trained", "2 attempts"]),
    "restart, warm": lambda at: at.run("--max-restarts", "1", "--start", "warm", script=["exit"], says=["2 attempts"]),
    "--no-capture": lambda at: at.run("--no-capture", says=["trained"]),
    "--no-capture, exit 42": lambda at: at.run("--no-capture", script=["exit"], status=1),
    "stacks": _while_it_sleeps("stacks", status=143, says="train.py"),
    "stop": _while_it_sleeps("stop", status=143, says=""),
    "hang reported": lambda at: at.run(
        "--hang-timeout", "5", "--on-hang", "stop", script=["hang"], status=124, says=["train.py"]
    ),
    "two nodes": _two_nodes,
    "pasted --dry-run": _pasted,
    "explain": _explained,
    "--phases": lambda at: at.run("--phases", says=["trained"]),
    "--timeout": lambda at: at.run("--timeout", "8s", script=["sleep"], status=124),
}


def uv(*words: str | Path) -> str:
    """Run uv; raises SystemExit with what it said if it fails."""
    command = [sys.executable, "-m", "uv", *map(str, words)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TESTS_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"uv {' '.join(map(str, words))}: not done within {TESTS_DEADLINE_S} s") from None
    if done.returncode:
        raise SystemExit(f"uv {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout.strip()


def interpreter(wanted: str) -> str:
    """Return the path of a Python where uv or pyenv has one, else the version, which uv may be able to fetch."""
    homes = sorted(
        (Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions").glob(f"{wanted}.*/bin/python")
    )
    found = shutil.which(f"python{wanted}")
    works = found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    return str(homes[-1]) if homes else str(found) if works else wanted


def environment(folder: Path, python: str, torch: str, index: str | None) -> Path:
    """Make the environment of a pair, with the checkout; return its interpreter."""
    uv("venv", "-q", "--clear", "-p", interpreter(python), folder)
    there = folder / "bin" / "python"
    wanted = "torch" if torch == "newest" else f"torch=={torch}"
    uv("pip", "install", "-q", "-p", there, wanted, *(("--index-url", index) if index else ()))
    uv("pip", "install", "-q", "-p", there, "-e", f"{ROOT}[dev]")
    return there


def tests(python: Path, *words: str) -> str:
    """Return the last line of pytest's quick tier with this interpreter."""
    command = [
        str(python),
        "-m",
        "pytest",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-m",
        "not slow",
        "-p",
        "no:warnings",
        "-p",
        "no:cacheprovider",  # the tests of `.ci/run`, beside which this may run, have theirs there
    ]
    try:
        done = subprocess.run(
            [*command, *words],
            cwd=ROOT,
            env=clean_environment(PATH=path_of(python)),
            capture_output=True,
            text=True,
            timeout=TESTS_DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return f"failed: not done within {TESTS_DEADLINE_S} s"
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"  {line[:200]}", flush=True)
    last = (done.stdout.strip().splitlines() or [done.stderr[-200:]])[-1]
    return re.sub(r" in [\d.]+s.*", "", last.strip("= ")) if done.returncode == 0 else f"failed: {last}"


def smoke(python: Path) -> dict[str, str | None]:
    """Return what was wrong with each launch, None for one that was right."""
    found: dict[str, str | None] = {}
    for name, launch in LAUNCHES.items():
        with tempfile.TemporaryDirectory(prefix="ddplaunch-matrix-") as folder:
            place = Place(Path(folder), python)
            (place.folder / "train.py").write_text(SCRIPT)
            found[name] = launch(place)
            for each in place.started:
                if each.poll() is None:
                    each.kill()
        print(f"  {name}: {found[name] or 'ok'}", flush=True)
    return found


def without_torch() -> int:
    """Try what needs no torch with every other Python that is here; return how many of them failed."""
    failed = 0
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    here = {each: interpreter(each) for each in PYTHONS if each != own and interpreter(each) != each}
    if not here:
        print("no other Python on this machine: nothing tried")
    for version, python in here.items():
        with tempfile.TemporaryDirectory(prefix="ddplaunch-matrix-") as folder:
            uv("venv", "-q", "-p", python, f"{folder}/env")
            there = Path(folder, "env", "bin", "python")
            text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [")[2]
            needed = [
                each
                for each in re.findall(r'^ +"([^"]*)",', text.partition("\n]")[0], re.MULTILINE)
                if "torch" not in each
            ]
            oldest = version == next(iter(here))
            resolution = ("--resolution", "lowest-direct") if oldest else ()
            try:
                uv("pip", "install", "-q", "-p", there, *resolution, *needed)
                uv("pip", "install", "-q", "-p", there, *TOOLS)
            except SystemExit as impossible:
                print(f"Python {version} without torch: not tried, {str(impossible).splitlines()[-1]}", flush=True)
                continue
            next(Path(folder, "env", "lib").glob("python*/site-packages")).joinpath("checkout.pth").write_text(
                f"{ROOT}\n"
            )
            place = Place(Path(folder), there)
            (place.folder / "train.py").write_text("import torch\n")
            refused = place.ends(place.start("run", "2", "--device", "cpu", "--", "train.py"), 4, "torch-missing")
            said = tests(there, *WITHOUT_TORCH, *(WITH_OLDEST if oldest else ()))
            failed += bool(refused) or said.startswith("failed")
            told = f"Python {version} without torch{', oldest dependencies' if oldest else ''}"
            print(f"{told}: run: {refused or 'refused with torch-missing'}; tests: {said}", flush=True)
    return failed


def write_table(columns: Sequence[str], rows: dict[str, list[str]], wrong: Sequence[str]) -> None:
    """Write what is known so far to benchmarks/results/matrix.md."""
    lines = [
        "# Pythons and torches",
        "",
        "`python -m benchmarks.matrix`: real launches with two ranks on the CPU, and the quick tests.",
        "",
    ]
    lines += ["| launch | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()]
    lines += ["", *(f"- {each}" for each in wrong)] if wrong else []
    (ROOT / "benchmarks" / "results" / "matrix.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Try the pairs and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", default=list(PAIRS))
    parser.add_argument("--index")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--without-torch", action="store_true")
    said = parser.parse_args()
    if said.without_torch:
        return min(1, without_torch())
    columns: list[str] = []
    rows: dict[str, list[str]] = {name: [] for name in (*LAUNCHES, "quick tests", "minutes")}
    wrong: list[str] = []
    for pair in said.pairs:
        version, _, torch = pair.partition(":")
        began_s = time.monotonic()
        folder = said.folder or Path(tempfile.mkdtemp(prefix="ddplaunch-matrix-"))
        try:
            print(pair, flush=True)
            python = environment(folder / re.sub(r"\W+", "-", pair), version, torch, said.index)
            facts = "import platform, torch; print(platform.python_version(), torch.__version__)"
            ran = subprocess.run([str(python), "-W", "ignore", "-c", facts], capture_output=True, text=True, check=True)
            columns.append("Python {}, torch {}".format(*ran.stdout.split()))
            for name, fault in smoke(python).items():
                rows[name].append("wrong" if fault else "ok")
                wrong += [f"{pair}, {name}: {fault}"] if fault else []
            told = "not run" if said.no_tests else tests(python)
            rows["quick tests"].append(told)
            wrong += [f"{pair}, quick tests: {told}"] if told.startswith("failed") else []
            rows["minutes"].append(f"{(time.monotonic() - began_s) / 60:.1f}")
        except (SystemExit, subprocess.CalledProcessError) as impossible:
            wrong.append(f"{pair} could not be tried: {str(impossible).strip().splitlines()[-1]}")
        finally:
            write_table(columns, rows, wrong)
            if said.folder is None:
                shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(wrong) or "all right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
