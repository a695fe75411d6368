"""Many launches at once on one machine, with real torchrun and without a port being named: none is in another's way."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch, write_script

LAUNCHES = 8
DEADLINE_S = 420

#: One rank. It waits until every launch has a rank alive, so that all rendezvous stores are open at the same time.
MEET = """
import json, os, sys, time
from pathlib import Path

out, count, deadline_s = Path(os.environ["OUT"]), int(sys.argv[1]), float(sys.argv[2])
plan = json.loads(os.environ["DDPLAUNCH_PLAN"])
(out / plan["run_id"]).write_text(os.environ["MASTER_PORT"])
end = time.monotonic() + deadline_s
while len(list(out.iterdir())) < count:
    if time.monotonic() > end:
        raise SystemExit("the other launches did not come")
    time.sleep(0.5)
"""


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 60)
def test_launches_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_script(tmp_path / "meet.py", MEET.splitlines())
    argv = ddplaunch("run", "1", "--device", "cpu", "--", "meet.py", str(LAUNCHES), str(DEADLINE_S))
    nicely = ["nice", "-n", "15", *argv]  # other tests that run meanwhile have deadlines too
    running = []
    try:
        for number in range(LAUNCHES):
            with (tmp_path / f"said-{number}").open("wb") as said:
                environment = clean_environment(OUT=str(out))
                running.append(
                    subprocess.Popen(nicely, cwd=tmp_path, env=environment, stdout=said, stderr=subprocess.STDOUT)
                )
        end = time.monotonic() + DEADLINE_S
        statuses = [process.wait(timeout=max(1.0, end - time.monotonic())) for process in running]
    finally:
        for process in running:
            process.terminate()  # torchrun takes its rank along; SIGKILL would leave it behind
    failed = [(tmp_path / f"said-{number}").read_text() for number, status in enumerate(statuses) if status != 0]
    assert not failed, f"{len(failed)} of {LAUNCHES} failed, the first one:\n{failed[0]}"

    ports = {path.name: path.read_text() for path in out.iterdir()}
    assert len(ports) == LAUNCHES
    assert len(set(ports.values())) == LAUNCHES
    records = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob(".ddplaunch/runs/*/run.json")}
    assert records.keys() == ports.keys()
    assert all(record["run_id"] == name for name, record in records.items())
    assert (tmp_path / ".ddplaunch" / "latest").resolve().name in records
    assert not list((tmp_path / ".ddplaunch").glob(".*.*"))  # no draft of a link or a record is left
