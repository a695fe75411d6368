"""A launch from the last host of a lab over all others, and the programs that it runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.guarded import until
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.namespaces import Node
from tests.ssh.lab import Lab

DEADLINE_S = 300

#: Writes what this rank sees, without torch, whose import takes longer than all else.
SEES = """
import json, os, socket, sys
from pathlib import Path
saw = {"argv": sys.argv[1:], "host": socket.gethostname(), "cwd": os.getcwd(), **os.environ}
Path(f"saw-{os.environ['RANK']}.json").write_text(json.dumps(saw))
print("rank", os.environ["RANK"], "out", flush=True)
print("rank", os.environ["RANK"], "err", file=sys.stderr, flush=True)
"""
#: Sums over all ranks with gloo, then writes what this rank got.
TRAIN = """
import datetime, json, os
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
Path(f"saw-{dist.get_rank()}.json").write_text(json.dumps({"sum": total.item(), **os.environ}))
dist.destroy_process_group()
"""
#: Waits to be ended; says when it runs. Rank 0 leaves a child behind, which ignores SIGTERM, as DataLoader workers may.
WAIT = """
import os, subprocess, sys, time
from pathlib import Path
if os.environ["RANK"] == "1":
    subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
Path(f"ready-{os.environ['RANK']}").write_text(str(os.getpid()))
print("rank", os.environ["RANK"], "waits", flush=True)
time.sleep(600)
"""


def started_by(nsenter: subprocess.Popen[Any]) -> int:
    """Return the pid, seen from here, of what was started in other namespaces; its own where there is none."""
    found = subprocess.run(["pgrep", "-P", str(nsenter.pid)], capture_output=True, text=True, check=False)
    return int(next(iter(found.stdout.split()), nsenter.pid))


class Launched:
    """One launch on the login host, with stdout and stderr in files."""

    def __init__(self, made: Lab, run_id: str, *words: str, script: tuple[str, ...] = ("wait.py",), **env: str) -> None:
        self.lab, self.run_id = made, run_id
        self.out, self.err = made.folder / f"{run_id}.out", made.folder / f"{run_id}.err"
        hosts = () if "--hosts" in words else ("--hosts", made.names)
        grace = () if "--grace" in words else ("--grace", "5")  # which torchruns that wait for a lost one use up
        argv = ddplaunch("run", "--device", "cpu", *hosts, "--run-id", run_id, *grace, *words, "--", *script)
        for folder in (made.own(host) for host in made.hosts):
            for old in folder.glob("ready-*"):
                old.unlink()
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                made.login.command(argv, made.work), env=clean_environment(**env), stdout=out, stderr=err
            )

    def ready(self, rank: int, host: Node | None = None) -> int:
        """Wait until ``rank`` runs (one rank on each host, unless it is said where); return its pid on its host."""
        path = self.lab.own(host or self.lab.hosts[rank]) / f"ready-{rank}"
        self.until(lambda: path.exists() and path.read_text(), f"rank {rank} runs")
        return int(path.read_text())

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until ``condition()`` holds while the launch goes on; fail with all that was said if it never does."""
        held: list[bool] = []

        def holds() -> bool:
            held.append(bool(condition()))
            return held[-1] or self.process.poll() is not None

        until(holds, f"{what}: {self.said}", DEADLINE_S)
        assert held[-1] or condition(), f"{what}: {self.said}"

    def all_ready(self) -> None:
        for rank in range(len(self.lab.hosts)):
            self.ready(rank)

    @property
    def launcher(self) -> int:
        """The launcher's pid, seen from here: nsenter's child."""
        return started_by(self.process)

    def ended(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the end; return the exit status."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"not ended after {deadline_s} s: {self.said}")

    @property
    def said(self) -> str:
        return self.err.read_text(errors="backslashreplace")

    @property
    def flat(self) -> str:
        """What was said, without the line breaks of the wrapping."""
        return " ".join(self.said.split())

    @property
    def record(self) -> Path:
        return self.lab.work / ".ddplaunch" / "runs" / self.run_id

    @property
    def outcome(self) -> dict[str, Any]:
        value = json.loads((self.record / "outcome.json").read_text())
        assert isinstance(value, dict)
        return value


def dry_run(made: Lab, *words: str, status: int, size: str = "2x1", script: str = "train.py", **env: str) -> str:
    """Return what a launch over the hosts of the lab that starts nothing says, without the line breaks."""
    hosts = () if "--hosts" in words else ("--hosts", made.names)
    argv = ddplaunch("run", size, "--device", "cpu", *hosts, *words, "--dry-run", "--", script)
    done = made.login.run(argv, made.work, clean_environment(**env))
    assert done.returncode == status, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())
