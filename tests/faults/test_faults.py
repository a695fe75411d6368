"""Every fault of the catalogue, for real: what is said of it, by whom, with which exit status, and what is left."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.guarded import until
from tests.agent.plugin_runs import of_folder
from tests.faults.catalogue import ALL, ANY, INIT, Fault
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow
DEADLINE_S = 240


@contextmanager
def listener(port: int | None) -> Iterator[None]:
    """Hold ``port``, if there is one to hold."""
    if port is None:
        yield
        return
    with closing(socket.create_server(("0.0.0.0", port), reuse_port=False)):
        yield


def command(fault: Fault, folder: Path) -> list[str]:
    (folder / fault.script).write_text((INIT if fault.init else "") + fault.body)
    words = [str(fault.nproc), "--device", "cpu", "--no-checks", *fault.options]
    return [*fault.wrap, *ddplaunch("run", *words, "--", fault.script, *fault.args)]


def launch(fault: Fault, folder: Path) -> tuple[int, str]:
    """Run it to its end; return exit status and console."""
    environment = clean_environment(**fault.environment)
    with listener(fault.holds_port):
        process = subprocess.Popen(
            command(fault, folder),
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="backslashreplace",
        )
        assert process.stdout is not None
        end = threading.Timer(DEADLINE_S, process.kill)
        end.start()
        said = []
        for line in process.stdout:
            said.append(line)
            if fault.signals and line == "rank 0 is ready\n":
                for number in fault.signals:
                    process.send_signal(number)
                    time.sleep(0.3)
        status = process.wait()
        end.cancel()
    return status, "".join(said)


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
    assert status in fault.statuses, said
    if -signal.NSIG < status < 0:  # the launcher itself was killed: what the guard says comes later than its end
        assert found["state"] == "killed"
    else:
        assert found["exit_status"] == status
    wanted = "interrupted (exit status 130)" if status == 130 else f"error[{diagnosis['code']}]"
    assert wanted in said, said
    assert fault.says in said
    assert "ChildFailedError" not in said, said
    assert "Traceback (most recent call last)" not in said.partition("error[")[2], said
