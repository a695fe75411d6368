"""Every fault of ranks, of what they read, of memory, ports and the network, and ranks that print little, for real.

What is said of it, by whom, with which exit status, and what is left.
"""

from __future__ import annotations

import json
import socket
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.agent.guarded import until
from tests.agent.plugin_runs import DEADLINE_S, of_folder
from tests.faults.catalogue import ANY, FAULTS, INIT, Fault
from tests.hosts.launching import clean_environment, ddplaunch, run_to_end

pytestmark = pytest.mark.slow

#: In front of a command whose record is nevertheless for its owner alone.
ANY_UMASK = ("sh", "-c", 'umask 0; exec "$@"', "sh")


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault.name, marks=[pytest.mark.root] if fault.root else []) for fault in FAULTS]
)
def test_fault(fault: Fault, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INIT + fault.body)
    words = ddplaunch("run", "2", "--device", "cpu", "--no-checks", *fault.options, "--", "train.py")
    port = fault.holds_port
    held: AbstractContextManager[object] = socket.create_server(("0.0.0.0", port)) if port else nullcontext()
    environment = clean_environment(**fault.environment)
    with held:
        status, said = run_to_end([*ANY_UMASK, *fault.wrap, *words], tmp_path, environment, DEADLINE_S)
    until(lambda: not of_folder(tmp_path), "2 s are promised; a busy machine takes longer to look")
    (path,) = (tmp_path / ".ddplaunch" / "latest").glob("**/outcome.json")
    outcome = json.loads(path.read_text())
    diagnosis = outcome["diagnosis"]
    assert diagnosis["code"] in fault.codes, said
    assert fault.rank in (diagnosis["rank"], ANY), said
    assert status in fault.statuses and outcome["exit_status"] == status, said
    assert f"error[{diagnosis['code']}]" in said and fault.says in said, said
    assert "ChildFailedError" not in said, said
    ours = [
        path for path in (tmp_path / ".ddplaunch").rglob("*") if ".error.json" not in path.name
    ]  # which torch writes
    assert {path.stat().st_mode & 0o777 for path in ours} == {0o600, 0o700}
    assert "Traceback (most recent call last)" not in said.partition("error[")[2], said
