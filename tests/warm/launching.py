"""Starts torchrun with a plug-in that has nothing but the warm start, so that nothing else can be to blame."""

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
_PLUGIN = """
import os, sys
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

def counted(name, fork=os.fork):
    def forked():
        pid = fork()
        if pid:  # the count, and the moment, by which Python 3.12 and later warn
            threads = open("/proc/self/stat").read().rpartition(")")[2].split()[17]
            os.close(os.open(f"{name}/{os.getpid()}-{pid}-{threads}", os.O_CREAT))
        return pid
    return forked

class Warm(DefaultLogsSpecs):
    def __init__(self, *args, **kwargs):
        from ddplaunch.agent.warm.spares import prepare
        if "WARM_FORKS" in os.environ:
            os.fork = counted(os.environ["WARM_FORKS"])
        preload = [name for name in os.environ.get("WARM_PRELOAD", "").split(",") if name]
        say = lambda line: sys.stderr.write(f"ddplaunch: {line}\\n")
        self.spares = prepare(int(os.environ["WARM_RANKS"]), preload, say)
        super().__init__(*args, **kwargs)
"""


def plugin(folder: Path) -> Path:
    """Write an installed distribution with the entry point `warm-only` into ``folder``, to be put on PYTHONPATH."""
    facts = folder / "warm_only-0.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    (folder / "warm_only.py").write_text(_PLUGIN)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: warm-only\nVersion: 0\n")
    (facts / "entry_points.txt").write_text("[torchrun.logs_specs]\nwarm-only = warm_only:Warm\n")
    return folder


def torchrun(warm: bool, processes: int, *more: str, python: Sequence[str] = ("-u",)) -> list[str]:
    """Return the command line; ``more`` are torchrun's further options, then the script with its arguments."""
    return [
        sys.executable,
        *python,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={processes}",
        "--nnodes=1",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        f"--rdzv-id={uuid.uuid4()}",
        "--rdzv-conf=is_host=1",
        "--local-addr=localhost",
        *(["--logs-specs=warm-only"] if warm else []),
        *more,
    ]


def environment(plugin_folder: Path, **changes: str) -> dict[str, str]:
    """Return the environment of both ways: the plug-in at hand, two ranks of one thread each, no numpy warning.

    faulthandler is on, as `run` sets it; torchrun turns it on for itself and what it forks in any case.
    """
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PET_"))},
        "PYTHONPATH": f"{plugin_folder}{os.pathsep}{ROOT}",
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy:UserWarning",
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "WARM_RANKS": "2",
        **changes,
    }


def launch(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, at most 120 s, in a session of its own."""
    return subprocess.run(command, env=env, cwd=cwd, input=text, capture_output=True, text=True, timeout=120)
