"""``ddplaunch explain``: what it reads, what it prints, and its exit status."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_calls import Call
from tests.conftest import Golden
from tests.explain.logs import failed, lost, raised, summary
from tests.records.fake_runs import outcome, record

LOG = lost(0) + raised(1, "ValueError: bad sample 1234 in shard 7") + lost(2) + failed(1, 1, 11)
LOG += summary((0, -15, 10), (1, 1, 11))
FOUND = {
    "code": "host-out-of-memory", "certainty": "observed", "rank": 1, "host": "node-7", "evidence": [],
    "what": "memory", "why": "full", "fixes": ["less"], "exception": None, "calls": [],
    "is_stop": False,
}  # fmt: skip


@pytest.fixture
def run(folder: Path) -> Path:
    """Return the record of a run of two ranks, of which rank 1 failed, without its outcome."""
    run = record(folder / ".ddplaunch", "20260131-1")
    attempt = run / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    (attempt / "rank-0.err").write_text(
        raised(None, "RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:4411")
    )
    (attempt / "rank-1.err").write_text(raised(None, "ValueError: of rank 1"))
    (attempt / "rank-0.out").write_text("step 1\n")
    (run / "node-0" / "launcher.err").write_text(failed(1, 1, 11))
    return run


def test_a_file_stdin_and_json(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.log").write_text(LOG)
    said = call("explain", "--json", "train.log")
    answer = json.loads(said.out)
    assert said.status == 1 and answer["schema"] == 1 and answer["cascade"]
    assert (answer["diagnosis"]["code"], answer["diagnosis"]["rank"]) == ("script-exception", 1)
    where = {"file": "train.log", "line": 8, "text": "ValueError: bad sample 1234 in shard 7"}
    assert answer["diagnosis"]["evidence"][0] == where
    assert answer["diagnosis"]["exception"]["type"] == "ValueError"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    assert call("explain", "-").status == 1


def test_a_healthy_file_is_one_line(folder: Path, call: Call) -> None:
    (folder / "ok.log").write_text("step 1\nstep 2\ntraining finished\n")
    said = call("explain", "ok.log")
    assert (said.status, said.out) == (0, "nothing failed in ok.log\n")
    nothing: dict[str, object] = {"schema": 1, "diagnosis": None, "cascade": [], "stops_at": ""}
    nothing |= {"passed_over": None, "warnings": []}
    assert json.loads(call("explain", "--json", "ok.log").out) == nothing


def test_a_training_that_stops_before_its_last_step_failed_in_nothing_here(folder: Path, call: Call) -> None:
    bar = "".join(f" {step}%|#  | {step}/100 [00:{step:02}<01:10, 1.4it/s]\n" for step in range(20, 40))
    (folder / "going.log").write_text(bar)
    said = call("explain", "going.log")
    assert said.status == 0 and "stops before the last step, at\n  `39%|#  | 39/100" in said.out
    (folder / "begun.log").write_text(bar[: 2 * len(bar) // 20])
    assert json.loads(call("explain", "--json", "begun.log").out)["diagnosis"]["code"] == "unknown"


def test_several_files_and_a_folder_of_torchrun(folder: Path, call: Call) -> None:
    logs = folder / "logs" / "none_x1" / "attempt_0"
    for rank, text in ((0, lost(0)), (1, raised(None, "ValueError: x"))):
        (logs / str(rank)).mkdir(parents=True)
        (logs / str(rank) / "stderr.log").write_text(text)
    answer = json.loads(call("explain", "--json", "logs").out)
    assert (answer["diagnosis"]["code"], answer["diagnosis"]["rank"]) == ("script-exception", 1)
    several = call("explain", "--json", str(logs / "0" / "stderr.log"), str(logs / "1" / "stderr.log"))
    assert json.loads(several.out)["diagnosis"]["what"].startswith("ValueError: x")


def test_the_newest_run_a_run_id_and_its_end(run: Path, call: Call) -> None:
    newest = json.loads(call("explain", "--json").out)
    assert newest["diagnosis"]["what"] == "ValueError: of rank 1 at train.py:31 in main"
    assert newest["run_id"] == run.name
    shown = call("explain").out
    assert call("explain", "2026").out == call("explain", str(run)).out == shown
    assert ".ddplaunch/runs/20260131-1/node-0/attempt-0/rank-1.err:4" in shown.replace("\n            ", "")


def test_what_was_found_at_the_end_of_a_run_is_kept(run: Path, call: Call) -> None:
    attempt: dict[str, Any] = {"attempt": 0, "started_s": 1.5, "ended_s": 2}
    attempt |= {"failed": True, "diagnosis": None, "ranks": []}
    outcome(run, "failed", exit_status=1, diagnosis=FOUND, cascade=[], attempts=[attempt])
    answer = json.loads(call("explain", "--json").out)
    assert answer["diagnosis"] == FOUND and answer["attempts"] == [attempt]


def test_of_several_nodes_the_one_that_knows_more_is_believed(run: Path, call: Call) -> None:
    (run / "node-0" / "attempt-0" / "rank-1.err").write_text("")
    (run / "node-0" / "launcher.err").write_text(failed(-9, 1, 11))
    (run / "node-1").mkdir()
    outcome(run, "failed", exit_status=1, diagnosis=FOUND, node=1)
    (run / "outcome.json").rename(run / "node-1" / "outcome.json")
    outcome(run, "failed", exit_status=1, diagnosis=None, cascade=[], attempts=[])
    assert json.loads(call("explain", "--json").out)["diagnosis"] == FOUND
    launched = json.loads((run / "run.json").read_text()) | {"findings": [{"code": "cpus-short", "what": "few CPUs"}]}
    (run / "run.json").write_text(json.dumps(launched))
    assert "warned before it failed: cpus-short: few CPUs\n" in call("explain").out
    (run / "node-1" / "outcome.json").unlink()
    assert json.loads(call("explain", "--json").out)["diagnosis"] is None, "what the only node found stands"


def test_codes_are_described(call: Call) -> None:
    assert call("explain", "shm-too-small").out.startswith("shm-too-small (host)")
    said = call("explain", "collective-timeout")
    assert said.status == 0 and "diagnosis of a failed run" in said.out and "why:" in said.out and "fix:" in said.out


def test_what_cannot_be_read_is_a_usage_error_with_a_fix(folder: Path, call: Call) -> None:
    near = call("explain", "colective-timeout")
    assert near.status == 2 and "`ddplaunch explain collective-timeout`" in near.err
    assert call("explain").status == 2 and "no record of a run" in call("explain").err
    (folder / "empty").mkdir()
    assert call("explain", "empty").status == 2
    (folder / "a.log").write_text("x")
    missing = call("explain", "a.log", "gone.log")
    assert missing.status == 2 and "`gone.log` cannot be read" in missing.err


def test_the_text_at_eighty_columns(folder: Path, call: Call, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (folder / "train.log").write_text(LOG)
    (folder / "killed.log").write_text(lost(0) + failed(-9, 1, 11) + summary((0, -15, 10), (1, -9, 11)))
    text = call("explain", "train.log").out + "\n" + call("explain", "killed.log").out
    assert all(len(line) <= 80 for line in text.splitlines() if "`" not in line)
    golden("explain-80", text)


@pytest.mark.parametrize(
    ("log", "first"),
    [
        ("step 1 loss 0.5\nstep 2 loss nan\nstep 3 loss nan\ntraining finished\n", "step 2 loss nan"),
        ("{'loss': inf, 'epoch': 1}\n{'loss': nan, 'epoch': 2}\ndone\n", "{'loss': inf, 'epoch': 1}"),
        ("step 1 loss nan\nstep 2 loss 0.5\nstep 3 loss nan\nstep 4 loss nan\ndone\n", "step 3 loss nan"),
        ("step 1 loss nan\nstep 2 loss nan\nstep 3 loss 0.4\ndone\n", ""),
        ("step 1 loss nan, skipping update\nstep 2 loss nan, skipping update\ndone\n", ""),
        ("step 1 loss 0.5\nval loss nan\nval loss nan\nstep 2 loss 0.4\ndone\n", ""),
        ("test_nan PASSED: loss = nan\ntest_inf PASSED\n312 passed\n", ""),
    ],
)
def test_a_loss_that_stays_no_number_is_a_warning(folder: Path, call: Call, log: str, first: str) -> None:
    (folder / "train.log").write_text(log)
    said = call("explain", "train.log")
    assert said.status == 0 and said.out.startswith("nothing failed in train.log\n")
    words = f"warning[not-a-number]: the loss is not a number from `{first}` on"
    assert (words in " ".join(said.out.split())) is bool(first)
    warned = json.loads(call("explain", "--json", "train.log").out)["warnings"]
    assert len(warned) == bool(first)
    findings = [
        *warned,
        {"code": "cpus-short", "severity": "warning", "what": "few CPUs", "why": "", "fix": "", "where": []},
    ]
    outcome(record(folder / ".ddplaunch", "20260131-1"), diagnosis=None, findings=findings)
    assert "few CPUs" in call("explain").out
    assert (words in " ".join(call("explain").out.split())) is bool(first)
