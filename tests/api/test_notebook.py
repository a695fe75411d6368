"""``ddplaunch.launch`` in the cells of a real Jupyter kernel."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DEADLINE_S = 240


def notebook(*cells: str) -> Any:
    found = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    found.cells = [nbformat.v4.new_code_cell(each) for each in cells]  # type: ignore[no-untyped-call]
    return found


def client(found: Any, folder: Path) -> NotebookClient:
    return NotebookClient(
        found, timeout=DEADLINE_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )


def said(cell: Any, stream: str) -> str:
    return "".join(each.text for each in cell.outputs if each.output_type == "stream" and each.name == stream)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


STEPS = """
from ddplaunch.api.from_python import launch

def train(steps):
    import os, time
    for step in range(1, steps + 1):
        print(f"step {step}", flush=True)
        time.sleep(0.05)
    return os.environ["RANK"]

launch(train, nproc=2, args=[30], all_ranks=True)
"""


def test_a_cell_shows_rank_0_and_how_far_it_is(tmp_path: Path) -> None:
    found = notebook(STEPS, "import sys; 'torch' in sys.modules")
    client(found, tmp_path).execute()
    cell, after = found.cells
    assert said(cell, "stdout") == "".join(f"step {each}\n" for each in range(1, 31))
    (bar,) = (each for each in cell.outputs if each.output_type == "display_data")
    assert bar.data["text/plain"].startswith("ddplaunch 2")
    assert bar.data["text/plain"].endswith(" · step 30 · ended")
    assert cell.outputs[-1].data["text/plain"] == "['0', '1']"
    assert after.outputs[-1].data["text/plain"] == "False"  # nothing of CUDA can be touched without it


WAITS = """
import os
from ddplaunch.api.from_python import launch

def wait(folder):
    import time
    with open(f"{folder}/rank-{os.environ['RANK']}", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)

with open("kernel", "w") as file:
    file.write(str(os.getpid()))
launch(wait, nproc=2, args=["."], grace=1)
"""


def _interrupt(folder: Path, ranks: list[psutil.Process]) -> None:
    """Do what a notebook's stop button does, when both ranks run."""
    end = time.monotonic() + DEADLINE_S / 2
    files = [folder / "kernel", folder / "rank-0", folder / "rank-1"]
    while not all(each.exists() and each.read_text() for each in files):
        time.sleep(0.1)
        if time.monotonic() > end:
            return
    kernel, *pids = (int(each.read_text()) for each in files)
    ranks += map(psutil.Process, pids)
    os.killpg(os.getpgid(kernel), signal.SIGINT)


def test_an_interrupt_of_the_cell_ends_the_ranks(tmp_path: Path) -> None:
    found = notebook(WAITS)
    running, ranks = client(found, tmp_path), list[psutil.Process]()
    thread = threading.Thread(target=_interrupt, args=(tmp_path, ranks))
    thread.start()
    with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
        running.execute()
    thread.join()
    assert len(ranks) == 2
    assert not any(each.is_running() for each in ranks)


def test_a_refusal_is_read_in_the_traceback(tmp_path: Path) -> None:
    found = notebook("from ddplaunch.api.from_python import launch\nlaunch('nowhere.py', nproc=2)")
    with pytest.raises(CellExecutionError, match=r"`nowhere\.py` does not exist\n  why: .*\n  fix: correct the path"):
        client(found, tmp_path).execute()
