"""Every fault of the catalogue, for real: what is said of it, by whom, with which exit status, and what is left."""

from __future__ import annotations

import json
import socket
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.agent.guarded import until
from tests.agent.plugin_runs import DEADLINE_S, of_folder
from tests.faults.catalogue import ALL, ANY, INIT, Fault
from tests.hosts.launching import clean_environment, ddplaunch, run_to_end

pytestmark = pytest.mark.slow


def launch(fault: Fault, folder: Path) -> tuple[int | None, str]:
    """Run it to its end; return exit status and console."""
    (folder / "train.py").write_text((INIT if fault.init else "") + fault.body)
    words = [str(fault.nproc), "--device", "cpu", "--no-checks", *fault.options]
    command = [*fault.wrap, *ddplaunch("run", *words, "--", "train.py", *fault.args)]
    port = fault.holds_port
    held: AbstractContextManager[object] = socket.create_server(("0.0.0.0", port)) if port else nullcontext()
    with held:
        return run_to_end(command, folder, clean_environment(**fault.environment), DEADLINE_S)


def outcome(folder: Path) -> dict[str, Any]:
    (path,) = (folder / ".ddplaunch" / "latest").glob("**/outcome.json")
    value = json.loads(path.read_text())
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    "fault", [pytest.param(each, id=each.name, marks=[pytest.mark.root] if each.root else []) for each in ALL]
)
def test_fault(fault: Fault, tmp_path: Path) -> None:
    status, said = launch(fault, tmp_path)
    until(lambda: not of_folder(tmp_path), "2 s are promised; a busy machine takes longer to look")
    found = outcome(tmp_path)
    diagnosis = found["diagnosis"]
    assert diagnosis["code"] in fault.codes, said
    assert fault.rank in (diagnosis["rank"], ANY), said
    assert status in fault.statuses and found["exit_status"] == status, said
    assert f"error[{diagnosis['code']}]" in said and fault.says in said, said
    assert "ChildFailedError" not in said, said
    assert "Traceback (most recent call last)" not in said.partition("error[")[2], said
