"""How an ended run is judged, recorded and told, from values and files alone."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.agent.end import evidence
from ddplaunch.agent.end.conclude import attempt_ended, conclude, last_lines
from ddplaunch.agent.end.ended import EndedAttempt, EndedRun
from ddplaunch.agent.end.evidence import announced
from ddplaunch.explain.diagnosis import Diagnosis, Echo, Evidence, Explanation, Frame, Raised, UserCall
from ddplaunch.explain.stacks.parse import RankStack, ThreadStack
from ddplaunch.planning.settings import Settings
from ddplaunch.records.directory import note_stop
from ddplaunch.records.first_failure import first_failed, steady_s
from ddplaunch.records.outcome import AttemptOutcome, RankOutcome, RunOutcome, short_outcome
from ddplaunch.ui.explain_view import explanation_text
from ddplaunch.ui.outcome_view import attempt_text, outcome_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import warning
from tests.conftest import Golden
from tests.prove.test_claims import MEAN, OWN, step
from tests.records.fake_runs import outcome as outcome_of_run
from tests.records.fake_runs import record

TRACEBACK = """\
starting
Traceback (most recent call last):
  File "/home/ada/train.py", line 31, in <module>
    main()
  File "/home/ada/train.py", line 20, in main
    raise ValueError("bad batch")
ValueError: bad batch
"""


def rank(number: int, **changes: Any) -> RankOutcome:
    ok = RankOutcome(number, number, "node-1", 100 + number, 0, started_s=1.0, ended_s=9.0, ended_by="itself")
    return replace(ok, out=f"node-0/attempt-0/rank-{number}.out", **changes)


def attempt(*ranks: RankOutcome, first: int | None = None, number: int = 0) -> EndedAttempt:
    return EndedAttempt(number, 1.0, 9.0, ranks, first)


def ended(*attempts: EndedAttempt, **changes: object) -> EndedRun:
    run = EndedRun("node-1", 0.0, 10.0, attempts, "failed", None, False, "", ())
    return replace(run, **changes)  # type: ignore[arg-type]


def never(seconds: float) -> None:
    pytest.fail("there is nothing to wait for")


def told(settings: Settings, run: EndedRun, status: int, hear: Callable[[float], None] = never) -> str:
    """Conclude a run whose exit status is ``status``; return what is said."""
    texts: list[str] = []
    assert conclude(settings, run, texts.append, hear) == status
    return "".join(texts)


def recorded(settings: Settings) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads((Path(settings.directory) / "outcome.json").read_text())
    return outcome


TERMINATED: dict[str, Any] = {"exit_code": None, "signal": "SIGTERM", "ended_by": "launcher"}


def test_ranks_that_torchrun_ended_have_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose ranks torchrun ended, as another node failed or joined; one of them ended with an exit code."""
    settings = Settings(directory=str(tmp_path), node=1)
    both = attempt(rank(2, **(TERMINATED | {"exit_code": 1, "signal": None})), rank(3, **TERMINATED))
    assert first_failed(both.ranks, 2, both.first) is None and ended(both, state="error").exit_status(None) == 1
    run = ended(both, state="error", error="RendezvousConnectionError: gone")
    assert "other node" not in told(settings, run, 1) and attempt_ended(settings, both) == ("", False), "there is none"
    monkeypatch.setenv("DDPLAUNCH_NNODES", "2")
    for error, seen in ((run.error, "RendezvousConnectionError"), ("", "nothing")):
        said = " ".join(told(settings, replace(run, error=error), 1).split())
        assert "no rank failed on this node" in said and f"; this one saw {seen}" in said
    for changes in ({"state": "failed"}, {"launcher_died": True}, {"attempts": ()}, {"attempts": (two_ranks(),)}):
        otherwise = replace(run, **changes)
        assert "no rank failed on this node" not in told(settings, otherwise, 137 if otherwise.launcher_died else 1)
    text, final = attempt_ended(settings, both)
    assert "was ended by another node" in text and not final
    assert attempt_ended(settings._replace(silent=True), both) == ("", False), "the launcher of all hosts says it"
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert attempt_ended(settings, both) == ("", False), "all nodes have one console"


STOPPED = Diagnosis("collective-timeout", "likely", "what", "why", ())
HUNG = warning("collective-timeout", "rank 1 hangs", why="it sleeps", fix="look there")


def test_last_words(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_bytes(b"1%\r50%\r\x1b[1m100%\x1b[0m\nlast \xff\n")
    both = RankOutcome(0, 0, "node-1", out="out", err="err")
    assert last_lines(both, tmp_path, {}) == ("100%", "last �")
    err.write_text("noise\n" * 20_000 + TRACEBACK)
    lines = last_lines(both, tmp_path, {})
    assert len(lines) == 20 and lines[-1] == "ValueError: bad batch"
    assert last_lines(RankOutcome(0, 0, "node-1", out="none"), tmp_path, {}) == ()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    files = tmp_path / "runs" / "r" / "node-0" / "attempt-0"
    files.mkdir(parents=True)
    (files / "rank-0.out").write_text("waiting\n")
    (files / "rank-1.out").write_text(TRACEBACK)
    return Settings(run_id="r", directory=str(tmp_path / "runs" / "r"), max_restarts=3)


def two_ranks(number: int = 0) -> EndedAttempt:
    return attempt(rank(0, **TERMINATED), rank(1, exit_code=1, ended_s=5.0), first=1, number=number)


def test_failed_run_is_recorded_and_told(settings: Settings) -> None:
    lines = told(settings, ended(two_ranks()), 1).splitlines()
    assert lines[0] == "ddplaunch: failed (exit status 1) after 10 s, record in runs/r"
    assert lines[1].startswith("error[script-exception]: ") and "bad batch" in lines[1]
    assert "runs/r/node-0/attempt-0/rank-1.out:7" in lines[2] and lines[-1].startswith("  why: ")
    path = Path(settings.directory) / "outcome.json"
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    outcome = recorded(settings)
    assert outcome["schema"] == 1 and outcome["first_failed_rank"] == 1 and outcome["state"] == "failed"
    ranks = outcome["attempts"][0]["ranks"]
    assert outcome["diagnosis"]["exception"] == {
        "type": "ValueError",
        "message": "bad batch",
        "frame": "train.py:20 in main",
        "notes": [],
    }
    assert ranks[1]["last_lines"][-1] == "ValueError: bad batch"
    assert ranks[1]["out"] == "node-0/attempt-0/rank-1.out" and ranks[0]["signal"] == "SIGTERM"
    assert not [each for each in path.parent.iterdir() if each.name.startswith(".")], "a draft is left"
    told(settings, ended(attempt(rank(0, **TERMINATED)), two_ranks(1)), 1)
    assert [each["failed"] for each in recorded(settings)["attempts"]] == [False, True], "a node came or went"
    told(settings, ended(attempt(rank(0, exit_code=1, ended_s=4.0), rank(1, exit_code=1, ended_s=5.0), first=0)), 1)
    assert recorded(settings)["first_failed_rank"] == recorded(settings)["diagnosis"]["rank"] == 1, "the accused"


@pytest.mark.parametrize(
    ("run", "told_s", "code"),
    [
        (ended(attempt(rank(0, **TERMINATED), rank(1, **TERMINATED)), state="error"), 8.0, "cuda-out-of-memory"),
        (ended(two_ranks()), 8.0, "script-exception"),
        (ended(two_ranks(), two_ranks(1)), 2.0, "cuda-out-of-memory"),
        (ended(attempt(rank(0, **TERMINATED), rank(3, exit_code=1, ended_s=5.0), first=3)), 8.0, "cuda-out-of-memory"),
        (ended(attempt(rank(0), rank(1)), state="succeeded"), 2.0, None),
    ],
    ids=["none failed here", "here first", "there first", "a survivor first", "succeeded"],
)
def test_the_node_that_failed_first_explains_the_end(
    run: EndedRun, told_s: float, code: str | None, settings: Settings
) -> None:
    there = outcome(host="node-2", node=1, exit_status=7, ended_s=told_s)
    Path(f"{settings.node_directory}/attempt-0/rank-3.out").write_text(
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:1\n"
    )
    settings = settings._replace(others="node-2 29500")
    told(settings, replace(run, elsewhere=short_outcome(replace(there, diagnosis=None))), 0 if code is None else 1)
    there = replace(there, diagnosis=replace(DIAGNOSIS, host=None))
    status = {"cuda-out-of-memory": 7, "script-exception": 1, None: 0}[code]
    told(settings, replace(run, elsewhere=short_outcome(there)), status)
    outcome_here = recorded(settings)
    *earlier, last = outcome_here["attempts"]
    assert [each["attempt"] for each in (*earlier, last)] == [each.attempt for each in run.attempts]
    assert outcome_here["exit_status"] == status
    for one in (outcome_here, last):
        assert (one["diagnosis"] and one["diagnosis"]["code"]) == code
        assert status != 7 or one["diagnosis"]["host"] == "node-2"
    assert last["failed"] is (code is not None)


@pytest.mark.parametrize(
    ("changes", "under_slurm", "waits"),
    [
        ({"state": "error"}, False, True),
        ({"state": "signal", "launcher_died": True, "signal": signal.SIGTERM}, True, False),  # who would tell it?
        ({"state": "signal", "signal": signal.SIGTERM}, False, False),
        ({"state": "signal", "signal": signal.SIGTERM}, True, True),
        ({"state": "signal", "signal": signal.SIGINT}, True, False),
    ],
)
def test_a_node_where_none_failed_waits_for_the_reason(
    changes: dict[str, Any], under_slurm: bool, waits: bool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    if under_slurm:
        monkeypatch.setenv("SLURM_STEP_ID", "0")
    elsewhere: dict[str, Any] = {}
    run = ended(attempt(rank(0, **TERMINATED), rank(2, **TERMINATED)), elsewhere=elsewhere, **changes)
    there = short_outcome(outcome(host="node-2", node=1, exit_status=7))
    status = 7 if waits else 137 if run.launcher_died else 128 + run.signal if run.signal else 1
    said = told(settings._replace(others="node-2 1"), run, status, lambda _: elsewhere.update(there))
    why = "because node 1 did: error[cuda-out-of-memory] CUDA out of memory on rank 2, rank 2 on node-1; record"
    assert (why in " ".join(said.split())) is (waits and under_slurm), said


def test_of_all_nodes_with_one_console_node_0_says_what_all_would(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    ended_too, told_to = attempt(rank(0, **TERMINATED), rank(2, **TERMINATED)), ("SIGUSR1", 4.0)
    left, killed = (
        ended(attempt(rank(0, **TERMINATED), rank(2, ended_s=5.0, **end), first=2))
        for end in ({"exit_code": 1}, {"exit_code": None, "signal": "SIGTERM"})
    )
    failed, stopped = (short_outcome(outcome(node=2, state=state, exit_status=7)) for state in ("failed", "terminated"))
    succeeded = ended(attempt(rank(0), rank(1)), state="succeeded")
    for run, status, node_1_speaks in (
        (replace(left, announced=told_to), 1, False),
        (left, 1, True),
        (killed, 143, True),
        (ended(two_ranks(), announced=told_to), 1, True),  # its own traceback says why
        (succeeded, 0, False),
        (ended(ended_too, state="signal", signal=signal.SIGTERM), 143, False),
        (ended(ended_too, state="error", elsewhere=failed), 7, False),
        (ended(ended_too, state="error", elsewhere=stopped), 1, True),  # Slurm ended both
    ):
        assert ("because node 2 did: " in told(settings, run, status)) is (status == 7)
        assert bool(told(settings._replace(node=1), run, status)) is node_1_speaks, run
    monkeypatch.delenv("SLURM_STEP_ID")
    assert told(settings._replace(node=1), succeeded, 0), "each has its own"
    told(settings, ended(ended_too, state="error", elsewhere=stopped), 7)


@pytest.mark.parametrize(
    ("signalled", "changes", "left_s", "is_said"),
    [
        (("SIGUSR1", 4.0), {}, 5.0, True),
        (("SIGUSR1", 4.0), {"diagnosis": Diagnosis("unknown", "unknown", "what", "why", ())}, 5.0, True),
        (("SIGUSR1", 4.0), {}, 3.5, True),  # clocks of both are read a moment apart
        (("SIGUSR1", 4.0), {}, 2.9, False),
        (("SIGUSR1", 4.0), {"diagnosis": STOPPED}, 5.0, False),
        (("SIGUSR1", 4.0), {"state": "terminated"}, 5.0, False),
        (("SIGUSR1", 4.0), {"first_failed_rank": 0}, 5.0, False),
        (None, {}, 5.0, False),
    ],
)
def test_a_rank_that_leaves_after_the_schedulers_signal_may_have_saved(
    signalled: tuple[str, float] | None, changes: dict[str, Any], left_s: float, is_said: bool
) -> None:
    ranks = (rank(0), rank(1, exit_code=3, ended_s=left_s))
    run = outcome(diagnosis=None, first_failed_rank=1, attempts=(replace(before(None)[0], ranks=ranks),))
    for node in (0, 1):
        diagnosis = announced(Settings(node=node), ended(announced=signalled, host="x"), replace(run, **changes))
        assert (diagnosis is not None) is is_said
        if diagnosis is not None:
            assert (diagnosis.code, diagnosis.rank, diagnosis.host) == ("terminated", 1, "node-1")
            assert diagnosis.what == "rank 1 ended with exit code 3 after SIGUSR1"


@pytest.mark.parametrize(("code", "asked"), [("time-limit", 0), ("scheduler-error", 0), ("time-limit", 1)])
def test_node_0_asks_slurm_what_the_signal_announced(code: str, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slurms = Diagnosis(code, "observed", "as Slurm says", "Slurm's why", (), evidence=(Evidence("slurm", 0, "job 7"),))
    monkeypatch.setattr("ddplaunch.hosts.slurm.job_reasons.why_ended", lambda *_: slurms)
    left = rank(1, exit_code=3, ended_s=5.0, host="")
    run = outcome(diagnosis=None, first_failed_rank=1, attempts=(replace(before(None)[0], ranks=(rank(0), left)),))
    found = announced(Settings(node=asked), ended(announced=("SIGUSR1", 4.0)), run)
    if code != "time-limit":
        assert found == slurms
    else:
        assert found and (found.code, found.what) == ((code, slurms.what) if asked == 0 else ("terminated", found.what))
        assert (found.rank, found.host, found.evidence) == (1, "node-1", slurms.evidence if asked == 0 else ())
        assert "queues its job again" in found.fixes[0], "the script may have saved"


@pytest.mark.parametrize(
    ("changes", "node", "is_asked"),
    [
        ({"signal": signal.SIGTERM}, 0, True),
        ({"signal": signal.SIGTERM}, 1, False),
        ({"signal": signal.SIGINT}, 0, False),
        ({"signal": signal.SIGTERM, "state": "failed"}, 0, False),
        ({"signal": signal.SIGTERM, "stopped": replace(STOPPED, rank=1)}, 0, False),
    ],
)
def test_the_scheduler_is_asked_why_it_sent_sigterm(
    changes: dict[str, Any], node: int, is_asked: bool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Diagnosis("time-limit", "observed", "the job's time is up", "why", ())
    monkeypatch.setattr("ddplaunch.hosts.slurm.job_reasons.why_ended", lambda *_: limit)
    stopped = "stopped" in changes
    both = replace(attempt(rank(0, **TERMINATED), rank(1, **TERMINATED)), hung=(HUNG,) * (not stopped))
    run = ended(both, **{"state": "signal", **changes})
    said = told(
        settings._replace(node=node), run, 124 if stopped else 1 if "state" in changes else 128 + changes["signal"]
    )
    assert said.startswith("ddplaunch: stopped (exit status 124)") is stopped
    outcome_here = json.loads(next(Path(settings.directory).rglob("outcome.json")).read_text())
    code = outcome_here["diagnosis"]["code"]
    assert (code == limit.code, code == STOPPED.code) == (is_asked, stopped)
    assert [each["what"] for each in outcome_here["findings"]] == [HUNG.what] * ("state" not in changes and not stopped)
    assert outcome_here["first_failed_rank"] == (1 if stopped else None)


def test_attempt_that_is_followed_by_another(settings: Settings) -> None:
    text, final = attempt_ended(settings, two_ranks())
    assert not final and text.startswith("ddplaunch: attempt 1 of 4 failed: error[script-exception] ")
    assert text.rstrip().endswith("; restarting")
    assert attempt_ended(settings, attempt(rank(0), rank(1))) == ("", False), "nodes came or went"
    said = told(Settings(), ended(attempt(rank(0)), state="error", error="RendezvousTimeoutError"), 1)
    assert "error[" in said and "no record" in said and "explaining why failed" not in said


@pytest.mark.parametrize(
    ("last", "noted", "changes", "final"),
    [
        ("ModuleNotFoundError: No module named 'einops'", False, {}, True),
        ("ValueError: bad batch", False, {}, False),
        ("ModuleNotFoundError: No module named 'einops'", True, {}, False),  # it has trained
        ("ModuleNotFoundError: No module named 'einops'", False, {"observe": False}, False),  # nobody knows
        ("SyntaxError: '(' was never closed", False, {}, True),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'prepare.sh'", False, {}, True),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'", False, {}, True),
        ("train.py: error: unrecognized arguments: --epochs 3", False, {}, True),
        ("train.py: error: unrecognized arguments: --local-rank=0", False, {}, True),
    ],
)
def test_which_failures_a_restart_cannot_help(
    last: str, noted: bool, changes: dict[str, Any], final: bool, settings: Settings
) -> None:
    files = Path(f"{settings.node_directory}/attempt-0")
    (files / "rank-1.out").write_text(TRACEBACK.replace("ValueError: bad batch", last))
    if noted:
        (files / "rank-0.observed.json").touch()
    text, found = attempt_ended(settings._replace(**changes), two_ranks())
    assert found is final and text.rstrip().endswith("restarts it)" if final else "; restarting"), text
    alone = replace(two_ranks(), unwritten={"node-0/attempt-0/rank-1.out": last.encode()})
    assert attempt_ended(Settings(), alone)[1] is False, "without a record nobody knows whether it has trained"
    assert attempt_ended(settings._replace(restart_always=True), two_ranks())[1] is False


def test_a_run_that_somebody_stopped_is_no_error() -> None:
    what = "stopped by ada with `ddplaunch stop`"
    found = Diagnosis("terminated", "observed", what, "by SIGTERM", ("start it again",), is_stop=True)
    stopped = RunOutcome("r", "node-1", 0, "terminated", 143, 0.0, 9.0, None, found, (), ())
    text = outcome_text(stopped, "runs/r", Terminal(200), signal=15)
    assert text == f"ddplaunch: {found.what} (exit status 143) after 9.0 s, record in runs/r\n"
    later = explanation_text(Explanation(found, warnings=(HUNG,)), "run r", Terminal(80))
    assert later.startswith(f"nothing failed in run r: {found.what}\nwarning[collective-timeout]: {HUNG.what}\n")
    outside = replace(stopped, diagnosis=replace(found, is_stop=False))
    assert "error[terminated]" in outcome_text(outside, None, Terminal(200))


@pytest.mark.parametrize(
    ("state", "code", "says"),
    [
        ("failed", "1", "it failed like earlier, with the same command and code: this is deterministic"),
        ("failed", "2", "it failed like earlier, although train.py changed since"),
        ("succeeded", "1", "the same command succeeded as earlier, with the same code"),
        ("succeeded", "2", "the same command succeeded as earlier, before train.py changed"),
    ],
)
def test_a_failure_is_told_beside_the_run_before(settings: Settings, state: str, code: str, says: str) -> None:
    directory = record(Path(settings.directory).parents[1], "r", code={"train.py": "1"})
    earlier = record(directory.parents[1], "earlier", begun_s=100.0, code={"train.py": code})
    assert "earlier" not in told(settings, ended(two_ranks()), 1)
    failure = recorded(settings)["diagnosis"] if state == "failed" else None
    outcome_of_run(earlier, state, diagnosis=failure, cascade=[])
    assert says in " ".join(told(settings, ended(two_ranks()), 1).split())
    assert "earlier" not in told(settings._replace(node=1), ended(two_ranks()), 1), "node 0 says it"
    told(settings, ended(attempt(rank(0), rank(1)), state="succeeded"), 0)
    assert recorded(settings)["previous"] is None


def test_success_is_one_line_even_without_a_disk(settings: Settings) -> None:
    run = ended(attempt(rank(0), rank(1)), state="succeeded")
    assert told(settings, run, 0) == "ddplaunch: done after 10 s, record in runs/r\n"
    told(settings, replace(run, attempts=(two_ranks(), attempt(rank(0), rank(1), number=1))), 0)
    assert [each["failed"] for each in recorded(settings)["attempts"]] == [True, False]
    directory = Path(settings.directory) / "file"
    directory.write_text("in the way")
    assert "incomplete: outcome.json: Not a directory" in told(settings._replace(directory=str(directory)), run, 0)


@pytest.mark.parametrize("observes", [True, False])
def test_losses_that_are_not_finite_are_told_if_ranks_are_observed(
    observes: bool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(f"{settings.node_directory}/attempt-0/rank-0.out").write_text("step 1 loss 0.5\n" + "step 2 loss nan\n" * 9)
    run, quiet = ended(attempt(rank(0), rank(1)), state="succeeded"), settings._replace(observe=observes, quiet=True)
    monkeypatch.setattr("ddplaunch.agent.end.conclude.explain_attempt", never)  # it may be a lot to read
    said = told(quiet, run, 0)
    assert (said != "") is ("warning[" in said and "nan" in said) is observes, said


def test_the_time_counts_from_what_the_user_typed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(attempt(rank(0), rank(1)), state="succeeded")
    for typed, shown in ((str(run.started_s - 5), "15 s"), ("soon", "10 s")):
        monkeypatch.setenv("DDPLAUNCH_TYPED", typed)
        assert told(settings, run, 0) == f"ddplaunch: done after {shown}, record in runs/r\n"
    assert recorded(settings)["started_s"] == run.started_s  # when ranks could begin


def test_a_quiet_run_says_only_what_is_wrong(settings: Settings) -> None:
    quiet = settings._replace(quiet=True)
    fine = ended(attempt(rank(0), rank(1)), state="succeeded")
    assert told(quiet, fine, 0) == ""
    killed = replace(fine, left_over=(17,))
    assert told(quiet, killed, 0).startswith("ddplaunch: done after "), "something had to be killed"
    assert recorded(quiet)["notes"] == ["processes that had to be killed at the end: 17"]
    assert "no record: no run directory was named" in told(quiet._replace(directory=""), fine, 0)
    assert "error[script-exception]" in told(quiet, ended(two_ranks()), 1)
    silent = settings._replace(silent=True)
    assert told(silent, ended(two_ranks()), 1) == "", "the launcher of all hosts reads it in the record"
    assert "no record" in told(silent._replace(directory=""), ended(two_ranks()), 1)


def test_phases_are_told_after_the_last_attempt_if_they_were_measured(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine, measured = ended(attempt(rank(0), rank(1)), state="succeeded"), settings._replace(phases=True, quiet=True)
    for one in (measured, measured._replace(silent=True)):  # the launcher of all hosts has no phases to show
        assert told(one, fine, 0).startswith("phases: no optimizer step was seen twice")
    assert told(measured._replace(silent=True, node=1), fine, 0) == "", "those of node 0 are enough"
    assert "phases" not in told(measured, ended(state="error"), 1), "there was no attempt"
    monkeypatch.setattr("ddplaunch.watch.phases.phases_in", lambda *_: 1 / 0)
    assert told(measured, fine, 0).startswith("ddplaunch: what was measured could not be read: ZeroDivisionError(")


def test_what_prove_measured_is_told_once_and_may_be_ignored(settings: Settings) -> None:
    fine, proves = ended(attempt(rank(0), rank(1)), state="succeeded"), settings._replace(prove=True, quiet=True)
    right = "ddplaunch: right gradients: the mean over 2 ranks at 1 step\n"
    folder = Path(settings.node_directory or "", "attempt-0")
    for taken, said in ((MEAN, True), (MEAN, False), ([9.0, 9.0, 9.0], True)):
        for number in (0, 1):
            one = step(number, taken)
            Path(folder, f"rank-{number:06}.proof").write_text(json.dumps(one) + "\n")
        text = told(proves, fine if said else replace(fine, told=(right,)), 0)
        assert text.startswith(right) is (said and taken == MEAN), text
        assert text.startswith("ddplaunch: open gradients: the same on all ranks") is (taken != MEAN), text
    Path(folder, "rank-000001.proof").write_text(json.dumps(step(1, OWN[1])) + "\n")
    assert "error[gradients-not-averaged]" in told(proves, fine, 0)
    assert "gradients" not in told(proves._replace(ignore=("gradients-not-averaged",)), fine, 0)
    assert "gradients" not in told(settings, fine, 0), "nobody asked"
    for path in folder.glob("*.proof"):
        path.unlink()
    assert told(proves, fine, 0).startswith("ddplaunch: open gradients: no step of an optimizer of torch was seen")


# What is known beside the logs

ALONE = Settings()


def test_torchruns_own_words_are_read_when_the_run_is_over(settings: Settings) -> None:
    words = b"[E] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n"
    Path(f"{settings.node_directory}/launcher.err").write_bytes(words)
    unready = attempt(rank(0, **TERMINATED), rank(4, **TERMINATED))
    assert "error[port-taken]" in told(settings, ended(unready, state="error"), 1)
    assert "error[port-taken]" in told(settings, ended(state="error"), 1), "before any rank was started"
    lost = replace(unready, unwritten={"node-0/launcher.err": words})
    assert "error[port-taken]" in told(ALONE, ended(lost, state="error"), 1)
    assert "error[script-exception]" in attempt_ended(settings, two_ranks())[0]


def test_last_words_in_memory_explain_a_failure(settings: Settings) -> None:
    """The disk took a part of a line."""
    name, words = "node-0/attempt-0/rank-1.out", TRACEBACK.encode()
    Path(settings.directory, name).write_bytes(words[:-50])
    run = ended(replace(two_ranks(), unwritten={name: words[-50:]}), unrecorded="rank-1.out: it is full")
    said = " ".join(told(settings, run, 1).split())
    assert "error[script-exception]: ValueError: bad batch at train.py:20" in said
    assert "incomplete: rank-1.out: it is full" in said


def test_who_stopped_a_run_is_in_its_record(settings: Settings) -> None:
    def said(number: int) -> str:
        both = attempt(rank(0, **TERMINATED), rank(2, **TERMINATED))
        return " ".join(told(settings, ended(both, state="signal", signal=number), 128 + number).split())

    assert "error[terminated]: the run was ended from outside by SIGTERM" in said(signal.SIGTERM)
    note_stop(Path(settings.directory))
    assert "with `ddplaunch stop` (exit status 143)" in said(signal.SIGTERM)
    assert "error[terminated]: the run was ended from outside by SIGHUP" in said(signal.SIGHUP)
    note_stop(Path(settings.directory), launcher_lost=True)
    assert "because its launcher was lost" in said(signal.SIGTERM)


def test_kills_for_memory_count_from_the_start_of_the_run(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "kernel_lines", lambda _: ())
    killed = attempt(rank(0, exit_code=None, signal="SIGKILL", ended_s=5.0), rank(1, **TERMINATED), first=0)
    for before, now, times in (("1", 3, "2 times"), ("2", 3, "once"), ("3", 3, ""), ("", 3, ""), ("1", None, "")):
        monkeypatch.setenv("DDPLAUNCH_OOM_KILLS_BEFORE", before)
        monkeypatch.setattr(evidence, "oom_kills", lambda now=now: now)
        told(settings, ended(killed), 137)
        found = recorded(settings)["diagnosis"]
        assert found["code"] == ("host-out-of-memory" if times else "killed") and times in json.dumps(found["evidence"])


def test_the_kernels_lines_are_those_since_the_attempt_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet of a pipe for each record, as the device hands them out."""
    assert evidence.kernel_lines(steady_s() + 3600.0) == (), "of the future, or not to be read by this user"
    reading, writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    now_us = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
    for passed_us, text in (
        (-9_000_000, b"old"),
        (0, b"Out of memory: Killed \xff"),
        (1_000_000, b"later\n key=value"),
    ):
        os.write(writing, b"6,1,%d,-;%s\n" % (now_us + passed_us, text))
    os.write(writing, b"no record\n")
    monkeypatch.setattr(os, "open", lambda *_: reading)
    assert evidence.kernel_lines(steady_s() - 4.0) == ("Out of memory: Killed \ufffd", "later")
    with pytest.raises(OSError):
        os.fstat(reading)
    os.close(writing)


def test_a_full_disk_is_named_once_by_the_folder_of_the_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(Path(settings.directory).parents[1], "r")
    Path(f"{settings.node_directory}/attempt-0/rank-1.out").write_text("OSError: [Errno 28] No space left on device\n")
    monkeypatch.setenv("TMPDIR", settings.directory)
    for full_bytes, folders in ((0, []), (1 << 60, [settings.directory])):
        monkeypatch.setattr(evidence, "_FULL_BYTES", full_bytes)
        told(settings._replace(outputs=("/proc/none", settings.directory)), ended(two_ranks()), 1)
        fixes = recorded(settings)["diagnosis"]["fixes"]
        named = [fix.split("`")[1] for fix in fixes if fix.startswith("make room on")]
        assert named[:1] == folders and "." not in named, "the working directory is on that disk too"


def test_a_failed_collective_is_told_with_the_place_of_each_rank(settings: Settings) -> None:
    folder, stacks = (
        Path(f"{settings.node_directory}/attempt-0"),
        tuple(
            RankStack(
                number, 9, (ThreadStack("", (Frame(file, line, "wait"), Frame("/home/ada/train.py", line, "main"))),)
            )
            for number, file, line in ((0, "/usr/lib/python3/threading.py", 7), (1, "/x/torch/distributed/d.py", 3))
        ),
    )
    timed_out = (
        "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1000ms for recv operation\n"
    )
    for failure, is_located in ((TRACEBACK, False), (timed_out, True)):
        (folder / "rank-1.out").write_text(failure)
        told(settings, ended(replace(two_ranks(), stacks=stacks)), 1)
        assert ("rank 0 was in wait at train.py:7" in recorded(settings)["diagnosis"]["why"]) is is_located


def test_an_explanation_that_fails_hides_no_failure(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "probe_shm", lambda: 1 / 0)
    said = " ".join(told(settings, ended(two_ranks()), 1).split())
    assert "error[unknown]: the run failed, and explaining why failed too: ZeroDivisionError: " in said


DIAGNOSIS = Diagnosis(
    "cuda-out-of-memory",
    "observed",
    "CUDA out of memory on rank 2",
    "the batch does not fit",
    ("`ddplaunch run 4 --batch-size 4 --accum 2 -- train.py`", "a GPU with more memory"),
    2,
    "node-1",
    (Evidence("node-0/attempt-0/rank-2.err", 41, "torch.cuda.OutOfMemoryError"),),
)


def outcome(**changes: object) -> RunOutcome:
    run = RunOutcome("r", "node-1", 0, "failed", 1, 0.0, 7500.0, 2, DIAGNOSIS, (), ())
    return replace(run, **changes)  # type: ignore[arg-type]


def before(*diagnoses: Diagnosis | None) -> tuple[AttemptOutcome, ...]:
    return tuple(AttemptOutcome(number, 0.0, 1.0, True, each, ()) for number, each in enumerate(diagnoses))


ASKED = Diagnosis("terminated", "observed", "the run was ended from outside by SIGINT", "Ctrl-C", ("nothing is wrong",))
KILLED = replace(
    before(None)[0],
    ranks=tuple(rank(each, signal="SIGKILL" if each else "SIGINT", ended_by="launcher") for each in range(4)),
)
RAISED = replace(DIAGNOSIS, code="script-exception", exception=Raised("ValueError", "x"))
LONG = replace(
    DIAGNOSIS,
    what="a very long first line, " * 8,
    why="a mechanism that takes some words to explain, " * 5,
    calls=tuple(UserCall(f"model.py:{line} in layer", "x" * 90, line % 2 * 3, "torch") for line in range(30)),
    exception=Raised("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. " * 9),
)
ECHOES = tuple(Echo(f"kind {number} of line", number, "node-1", Evidence("x", 1, "y")) for number in range(9))
SAID = ("step 1", "[W1103 noise", *(f"line {number} " + "y" * 90 for number in range(20)))
LAST = replace(before(None)[0], ranks=(RankOutcome(2, 2, "node-1", last_lines=SAID),))
CASES = {
    "story": outcome(diagnosis=LONG, cascade=ECHOES, attempts=(LAST,)),
    "no-story": outcome(diagnosis=replace(LONG, calls=()), cascade=ECHOES, attempts=(LAST,)),
    "failed": outcome(),
    "done": outcome(state="succeeded", exit_status=0, diagnosis=None),
    "interrupted": outcome(state="terminated", exit_status=130, diagnosis=ASKED),
    "interrupted-twice": outcome(state="terminated", exit_status=130, diagnosis=ASKED, attempts=(KILLED,)),
    "killed": outcome(state="killed", exit_status=137, diagnosis=None),
    "alike": outcome(attempts=before(DIAGNOSIS, DIAGNOSIS)),
    "unlike": outcome(attempts=before(RAISED, None, DIAGNOSIS)),
    "done-at-last": outcome(
        state="succeeded",
        exit_status=0,
        diagnosis=None,
        attempts=(*before(RAISED), replace(before(None)[0], failed=False)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_last_words_on_the_console(case: str, golden: Golden) -> None:
    number = signal.SIGINT if case.startswith("interrupted") else None
    text = outcome_text(CASES[case], ".ddplaunch/runs/r", Terminal(80), signal=number)
    assert max(map(len, text.splitlines())) <= 80 and text.count("\n") <= 23, "it fits on the smallest screen"
    golden(f"outcome-{case}", text)
    red = "\x1b[1;31m" in outcome_text(CASES[case], None, Terminal(80, True), signal=number)
    assert red is (case not in ("interrupted", "done", "done-at-last")), "an end in order is no error"


def test_what_comes_by_chance_is_alike_but_not_called_deterministic() -> None:
    killed = replace(DIAGNOSIS, code="killed", host=None)
    text = outcome_text(outcome(attempts=before(killed, killed), diagnosis=killed), None, Terminal(200))
    assert "  both attempts failed alike\n" in text
    third = outcome(attempts=before(killed, killed, killed), diagnosis=killed)
    assert "  all 3 attempts failed alike\n" in outcome_text(third, None, Terminal(200))
    assert f", rank {killed.rank}; restarting" in attempt_text(0, 2, killed, Terminal(200))


def test_words_that_the_diagnosis_quotes_are_not_said_again() -> None:
    ranks = (RankOutcome(2, 2, "node-1", last_lines=("CUDA out of memory on rank 2",)),)
    run = outcome(attempts=(replace(before(None)[0], ranks=ranks),))
    assert "printed last" not in outcome_text(run, None, Terminal(80))
    ranks = (replace(ranks[0], last_lines=("the lines before it", "CUDA out of memory on rank 2")),)
    run = outcome(attempts=(replace(before(None)[0], ranks=ranks),))
    assert "      the lines before it\n" in outcome_text(run, None, Terminal(80))
    assert "printed last" not in outcome_text(replace(run, state="terminated"), None, Terminal(80))
    assert "printed last" not in outcome_text(run, None, Terminal(80), stopped=True)
