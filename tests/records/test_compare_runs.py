"""Two runs beside each other: what differs, from which step on, and whether they failed alike; also of real runs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.explain.diagnosis import Diagnosis, Raised
from ddplaunch.records.compare_runs import Comparison, compare, run_before
from ddplaunch.records.find import read_record
from ddplaunch.records.outcome import PreviousRun, RunOutcome, read_outcome
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import ExitStatus
from tests.cli.cli_calls import Call, call, folder
from tests.hosts.launching import clean_environment, ddplaunch
from tests.records.fake_runs import outcome, record

__all__ = ["call", "folder"]  # fixtures

DEADLINE_S = 240
RAISED = Diagnosis(
    "script-exception", "observed", "ValueError: bad at t.py:5", "it raised", ("look",), 1, "node-1",
    exception=Raised("ValueError", "bad", "t.py:5"),
)  # fmt: skip


# Failures that are alike


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (RAISED, True),
        (replace(RAISED, rank=0, host="node-2"), True),  # all ranks raise it, and another one was first
        (replace(RAISED, exception=Raised("ValueError", "worse", "t.py:5")), False),
        (replace(RAISED, exception=Raised("ValueError", "bad", "t.py:9")), False),
        (replace(RAISED, exception=Raised("KeyError", "bad", "t.py:5")), False),
        (None, False),
    ],
)
def test_a_failure_comes_twice_where_it_is_raised_at_one_line_in_the_same_words(
    other: Diagnosis | None, alike: bool
) -> None:
    assert RAISED.is_like(other) is alike


def test_sizes_and_addresses_may_vary_and_what_comes_by_chance_is_never_alike() -> None:
    full = Diagnosis("cuda-out-of-memory", "observed", "GPU 0 is full: 2.00 GiB wanted, 1.31 GiB free", "", (), 0)
    assert full.is_like(replace(full, what="GPU 0 is full: 2.00 GiB wanted, 900 MiB free"))
    assert not full.is_like(replace(full, rank=3))  # no exception says where
    killed = Diagnosis("killed", "unknown", "rank 0 was killed", "", (), 0)
    assert not killed.is_like(killed)


# Differences of two records


def run(base: Path, name: str, args: list[str], lines: list[str], **more: Any) -> Path:
    """A record of ``train.py`` with these arguments, and what rank 0 printed."""
    directory = record(base, name, **more)
    data = json.loads((directory / "run.json").read_text())
    data["plan"]["target"] = {"kind": "script", "name": "train.py", "args": args}
    (directory / "run.json").write_text(json.dumps(data))
    output = directory / "node-0" / "attempt-0"
    output.mkdir(parents=True, mode=0o700)
    (output.parent).chmod(0o700)
    (output / "rank-0.out").write_text("".join(f"{line}\n" for line in lines))
    (output / "rank-0.out").chmod(0o600)
    return directory


def compared(first: Path, second: Path) -> Comparison:
    return compare(read_record(first), read_record(second))


def named(comparison: Comparison) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    return {(each.kind, each.name): (each.first, each.second) for each in comparison.differences}


def test_what_differs_is_named_and_what_has_to_differ_is_not(tmp_path: Path) -> None:
    seen = {"code": {"train.py": "1", "data.py": "2"}, "environment": {"OMP_NUM_THREADS": "1", "DDPLAUNCH_RUN_ID": "a"}}
    first = run(tmp_path, "a", ["--lr", "0.1", "x.bin"], [], **seen, versions={"torch": "2.8", "python": "3.11"})
    seen = {"code": {"train.py": "1", "data.py": "3"}, "environment": {"OMP_NUM_THREADS": "4", "DDPLAUNCH_RUN_ID": "b"}}
    second = run(tmp_path, "b", ["--lr=0.2", "--amp", "x.bin"], [], **seen, versions={"torch": "2.9", "python": "3.11"})
    assert named(compared(first, second)) == {
        ("argument", "--lr"): ("0.1 x.bin", "0.2"),  # whether x.bin belongs to --lr, only the script knows
        ("argument", "--amp"): (None, "x.bin"),
        ("code", "data.py"): ("2", "3"),
        ("version", "torch"): ("2.8", "2.9"),
        ("variable", "OMP_NUM_THREADS"): ("1", "4"),
    }
    assert compared(first, first) == Comparison((), None)


def on_nodes(directory: Path, nodes: dict[int, dict[str, Any]]) -> Path:
    """Give ``directory`` the records of further nodes: run.json of node 0 with what was otherwise there."""
    data = json.loads((directory / "run.json").read_text())
    for node, other in nodes.items():
        folder = directory / f"node-{node}"
        folder.mkdir(mode=0o700)
        (folder / "run.json").write_text(json.dumps({**data, **other}))
    return directory


def test_what_differs_on_one_of_several_hosts_is_named_with_its_node(tmp_path: Path) -> None:
    """The launcher's own record tells nothing of a driver that was changed on another host."""
    versions = {"torch": "2.8", "python": "3.11"}
    first = run(tmp_path, "a", [], [], versions=versions, environment={"A": "1"}, code={"t.py": "1"})
    second = run(
        tmp_path, "b", [], [], versions={**versions, "torch": "2.9"}, environment={"A": "1"}, code={"t.py": "1"}
    )
    old, new = {"versions": {**versions, "nccl": "2.27"}}, {"versions": {**versions, "torch": "2.9", "nccl": "2.28"}}
    on_nodes(first, {1: old, 2: old, 3: {"environment": {"A": "1"}}, 5: old})
    on_nodes(second, {1: new, 2: new, 3: {"environment": {"A": "2"}}, 4: {"code": {"t.py": "2"}}})
    assert named(compared(first, second)) == {
        ("version", "torch"): ("2.8", "2.9"),  # the same on all of them
        ("version", "nccl on nodes 1-2"): ("2.27", "2.28"),
        ("variable", "A on node 3"): ("1", "2"),  # node 4 and 5 were in one run only
    }
    assert compared(first, first) == Comparison((), None)


def test_a_broken_record_of_a_node_is_no_difference(tmp_path: Path) -> None:
    first, second = (on_nodes(run(tmp_path, name, [], [], versions={"torch": "2"}), {1: {}}) for name in "ab")
    (second / "node-1" / "run.json").write_text("[1, ")
    assert compared(first, second) == Comparison((), None)


def test_the_records_of_one_node_alone_are_compared(folder: Path, call: Call) -> None:
    """On the host of node 1, without a file system that both see, node 0's run.json is not there."""
    base = folder / ".ddplaunch"
    for name, torch in (("one", "2.8"), ("two", "2.9")):
        directory = on_nodes(run(base, name, [], [], versions={"torch": torch}), {1: {}})
        (directory / "run.json").unlink()
    found = json.loads(call("explain", "one", "two", "--json").out)["differences"]
    assert [(each["name"], each["first"], each["second"]) for each in found] == [("torch", "2.8", "2.9")]


def test_the_first_step_with_other_numbers_is_found_whatever_time_it_took(tmp_path: Path) -> None:
    good = [
        f"2026-11-22 10:00:0{each} step {each} loss {1 / (each + 1):.4f} ({each}.5 s, 12.{each} it/s)"
        for each in range(6)
    ]
    bad = [
        f"2026-11-23 11:30:1{each} step {each} loss {1 / (each + 1):.4f} (9.5 s, 3.{each} it/s)" for each in range(6)
    ]
    bad[4] = bad[4].replace("loss 0.2000", "loss nan")
    first = run(tmp_path, "a", [], ["loading", *good])
    parting = compared(first, run(tmp_path, "b", [], bad)).divergence
    assert parting and (parting.rank, parting.alike, parting.step) == (0, 3, 4)
    assert parting.first == good[4] and parting.second == bad[4]
    shorter = compared(first, run(tmp_path, "c", [], good[:3])).divergence
    assert shorter and (shorter.alike, shorter.step, shorter.second) == (2, 3, None)
    raised = [
        "[rank0]:     raise RuntimeError(f'step {step}')",
        "[rank0]: RuntimeError: at step 2",
        "ValueError: step 2",
    ]
    assert compared(first, run(tmp_path, "f", [], [*good[:3], *raised])).divergence == shorter
    assert compared(first, run(tmp_path, "d", [], ["other words", *good])).divergence is None
    assert compared(first, run(tmp_path, "e", [], ["nothing that counts"])).divergence is not None


def failed(directory: Path, diagnosis: Diagnosis) -> None:
    outcome(directory, "failed", exit_status=1, diagnosis=plain(diagnosis), cascade=[])


def test_the_run_of_the_same_command_before_is_found(tmp_path: Path) -> None:
    code: dict[str, Any] = {"code": {"train.py": "1"}}
    first = run(tmp_path, "a", ["x"], [], begun_s=1000.0, **code)
    failed(first, RAISED)
    other = run(tmp_path, "b", ["y"], [], begun_s=1001.0, **code)
    outcome(other)
    now = run(tmp_path, "c", ["x"], [], begun_s=1002.0, **code)
    failed(now, RAISED)
    this = read_outcome(now)
    assert isinstance(this, RunOutcome)
    assert run_before(now, this) == PreviousRun("a", "alike")
    outcome(first)
    assert run_before(now, this) == PreviousRun("a", "succeeded")
    failed(first, replace(RAISED, exception=Raised("OSError", "gone", "t.py:7")))
    assert run_before(now, this) == PreviousRun("a", "otherwise")
    outcome(first, "terminated")
    assert run_before(now, this) is None
    failed(run(tmp_path, "d", ["x"], [], begun_s=1001.5, code={"train.py": "2"}), RAISED)
    assert run_before(now, this) == PreviousRun("d", "alike", ("train.py",))


def test_two_runs_are_compared_and_two_logs_are_read_as_one(folder: Path, call: Call) -> None:
    base = folder / ".ddplaunch"
    outcome(run(base, "good", ["--lr", "0.1"], ["step 1 loss 0.5"]))
    failed(run(base, "bad", ["--lr", "0.9"], ["step 1 loss nan"]), RAISED)
    said = call("explain", "good", ".ddplaunch/runs/bad")
    assert said.status == ExitStatus.FINDINGS
    assert "  arguments    --lr 0.1 → 0.9\n" in said.out and "error[script-exception]: ValueError: bad" in said.out
    assert "different at step 1 of rank 0" in said.out and "loss nan" in said.out
    assert "nothing that is recorded differs" not in said.out
    failed(run(base, "same", ["--lr", "0.1"], ["step 1 loss 0.5"]), RAISED)
    assert call("explain", "good", "same").out.endswith(
        "\n\nnothing that is recorded differs: it was chance, the data, or something outside\n"
    )
    value = json.loads(call("explain", "good", "bad", "--json").out)
    assert [each["state"] for each in value["runs"]] == ["succeeded", "failed"]
    assert value["differences"][0] == {"kind": "argument", "name": "--lr", "first": "0.1", "second": "0.9"}
    (folder / "one.log").write_text("fine\n")
    (folder / "two.log").write_text("Traceback (most recent call last):\n  File \"t.py\", line 1\nKeyError: 'x'\n")
    assert "KeyError" in call("explain", "one.log", "two.log").out


# Real runs

SCRIPT = """
import argparse, os
import model
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
lr = parser.parse_args().lr
loss = 1.0
for step in range(6):
    loss -= lr * loss * model.SLOPE
    if os.environ["RANK"] == "0":
        print(f"step {step} loss {loss:.4f}", flush=True)
    if loss < 0:
        raise ValueError("the loss is negative")
"""


@pytest.mark.slow
def test_a_failure_that_comes_again_is_deterministic_and_compared_with_what_worked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "model.py").write_text("SLOPE = 1.0\n")

    def launch(name: str, lr: str, *more: str) -> str:
        words = ddplaunch("run", "2", "--device", "cpu", "--run-id", name, *more, "--", "train.py", "--lr", lr)
        environment = clean_environment(NO_COLOR="1", COLUMNS="200", TERM="dumb")
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        return done.stderr

    launch("works", "0.1")
    launch("broken", "1.5")
    again = launch("again", "1.5", "--max-restarts", "1")
    assert "it failed like broken before, with the same command and code: this is deterministic" in again
    assert "all 2 attempts failed alike: this is deterministic" in again
    (tmp_path / "model.py").write_text("SLOPE = 2.0\n")
    assert "it failed like again before, although model.py changed since" in launch("changed", "1.5")
    (tmp_path / "model.py").write_text("SLOPE = 20.0\n")
    broken = launch("breaks", "0.1")
    assert "the same command succeeded as works: `ddplaunch explain works breaks` says what differs" in broken
    words = ddplaunch("explain", "works", "changed")
    said = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=clean_environment()
    ).stdout
    assert "--lr 0.1 → 1.5" in said and "model.py changed" in said and "different at step 0 of rank 0" in said
