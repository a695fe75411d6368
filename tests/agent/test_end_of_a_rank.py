"""The end of a rank: what gloo's threads still do when the program is through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch.agent.rank_site import taking_part
from tests.agent.guarded import PATIENCE_S
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


def ran(program: str, folder: Path, status: int | None = 0, **looked_at: str) -> None:
    """Run ``program`` as a rank that is looked at from inside, to its end."""
    environ = clean_environment()
    environ |= taking_part(environ, **looked_at)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environ, timeout=PATIENCE_S)
    assert status is None or done.returncode == status


@pytest.mark.parametrize(
    ("work", "through"),
    [("hashlib.sha256(data)", True), ("sys.modules['sitecustomize']._PATIENCE_S = 0.2\n    while True: pass", False)],
)
def test_a_rank_ends_when_gloo_has_finished_and_waits_for_no_thread_that_never_does(
    tmp_path: Path, work: str, through: bool
) -> None:
    ran(BUSY.replace("hashlib.sha256(data)", work), tmp_path, DDPLAUNCH_STACKS="1")
    assert (tmp_path / "through").exists() is through


@pytest.mark.parametrize(
    ("program", "note"),
    [
        ("print()", "through"),
        ("raise KeyError('bird')", None),
        ("import os; os._exit(0)", None),
        ("import os; os.abort()", None),
        ("import os\nif os.fork():\n    os.wait()\n    os._exit(0)\n", None),  # the child's end is not the rank's
    ],
)
def test_a_rank_notes_that_its_program_was_through(tmp_path: Path, program: str, note: str | None) -> None:
    path = tmp_path / "rank-0.through"
    ran(program, tmp_path, None, DDPLAUNCH_ENDED=str(path))
    assert (path.read_text() if path.exists() else None) == note
