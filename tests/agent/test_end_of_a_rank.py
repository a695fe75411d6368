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
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environ, check=True, timeout=PATIENCE_S)


def note_of(program: str, folder: Path) -> str | None:
    """Return what a rank that runs ``program`` notes at its end, None without a note."""
    environ = clean_environment()
    path = folder / "rank-0.through"
    environ |= taking_part(environ, DDPLAUNCH_ENDED=path)
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environ, check=False, timeout=PATIENCE_S)
    return path.read_text() if path.exists() else None


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
    assert note_of(program, tmp_path) == note
