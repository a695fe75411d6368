"""What people type to start N local ranks, with torchrun, its peers and ddplaunch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent
TORCHRUN, ACCELERATE, DEEPSPEED = "torchrun", "accelerate launch", "deepspeed"
COLD, WARM = "ddplaunch run --start cold", "ddplaunch run --start warm"
_PEERS = {ACCELERATE: "accelerate", DEEPSPEED: "deepspeed"}


@dataclass(frozen=True)
class Launcher:
    """One way to launch. ``words`` may hold ``{ranks}`` and ``{port}``; ``missing`` says why it cannot be measured.

    With fewer ranks than ``least`` it gives a script nothing to make a process group of.
    """

    name: str
    words: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None
    least: int = 1

    def argv(self, ranks: int, more: tuple[str, ...] = ()) -> list[str]:
        """Return the command line up to the script; ``more`` are further options of the launcher."""
        values = {"{ranks}": str(ranks), "{port}": str(free_port()) if "{port}" in self.words else ""}
        words = [values.get(word, word) for word in self.words]
        return words[:-1] + list(more) + words[-1:] if words[-1] == "--" else words + list(more)


def launchers(peers: Path | None) -> tuple[Launcher, ...]:
    """Return all ways; ``peers`` is the folder with the programs of accelerate and deepspeed.

    accelerate starts several local processes for ``--multi_gpu`` only, with a GPU or without; DeepSpeed takes the
    number of GPUs on trust, if told that its accelerator is the CPU.
    """
    common = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
    accelerate = ("launch", "--multi_gpu", "--num_processes", "{ranks}", *common, "--main_process_port", "{port}")
    return (
        Launcher(TORCHRUN, (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "{ranks}")),
        _peer(ACCELERATE, peers, accelerate, {}, 2),
        _peer(DEEPSPEED, peers, ("--num_gpus", "{ranks}", "--master_port", "{port}"), {"DS_ACCELERATOR": "cpu"}),
        *(
            Launcher(name, (str(BIN / "ddplaunch"), "run", "{ranks}", "--start", name.split()[-1], "--"))
            for name in (COLD, WARM)
        ),
    )


def _peer(
    name: str, folder: Path | None, words: tuple[str, ...], environ: Mapping[str, str], least: int = 1
) -> Launcher:
    program = (folder or BIN) / _PEERS[name]
    missing = None if program.is_file() else "not installed: `--install-peers DIR`, or `--peers-bin DIR`"
    return Launcher(name, (str(program), *words), environ, missing, least)


def install_peers(folder: Path) -> Path:
    """Put accelerate and deepspeed into an environment of their own, beside this one's torch; return its programs.

    Raises subprocess.CalledProcessError. DeepSpeed builds nothing without ``DS_BUILD_OPS``.
    """
    programs = folder / "bin"
    missing = [name for name in _PEERS.values() if not (programs / name).exists()]
    if missing:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        python = str(programs / "python")
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
        Path(site, "torch_beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [python, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
        environ = {**os.environ, "DS_BUILD_OPS": "0"}
        subprocess.run([*pip, "ninja", "py-cpuinfo", "setuptools", "wheel"], check=True)
        subprocess.run([*pip, *missing], check=True, env=environ)  # with what they need, unless it is beside
        # one that is installed beside is satisfied for pip, which then makes no program of it here
        subprocess.run([*pip, "--ignore-installed", "--no-deps", *missing], check=True, env=environ)
    return programs


def free_port() -> int:
    """Return a TCP port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
