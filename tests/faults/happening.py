"""Makes a fault of the catalogue happen: what is said of it, by whom, with which exit status, and what is left."""

from __future__ import annotations

import json
import socket
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tests.agent.guarded import until
from tests.agent.plugin_runs import DEADLINE_S, of_folder
from tests.faults.catalogue import ANY, INIT, Fault
from tests.hosts.launching import clean_environment, ddplaunch, run_to_end

#: In front of a command whose record is nevertheless for its owner alone.
ANY_UMASK = ("sh", "-c", 'umask 0; exec "$@"', "sh")


def launch(fault: Fault, folder: Path) -> tuple[int | None, str]:
    """Run it to its end; return exit status and console."""
    (folder / "train.py").write_text(INIT + fault.body)
    words = ddplaunch("run", "2", "--device", "cpu", "--no-checks", *fault.options, "--", "train.py")
    port = fault.holds_port
    held: AbstractContextManager[object] = socket.create_server(("0.0.0.0", port)) if port else nullcontext()
    with held:
        return run_to_end([*ANY_UMASK, *fault.wrap, *words], folder, clean_environment(**fault.environment), DEADLINE_S)


def outcome(folder: Path) -> dict[str, Any]:
    (path,) = (folder / ".ddplaunch" / "latest").glob("**/outcome.json")
    value = json.loads(path.read_text())
    assert isinstance(value, dict)
    return value


def happens(fault: Fault, folder: Path) -> None:
    """Make ``fault`` happen in ``folder``, and compare what is left with what is right."""
    status, said = launch(fault, folder)
    until(lambda: not of_folder(folder), "2 s are promised; a busy machine takes longer to look")
    found = outcome(folder)
    diagnosis = found["diagnosis"]
    assert diagnosis["code"] in fault.codes, said
    assert fault.rank in (diagnosis["rank"], ANY), said
    assert status in fault.statuses and found["exit_status"] == status, said
    assert f"error[{diagnosis['code']}]" in said and fault.says in said, said
    assert "ChildFailedError" not in said, said
    ours = [path for path in (folder / ".ddplaunch").rglob("*") if ".error.json" not in path.name]  # which torch writes
    assert {path.stat().st_mode & 0o777 for path in ours} == {0o600, 0o700}
    assert "Traceback (most recent call last)" not in said.partition("error[")[2], said
