"""``ddplaunch.launch`` in the cells of a real Jupyter kernel."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from tests.agent.guarded import ROOT, until
from tests.api.test_launch import WAITS

pytestmark = pytest.mark.slow
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
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches find the package, and torch is imported once for the ranks of each."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "ddplaunch.toml").write_text('start = "warm"\n')


STEPS = """
from ddplaunch import launch

def train(steps):
    import os, time
    for step in range(1, steps + 1):
        print(f"step {step}", flush=True)
        time.sleep(0.05)
    return os.environ["RANK"]

launch(train, nproc=2, args=[30], all_ranks=True)
"""


REFUSED = "launch('nowhere.py', nproc=2)"


def _interrupt(folder: Path, ranks: list[psutil.Process]) -> None:
    """Do what a notebook's stop button does, when both ranks run."""
    files = [folder / name for name in ("launcher", "rank-0", "rank-1")]
    until(lambda: all(each.exists() and each.read_text() for each in files), "both ranks run", DEADLINE_S / 2)
    kernel, *pids = (int(each.read_text()) for each in files)
    ranks += map(psutil.Process, pids)
    os.killpg(os.getpgid(kernel), signal.SIGINT)


def test_a_cell_shows_rank_0_and_ends_with_its_ranks_or_with_one_line(tmp_path: Path) -> None:
    found = notebook(STEPS, "import sys; 'torch' in sys.modules", REFUSED, WAITS)
    for cell in found.cells[2:]:
        cell.metadata["tags"] = ["raises-exception"]
    running, ranks = client(found, tmp_path), list[psutil.Process]()
    thread = threading.Thread(target=_interrupt, args=(tmp_path, ranks))
    thread.start()
    running.execute()
    thread.join()
    cell, after, refused, interrupted = found.cells
    assert said(cell, "stdout") == "".join(f"step {each}\n" for each in range(1, 31))
    assert "start warm" in said(cell, "stderr"), "a kernel's variables are no debugger's"
    assert cell.outputs[-1].data["text/plain"] == "['0', '1']"
    assert after.outputs[-1].data["text/plain"] == "False"  # nothing of CUDA can be touched without it
    assert refused.outputs[-1].traceback[0] == "LaunchRefused: `nowhere.py` does not exist", "none stands above it"
    assert [line[:7] for line in refused.outputs[-1].traceback[1:]] == ["  why: ", "  fix: "]
    assert said(refused, "stderr") == "nothing was launched\n", "what is wrong is said once"
    assert interrupted.outputs[-1].ename == "KeyboardInterrupt" and len(ranks) == 2
    assert not any(each.is_running() for each in ranks)


def test_the_notebook_of_examples(tmp_path: Path) -> None:
    found = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    client(found, tmp_path).execute()
    first, failure, script = (each for each in found.cells if each.cell_type == "code")
    assert said(first, "stdout").count("step ") == 5
    losses = json.loads(first.outputs[-1].data["text/plain"])
    assert len(losses) == 2 and all(0 < loss < 10 for loss in losses)
    assert "rank 1: KeyError: 'bird'" in said(failure, "stdout") and "KeyError('bird')" in said(failure, "stdout")
    assert said(script, "stdout") == "".join(f"epoch {each}: 4 samples per rank\n" for each in (1, 2, 3))
    assert script.outputs[-1].data["text/plain"] == "(0, {'epochs': 3.0})"


#: Has the options that the document passes.
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
for option in ("--batch-size", "--epochs"):
    parser.add_argument(option, type=int)
parser.parse_args()
"""


def test_the_blocks_of_the_document_run(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(SCRIPT)
    found = notebook(*re.findall(r"^```python\n(.*?)^```", document, re.DOTALL | re.MULTILINE))
    client(found, tmp_path).execute()
    script, failures, function = found.cells
    assert said(script, "stdout").splitlines()[-1].startswith("0 ")
    refused, failed = said(failures, "stdout").splitlines()
    assert refused.startswith("path-missing | ") or " | " in refused
    assert failed.startswith("2 ")
    assert said(function, "stdout").splitlines()[-1] == "10.5"
