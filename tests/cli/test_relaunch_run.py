"""Runs that fail and are launched again in the same process, for real: from their checkpoint, or not at all."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.plugin_runs import RUN_ID, of_folder, within
from tests.hosts.launching import clean_environment, ddplaunch

if TYPE_CHECKING:
    from tests.machine.fake_nvml import FakeNvml

pytest_plugins = ("tests.machine.fake_nvml",)
pytestmark = pytest.mark.slow

DEADLINE_S = 180  # three launches, on a machine that does something else, too

#: Rank 0 counts steps in a checkpoint, two in each launch, and fails until there are six; rank 1 waits for them.
SAVES = """
import json, os, sys, time
from pathlib import Path
saved = Path("out/step.pt")
step = int(saved.read_text()) if saved.exists() else 0
if os.environ["RANK"] == "1":
    while not saved.exists() or saved.read_text() != "6":
        time.sleep(0.05)
    sys.exit(0)
names = ("OMP_NUM_THREADS", "DDPLAUNCH_RUN_ID", "DDPLAUNCH_RELAUNCHED", "MINE")
mine = {name: os.environ.get(name) for name in names}
Path(f"saw-{step}.json").write_text(json.dumps({**mine, "torchrun": os.getppid()}))
saved.parent.mkdir(exist_ok=True)
saved.with_suffix(".tmp").write_text(str(step + 2))
saved.with_suffix(".tmp").rename(saved)
if step < 4:
    sys.exit(9)
"""
FAILS = "import sys; sys.exit(5)\n"


def launch(
    folder: Path, *words: str, script: str, device: str = "cpu", run_id: str = RUN_ID, **changes: Any
) -> subprocess.Popen[bytes]:
    (folder / "train.py").write_text(script)
    argv = ddplaunch("run", "2", "--device", device, "--no-checks", "--run-id", run_id, *words, "--", "train.py")
    environment = {**clean_environment(NO_COLOR="1", COLUMNS="200", MINE="mine"), **changes.pop("env", {})}
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(argv, cwd=folder, env=environment, **{**streams, **changes})


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, (err or b"").decode()


def record(folder: Path, run_id: str, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / ".ddplaunch" / "runs" / run_id / name).read_text())
    return value


def listed(folder: Path) -> list[dict[str, Any]]:
    """What `ps` knows of the runs that were launched in ``folder``."""
    done = subprocess.run(ddplaunch("ps", "--json"), cwd=folder, capture_output=True, check=True)
    return [each for each in json.loads(done.stdout)["runs"] if str(each["directory"]).startswith(f"{folder}/")]


def test_comes_back_from_its_checkpoint(tmp_path: Path) -> None:
    words = ("--relaunch", "2", "--relaunch-wait", "0.1", "--output", "out", "--env", "MINE=given")
    process = launch(tmp_path, *words, script=SAVES)
    status, err = ended(process)
    assert status == 0, err
    assert (tmp_path / "out" / "step.pt").read_text() == "6"
    lines = err.splitlines()
    assert "ddplaunch: relaunching 1 of 2 in 0.1 s, because `out/step.pt` is newer than at its start" in lines
    assert "ddplaunch: relaunching 2 of 2 in 0.2 s, because `out/step.pt` is newer than at its start" in lines
    ids = (RUN_ID, f"{RUN_ID}-relaunch-1", f"{RUN_ID}-relaunch-2")
    saw = [json.loads((tmp_path / f"saw-{step}.json").read_text()) for step in (0, 2, 4)]
    assert [each["DDPLAUNCH_RUN_ID"] for each in saw] == list(ids)
    assert {(each["torchrun"], each["MINE"], each["DDPLAUNCH_RELAUNCHED"]) for each in saw} == {
        (process.pid, "given", None)
    }
    assert len({each["OMP_NUM_THREADS"] for each in saw}) == 1
    runs = [record(tmp_path, each, "run.json") for each in ids]
    assert [each.get("relaunch_of") for each in runs] == [None, RUN_ID, f"{RUN_ID}-relaunch-1"]
    assert [record(tmp_path, each, "outcome.json")["exit_status"] for each in ids] == [9, 9, 0]
    assert {each["run_id"]: each["relaunch_of"] for each in listed(tmp_path)} == dict(
        zip(ids, (None, *ids), strict=False)
    )
    assert record(tmp_path, RUN_ID, "node-0/relaunch.json")["advanced"] == "out/step.pt"
    for each in runs:  # what was given back to this process is nobody's environment
        assert "DDPLAUNCH_RELAUNCHED" not in each["environment"] and "MINE=mine" not in json.dumps(each)
    assert of_folder(tmp_path) == []


def test_gpus_are_let_go_and_picked_again(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    script = (
        "import os, sys\nopen('saw', 'a').write(os.environ['CUDA_VISIBLE_DEVICES'] + '\\n')\nsys.exit('relaunch' not "
        "in os.environ['DDPLAUNCH_RUN_ID'])\n"
    )
    environment = {**fake_nvml.environment(2), "DDPLAUNCH_LOCK_DIR": str(tmp_path / "locks")}
    words = ("--gpus", "free:2", "--relaunch", "1", "--relaunch-after", "0", "--relaunch-wait", "0")
    status, err = ended(launch(tmp_path, *words, script=script, device="cuda", env=environment))
    assert status == 0, err
    saw = (tmp_path / "saw").read_text().split()
    assert len(saw) >= 3 and len(set(saw)) == 1  # one that failed may have ended the other before it wrote


def test_what_fails_at_once_stays_as_it_ended(tmp_path: Path) -> None:
    status, err = ended(launch(tmp_path, "--relaunch", "3", script=FAILS))
    assert status == 5
    said = err.splitlines()[-1]
    assert said.startswith("ddplaunch: not relaunched: its ranks ran for ")
    assert said.endswith(" s, less than 1 min (`--relaunch-after`), and `--output` was not given")
    assert [path.name for path in (tmp_path / ".ddplaunch" / "runs").iterdir()] == [RUN_ID]


def test_relaunches_are_counted_and_need_no_record(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ("--relaunch", "1", "--relaunch-after", "0.3", "--relaunch-wait", "0", "--run-dir", "file/runs")
    status, err = ended(launch(tmp_path, *words, script="import time\ntime.sleep(0.5)\n" + FAILS))
    assert status == 5
    assert "relaunching 1 of 1 in 0.0 s, because its ranks ran for " in err
    assert err.splitlines()[-1] == "ddplaunch: not relaunched: `--relaunch 1` is used up"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_in_the_pause(number: signal.Signals, status: int, tmp_path: Path) -> None:
    words = ("--relaunch", "1", "--relaunch-after", "0", "--relaunch-wait", "10m")
    with (tmp_path / "err").open("wb") as err:
        process = launch(tmp_path, *words, script=FAILS, stderr=err, start_new_session=True)
    within(lambda: b"relaunching 1 of 1 in 10 min" in (tmp_path / "err").read_bytes(), deadline_s=DEADLINE_S)
    (run,) = listed(tmp_path)
    assert (run["state"], run["launcher_pids"], run["relaunch_of"]) == ("running", [process.pid], None)
    process.send_signal(number)
    assert ended(process)[0] == status  # by itself, as the first process of a container has to
    assert "Traceback" not in (tmp_path / "err").read_text()
    assert of_folder(tmp_path) == []


def test_what_a_user_ends_is_not_launched_again(tmp_path: Path) -> None:
    words = ("--relaunch", "1", "--relaunch-after", "0", "--relaunch-wait", "0")
    script = "import os, time\nopen('running-' + os.environ['RANK'], 'w')\ntime.sleep(600)\n"
    process = launch(tmp_path, *words, script=script)
    within(lambda: all((tmp_path / f"running-{rank}").exists() for rank in range(2)), deadline_s=DEADLINE_S)
    within((tmp_path / ".ddplaunch" / "runs" / RUN_ID / "node-0" / "processes.json").exists)
    process.send_signal(signal.SIGTERM)
    status, err = ended(process)
    assert status == 143 and "relaunch" not in err
    status, err = ended(launch(tmp_path, *words, "--timeout", "2", script=script, run_id="limited"))
    assert status == 124 and "relaunch" not in err


def test_a_hang_that_was_ended_is_a_failure(tmp_path: Path) -> None:
    words = (
        "--relaunch",
        "1",
        "--relaunch-after",
        "1",
        "--relaunch-wait",
        "0",
        "--hang-timeout",
        "3",
        "--on-hang",
        "stop",
    )
    script = "import os, time\nif 'relaunch' not in os.environ['DDPLAUNCH_RUN_ID']: time.sleep(600)\n"
    status, err = ended(launch(tmp_path, *words, script=script))
    assert status == 0, err
    assert "relaunching 1 of 1 in 0.0 s, because its ranks ran for " in err
    assert record(tmp_path, RUN_ID, "outcome.json")["exit_status"] == 124
