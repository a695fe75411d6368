"""The end of a rank: what gloo's threads still do when the program is through."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch.agent.rank_site import taking_part
from ddplaunch.records.directory import ended_well
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
    environ |= taking_part(environ, stacks=True)
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environ, check=True, timeout=60)


def note_of(program: str, folder: Path) -> str | None:
    """Return what a rank that runs ``program`` notes at its end, None without a note."""
    environ = clean_environment()
    path = folder / "rank-0.through"
    environ |= taking_part(environ, ended=str(path))
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environ, check=False, timeout=60)
    return path.read_text() if path.exists() else None


def test_a_rank_notes_that_its_program_was_through(tmp_path: Path) -> None:
    assert note_of("print()", tmp_path) == "through"


@pytest.mark.parametrize("program", ["raise KeyError('bird')", "import os; os._exit(0)", "import os; os.abort()"])
def test_a_rank_that_did_not_come_to_its_end_leaves_no_note(tmp_path: Path, program: str) -> None:
    assert note_of(program, tmp_path) is None


def test_a_process_that_the_rank_forked_leaves_no_note(tmp_path: Path) -> None:
    assert note_of("import os\nif os.fork():\n    os.wait()\n    os._exit(0)\n", tmp_path) is None


@pytest.mark.parametrize(
    ("program", "note"),
    [
        ("print()", "through well"),
        ("import sys; sys.exit()", "through well"),
        ("import sys; sys.exit(0)", "through well"),
        ("import sys; sys.exit(3)", "through"),
        ("import sys; sys.exit('no data')", "through"),
        ("raise SystemExit(main())", "through"),
        ("def main(): return 0\nexit(main())", "through"),
        ("raise SystemExit(main() + 3)", "through"),
    ],
)
def test_a_rank_that_may_be_aborted_notes_whether_it_ended_well(tmp_path: Path, program: str, note: str) -> None:
    (tmp_path / "train.py").write_text(f"def main():\n    return 0\n{program}\n")
    environ, path = clean_environment(), tmp_path / "rank-0.through"
    environ |= taking_part(environ, ended=str(path), tolerated=True)
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environ, check=False, timeout=60)
    assert path.read_text() == note
    assert ended_well(path) == note.endswith("well")
    assert not ended_well(tmp_path / "rank-1.through"), "one that left no note"


ABORTS = """
import ctypes, os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
libc = ctypes.CDLL(None)
if dist.get_rank() == 1:
    libc.__cxa_atexit(libc.abort, None, None)
    if sys.argv[1] == "raise":
        raise KeyError("bird")
    if sys.argv[1] == "status":
        sys.exit(3)
if sys.argv[1] != "group":
    dist.destroy_process_group()
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["cold", "warm"])
@pytest.mark.parametrize(
    ("options", "how", "status", "said"),
    [
        (
            ["--tolerate-exit-aborts", "--max-restarts", "1"],
            "group",
            0,
            "warning[aborts-tolerated]: rank 1 was aborted",
        ),
        (["--tolerate-exit-aborts"], "status", 134, "`--tolerate-exit-aborts` excuses no program whose status"),
        (["--tolerate-exit-aborts"], "raise", 134, "KeyError"),
        ([], "destroyed", 134, "`--tolerate-exit-aborts`"),
    ],
)
def test_an_abort_behind_a_good_end_is_tolerated_where_that_was_asked_for(
    tmp_path: Path, start: str, options: list[str], how: str, status: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(ABORTS)
    words = ["run", "2", "--device", "cpu", "--run-id", "it", "--start", start, *options, "--", "train.py", how]
    command = [sys.executable, "-m", "ddplaunch", *words]
    environ = clean_environment(COLUMNS="120")
    run = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert run.returncode == status, run.stderr
    explained = subprocess.run(
        [sys.executable, "-m", "ddplaunch", "explain", "it"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert said in " ".join((run.stderr + explained.stdout).split())
    assert "--tolerate-exit-aborts`: the run goes on" not in explained.stdout or not options, "advice that was followed"
    if status == 0:
        assert "attempt 0" in run.stdout and "attempt 1" not in run.stdout, "nothing started again"
        outcome = json.loads((tmp_path / ".ddplaunch/runs/it/outcome.json").read_text())
        assert [each["through"] for each in outcome["attempts"][-1]["ranks"]] == [None, "excused"]
