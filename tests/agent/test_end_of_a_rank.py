"""The end of a rank: what gloo's threads still do when the program is through."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch.agent.rank_site import taking_part
from tests.hosts.launching import clean_environment

#: A thread that is named and busy as gloo's are, without the GIL, and needs it when it is through.
BUSY = """
import hashlib, sys, threading, time
sys.modules['torch._C._distributed_c10d'] = None
data = bytes(1 << 24)

def work():
    with open("/proc/thread-self/comm", "w") as file:
        file.write("pt_gloo_runloop")
    started.set()
    hashlib.sha256(data)
    with open("through", "w") as file:
        file.write("through")
    time.sleep(60)

started = threading.Event()
threading.Thread(target=work, daemon=True).start()
started.wait()
"""


def test_a_rank_ends_when_gloo_has_finished(tmp_path: Path) -> None:
    ran(BUSY, tmp_path)
    assert (tmp_path / "through").exists()


def test_a_thread_that_never_finishes_does_not_keep_the_rank(tmp_path: Path) -> None:
    ran(BUSY.replace("hashlib.sha256(data)", "while True: pass"), tmp_path)
    assert not (tmp_path / "through").exists()


def ran(program: str, folder: Path) -> None:
    """Run ``program`` as a rank that is looked at from inside, to its good end."""
    environ = clean_environment()
    environ |= taking_part(environ, DDPLAUNCH_STACKS="1")
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environ, check=True, timeout=60)


def note_of(program: str, folder: Path) -> str | None:
    """Return what a rank that runs ``program`` notes at its end, None without a note."""
    environ = clean_environment()
    path = folder / "rank-0.through"
    environ |= taking_part(environ, DDPLAUNCH_ENDED=path)
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environ, check=False, timeout=60)
    return path.read_text() if path.exists() else None


def test_a_rank_notes_that_its_program_was_through(tmp_path: Path) -> None:
    assert note_of("print()", tmp_path) == "through"


@pytest.mark.parametrize("program", ["raise KeyError('bird')", "import os; os._exit(0)", "import os; os.abort()"])
def test_a_rank_that_did_not_come_to_its_end_leaves_no_note(tmp_path: Path, program: str) -> None:
    assert note_of(program, tmp_path) is None


def test_a_process_that_the_rank_forked_leaves_no_note(tmp_path: Path) -> None:
    assert note_of("import os\nif os.fork():\n    os.wait()\n    os._exit(0)\n", tmp_path) is None


ABORTS = """
import ctypes
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
libc = ctypes.CDLL(None)
if dist.get_rank() == 1:
    libc.__cxa_atexit(libc.abort, None, None)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_an_abort_after_the_end_of_the_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ABORTS)
    words = ["run", "2", "--device", "cpu", "--run-id", "it", "--", "train.py"]
    command = [sys.executable, "-m", "ddplaunch", *words]
    run = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(COLUMNS="120"), capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 134 and "[aborted-at-exit]" in run.stderr, run.stderr
    outcome = json.loads((tmp_path / ".ddplaunch/runs/it/outcome.json").read_text())
    assert [each["through"] for each in outcome["attempts"][-1]["ranks"]] == [None, "through"]
