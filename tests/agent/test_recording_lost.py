"""Whatever recording loses, the status is the training's: no terminal, few descriptors, calls that fail one by one."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from benchmarks import fault_points
from ddplaunch.records.outcome import RunOutcome, read_outcome
from tests.agent.plugin_runs import DEADLINE_S, of_folder, on_terminal, within
from tests.conftest import skip
from tests.hosts.launching import clean_environment, ddplaunch, run_to_end

pytestmark = pytest.mark.slow

TRAINS = """
import os, pathlib, resource, sys, time
rank, limits = int(os.environ["RANK"]), resource.getrlimit(resource.RLIMIT_NOFILE)
os.write(1, f"rank {rank} limits {limits} terminal {os.isatty(1)}\\n".encode())
pathlib.Path(f"trained-{rank}").touch()
while not pathlib.Path("trained-0").exists(): time.sleep(0.01)
sys.exit(int(sys.argv[1]) * rank)
"""
NO_TERMINAL = 'mount --bind /dev/null /dev/ptmx && exec "$@"'
LAUNCH = ("run", "2", "--device", "cpu", "--no-checks", "--run-id", "run", "--", "train.py")


def outcome(folder: Path) -> RunOutcome:
    read = read_outcome(folder / ".ddplaunch" / "runs" / "run")
    assert isinstance(read, RunOutcome)
    return read


def limited(soft: int, hard: int, folder: Path, status: int) -> tuple[int | None, str]:
    (folder / "train.py").write_text(TRAINS)
    words = ["prlimit", f"--nofile={soft}:{hard}", *ddplaunch(*LAUNCH, str(status))]
    code, said = run_to_end(words, folder, clean_environment(), DEADLINE_S)
    assert len(list(folder.glob("trained-*"))) == 2, said
    within(lambda: not of_folder(folder))
    return code, said


@pytest.mark.root
def test_without_a_terminal_the_shown_rank_gets_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    apart = ["unshare", "--mount", "sh", "-c", NO_TERMINAL, "sh"]
    status, shown = on_terminal([*apart, *ddplaunch(*LAUNCH, "0")], tmp_path)
    assert status == 0 and b"terminal False" in shown, shown
    recorded = (tmp_path / ".ddplaunch" / "runs" / "run" / "node-0" / "attempt-0" / "rank-0.out").read_bytes()
    assert b"terminal False" in recorded and outcome(tmp_path).state == "succeeded" and not outcome(tmp_path).notes


@pytest.mark.parametrize("limit", [40, 96])
def test_few_descriptors_cost_the_record_alone(limit: int, tmp_path: Path) -> None:
    code, said = limited(limit, limit, tmp_path, 3)
    assert (code, outcome(tmp_path).exit_status, outcome(tmp_path).state) == (3, 3, "failed"), said
    assert "rank 0 limits" in said and "other node" not in said and "was killed" not in said
    lacks = "ranks write to the console: Too many open files" in said
    assert lacks == bool(outcome(tmp_path).notes) == (limit < 96) and (not lacks or "rank 1 limits" in said), said


def test_the_soft_limit_is_raised_for_recording_and_not_for_ranks(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1000:
        skip(f"{hard} open files are allowed")
    code, said = limited(40, hard, tmp_path, 0)
    recorded = (tmp_path / ".ddplaunch" / "runs" / "run" / "node-0" / "attempt-0" / "rank-1.out").read_text()
    assert code == 0 and f"limits (40, {hard})" in recorded and not outcome(tmp_path).notes, said


#: A point of each kind: what each process opens, creates and writes, and what recording cannot be without.
POINTS = [
    ("launcher", "create", "ENOSPC", 1),
    ("launcher", "write", "EDQUOT", 1),
    ("agent", "socket", "EMFILE", 1),
    ("agent", "fork", "ENOMEM", 1),
    ("agent", "pipe", "EMFILE", 7),
    ("guard", "create", "EROFS", 1),
    ("guard", "write", "ENOSPC", 2),
    ("guard", "epoll", "ENOMEM", 1),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fault_points.build(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_a_call_that_fails_costs_no_invariant(point: tuple[str, str, str, int], library: Path, tmp_path: Path) -> None:
    held = fault_points.launch(fault_points.Point(*point), library, tmp_path, status=3)
    assert held is not None, "the call is made"
    assert held.broken == () and not held.stopped, f"{held.broken} {held.what}\n{held.stderr}"
