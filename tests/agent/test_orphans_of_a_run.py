"""Nothing is left of a run, whatever became of torchrun; the process table is the witness."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.agent.protocol import send
from ddplaunch.machine.files import boot_id
from tests.agent.guarded import PATIENCE_S, ROOT, Guarded, at_rest, failure, runs, until, waits_for

# A rank with one child of each kind that multiprocessing makes, and one that ignores SIGTERM.
WITH_WORKERS = """
import multiprocessing as mp, os, signal, sys, time

def work(deaf):
    if deaf: signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b'child %d\\n' % os.getpid())
    time.sleep(300)

for deaf in (False, True):
    mp.get_context('fork').Process(target=work, args=(deaf,)).start()
{then}
"""


def children(record: bytes) -> list[int]:
    return [int(line.split()[1]) for line in record.splitlines() if line.startswith(b"child")]


def launched(*words: str | Path) -> subprocess.Popen[bytes]:
    """Start a launcher that does as these words say."""
    command = [sys.executable, "-m", "tests.agent.guarded_launcher", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pipesize=4096)


def pids_of(launcher: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Read what a launcher prints; its ranks share its output, and may have written a part of a line before it."""
    assert launcher.stdout
    line = next(line for line in launcher.stdout if b"{" in line)
    pids: dict[str, Any] = json.loads(line[line.index(b"{") :])
    return pids


@pytest.mark.slow
def test_kill_9_of_a_launcher_leaves_no_process_though_no_rank_was_announced(tmp_path: Path) -> None:
    program = WITH_WORKERS.format(then="time.sleep(300)")
    out = [tmp_path / f"run/node-0/attempt-0/rank-{rank}.out" for rank in range(2)]
    of_run: list[int] = []
    with launched(tmp_path, "unannounced", program, program) as launcher:
        try:
            seen = pids_of(launcher)
            of_run = [*seen["ranks"], seen["guard"]]
            until(lambda: all(file.exists() and len(children(file.read_bytes())) == 2 for file in out), "workers run")
            of_run += [pid for file in out for pid in children(file.read_bytes())]
            assert len(of_run) == 7 and all(map(runs, of_run))
            launcher.kill()
            until(lambda: not any(map(runs, of_run)), "all of the run ended, and the guard")
            os.kill(seen["holder"], signal.SIGKILL)
        finally:
            for pid in filter(runs, [launcher.pid, *of_run]):
                os.kill(pid, signal.SIGKILL)
    ended = pickle.loads((tmp_path / "ended.pickle").read_bytes())
    assert ended.launcher_died and ended.state == "error"
    assert {*of_run} - {seen["guard"]} <= {*ended.left_over}


SAID = ("failed", "its own words", False)  # state, error, whether it died without a word


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "status", "seen"),
    [
        ("speaks", 0, (*SAID, signal.SIGTERM, None)),
        ("speaks-early", 0, (*SAID, signal.SIGTERM, None)),
        ("hurries", -signal.SIGKILL, (*SAID, signal.SIGINT, None)),
        ("limited", -signal.SIGTERM, ("error", "", True, None, "time-limit")),
        ("deaf", -signal.SIGKILL, ("error", "", True, None, "time-limit")),
    ],
)
def test_what_torchrun_said_last_counts_though_its_death_is_seen_first(
    mode: str, status: int, seen: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guard waits for no reader of the console, once torchrun is gone or a person hurries; a deaf one is killed."""
    monkeypatch.setenv("GUARD_TEST_LONGER_S", "0")
    if mode == "speaks-early":
        monkeypatch.setenv("GUARD_TEST_STOPS", "before it knows its launcher")
    loud = "while True: print('z' * 99)"
    has_limit = mode in ("deaf", "limited")
    with launched(
        tmp_path, mode.removesuffix("-early"), "import time; time.sleep(300)" if has_limit else loud
    ) as launcher:
        pids = pids_of(launcher)
        left = [pids["guard"], *pids["ranks"]]
        try:
            if not has_limit:
                until(lambda: at_rest(pids["ranks"][0]), "more than the console takes waits for the guard")
                assert mode == "hurries" or launcher.wait(PATIENCE_S) == 0
                os.kill(pids["guard"], signal.SIGCONT)
            until(lambda: not any(map(runs, left)), "nothing is left")
            if mode == "hurries":
                launcher.kill()
            assert launcher.wait(PATIENCE_S) == status
        finally:
            for pid in filter(runs, [launcher.pid, *left]):
                os.kill(pid, signal.SIGKILL)
    ended = pickle.loads((tmp_path / "ended.pickle").read_bytes())
    stopped = ended.stopped and ended.stopped.code
    assert (ended.state, ended.error, ended.launcher_died, ended.signal, stopped) == seen
    assert [rank.ended_by for rank in ended.attempts[0].ranks] == ["launcher"]


@pytest.mark.slow
def test_at_a_good_end_only_what_multiprocessing_made_is_ended(tmp_path: Path) -> None:
    then = """
import subprocess
os.write(1, b'other %d\\n' % subprocess.Popen(['sleep', '300']).pid)
"""
    with Guarded(tmp_path, 2, 2) as guarded:
        then += waits_for(guarded.directory / "node-0/processes.json") + "os._exit(0)"
        guarded.attempt([WITH_WORKERS.format(then=then)])
        guarded.wait()
        until(lambda: len(children(guarded.file("attempt-0/rank-0.out"))) == 2, "workers run")
        table = json.loads(guarded.file("processes.json"))
        assert [rank["pid"] for rank in table["ranks"]] == [guarded.ranks[0].pid]
        assert (table["launcher"]["pid"], table["guard"]["pid"]) == (os.getpid(), guarded.guard.pid)
        assert (table["schema"], table["boot_id"]) == (1, boot_id()), "by which pids of another boot are told apart"
        status, ended = guarded.end()
        record = guarded.file("attempt-0/rank-0.out")
        other = int(next(line for line in record.splitlines() if line.startswith(b"other")).split()[1])
        assert status == 0 and sorted(ended.left_over) == sorted(children(record))
        assert not any(map(runs, children(record))) and runs(other)
        os.kill(other, signal.SIGKILL)


def test_after_a_failure_the_whole_session_of_a_rank_is_ended_but_no_other(tmp_path: Path) -> None:
    program = """
import subprocess, sys
print('child', subprocess.Popen(['sleep', '300']).pid)
print('apart', subprocess.Popen(['sleep', '300'], start_new_session=True).pid)
sys.exit(3)
"""
    with Guarded(tmp_path, 2, 2) as guarded:
        guarded.attempt([program])
        guarded.wait()
        status, ended = guarded.end("failed")
        (child,) = children(guarded.file("attempt-0/rank-0.out"))
        apart = int(guarded.file("attempt-0/rank-0.out").split()[-1])
        assert status == 3 and ended.left_over == (child,)
        assert not runs(child) and runs(apart)
        os.kill(apart, signal.SIGKILL)


@pytest.mark.slow
def test_the_second_interrupt_kills_and_signals_to_the_guard_do_not_end_it(tmp_path: Path) -> None:
    deaf = "import signal, time\nfor n in (2, 15): signal.signal(n, lambda *_: 0)\nprint('deaf')\ntime.sleep(300)"
    err = tmp_path / "err"
    with err.open("wb") as errors, Guarded(tmp_path, 2, errors, grace_s=600.0) as guarded:
        guarded.attempt([deaf, deaf])
        until(lambda: b"deaf" in guarded.file("attempt-0/rank-1.out"), "ranks are deaf")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGINT, signal.SIGUSR1):
            guarded.guard.send_signal(number)
            guarded.guard.send_signal(number)
        guarded.signalled(signal.SIGINT)
        until(lambda: at_rest(guarded.guard.pid), "the guard has looked at them")
        assert all(rank.poll() is None for rank in guarded.ranks.values()) and guarded.guard.poll() is None
        guarded.signalled(signal.SIGTERM)  # the first one is what ended the run, and is told
        guarded.signalled(signal.SIGINT)
        guarded.wait()
        assert [rank.returncode for rank in guarded.ranks.values()] == [-signal.SIGKILL] * 2
        status, ended = guarded.end("signal")
        assert status == 130 and err.read_bytes().count(b"for 2 ranks to save; Ctrl-C again kills them\n") == 1
        assert {rank.ended_by for rank in ended.attempts[0].ranks} == {"launcher"} and ended.attempts[0].first is None


def test_whom_torchrun_ends_has_not_failed_whatever_its_status(tmp_path: Path) -> None:
    """On a node where none failed: torchrun ends its ranks, as it lost another node. One rank's handler raises."""
    raises = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(1))\nprint('up')\nsignal.pause()"
    with Guarded(tmp_path, 2, 2) as guarded:
        guarded.attempt([raises, "print('up'); import time; time.sleep(300)", "import os; os.abort()"])
        until(lambda: all(guarded.file(f"attempt-0/rank-{rank}.out") == b"up\n" for rank in (0, 1)), "they run")
        for rank in range(3):
            (guarded.directory / f"node-0/attempt-0/rank-{rank}.through").write_text("group")
        guarded.guard.send_signal(signal.SIGSTOP)  # it hears of all late
        send(guarded.channel, {"op": "closing", "pids": [guarded.ranks[rank].pid for rank in (0, 1)], "signal": None})
        for rank in (0, 1):
            guarded.ranks[rank].terminate()
        guarded.guard.send_signal(signal.SIGCONT)
        guarded.wait()
        _, ended = guarded.end("error")
    (attempt,) = ended.attempts
    assert [(rank.exit_code, rank.ended_by, rank.through) for rank in attempt.ranks] == [
        (1, "launcher", None),
        (None, "launcher", None),
        (None, "itself", "group"),
    ]
    assert attempt.first == 2


@pytest.mark.parametrize(
    ("fails", "asked", "state", "status"),
    [
        ("sys.exit(3)", None, "failed", 3),
        ("sys.exit(3)", 15, "terminated", 143),
        ("os.kill(os.getpid(), 15)", None, "terminated", 143),
    ],
)
def test_a_signal_while_torchrun_ends_the_other_ranks_does_not_hide_which_failed(
    fails: str, asked: int | None, state: str, status: int, tmp_path: Path
) -> None:
    """As from a rank that passes SIGTERM on to torchrun; a scheduler sends it to ranks and torchrun at once."""
    with Guarded(tmp_path, 2, 2) as guarded:
        guarded.attempt([waits_for(tmp_path / "never"), f"import os, sys\n{fails}"])
        send(guarded.channel, {"op": "closing", "pids": [guarded.ranks[0].pid], "signal": asked})
        guarded.signalled(signal.SIGTERM)
        guarded.ranks[0].terminate()
        guarded.wait()
        told, ended = guarded.end("signal", signal=15)
    assert (ended.run_state(), told) == (state, status)


def test_a_guard_that_hears_of_all_late_takes_torchruns_word_and_spares_the_ranks(tmp_path: Path) -> None:
    err = tmp_path / "err"
    with err.open("wb") as errors, Guarded(tmp_path, 2, errors) as guarded:
        guarded.guard.send_signal(signal.SIGSTOP)
        guarded.attempt(["import os; os.kill(os.getpid(), 15)", "import sys; sys.exit(3)"])
        guarded.wait()
        lives = "import time; time.sleep(0.5); print('lived')"
        failures = [failure(rank, guarded.ranks[rank].pid, code) for rank, code in ((0, -15), (1, 3))]
        guarded.failed(*failures)
        guarded.attempt([lives, lives], number=1)  # and these ranks run already
        guarded.guard.send_signal(signal.SIGCONT)
        guarded.wait()
        status, ended = guarded.end()
        assert [guarded.file(f"attempt-1/rank-{rank}.out") for rank in (0, 1)] == [b"lived\n"] * 2
        assert guarded.verdicts == {0: True}
    first, second = ended.attempts
    assert status == 0 and not ended.left_over and err.read_bytes().count(b"attempt 0 ended\n") == 1
    assert first.first == 1 and [(each.exit_code, each.signal, each.ended_by) for each in first.ranks] == [
        (None, "SIGTERM", "launcher"),
        (3, None, "itself"),
    ]
    assert not {rank.pid for rank in first.ranks} & {rank.pid for rank in second.ranks}


@pytest.mark.parametrize(("code", "fails"), [(0, False), (3, False), (3, True)])
def test_torchruns_last_word_on_a_rank_that_nobody_saw_and_then_another_nodes(
    code: int, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is the same where the explanation ``fails``."""
    if fails:
        monkeypatch.setenv("GUARD_TEST_FAILS", "1")
    err = tmp_path / "err"
    with err.open("wb") as errors, Guarded(tmp_path, 2, errors) as guarded:
        guarded.guard.send_signal(signal.SIGSTOP)
        guarded.attempt([f"import sys; sys.exit({code})"])
        guarded.wait()
        failures = [failure(0, guarded.ranks[0].pid, code)] * (code > 0)
        said = {"state": "failed" if code else "succeeded", "signal": None, "failures": failures, "error": ""}
        send(guarded.channel, {"op": "end", **said})
        send(guarded.channel, {"op": "elsewhere", "outcome": {"node": 1}})
        guarded.guard.send_signal(signal.SIGCONT)
        status, ended = guarded.done()
    assert status == code and (ended.attempts[0].ranks[0].exit_code, list(ended.failures)) == (code, failures)
    assert ended.elsewhere == {"node": 1}
    said_at_last = b"(rank 0 failed first); explaining it failed: ZeroDivisionError()\n" if fails else b"concluded\n"
    assert err.read_bytes().endswith(said_at_last)


def test_interrupts_before_there_are_ranks_are_remembered_and_torchruns_word_on_them_counts(tmp_path: Path) -> None:
    with Guarded(tmp_path, 2, 2) as guarded:
        for _ in range(2):
            guarded.signalled(signal.SIGINT)
        assert guarded.end("signal", signal=signal.SIGTERM)[0] == 143


@pytest.mark.slow
def test_a_restart_ends_the_attempt_before_also_where_it_cannot_be_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUARD_TEST_FAILS", "1")
    err = tmp_path / "err"
    with err.open("wb") as errors, Guarded(tmp_path, errors, errors) as guarded:
        guarded.attempt([WITH_WORKERS.format(then="os._exit(7)"), "print('well')"], one=True)
        guarded.wait()
        until(lambda: len(children(guarded.file("attempt-0/rank-0.out"))) == 2, "workers run")
        guarded.attempt(["print('again 0')", "print('again 1'); raise SystemExit(4)"], number=1, one=True)
        guarded.wait()
        status, ended = guarded.end("failed")
        first, second = ended.attempts
        assert (status, first.first, second.first) == (4, 0, 1)
        assert [rank.exit_code for one in (first, second) for rank in one.ranks] == [7, 0, 0, 4]
        assert {(rank.out is None, rank.err) for rank in first.ranks} == {(False, None)}, "both streams are one"
        assert set(children(guarded.file("attempt-0/rank-0.out"))) <= set(ended.left_over)
        assert guarded.file("attempt-1/rank-1.out") == b"again 1\n" and guarded.verdicts == {0: False}
    assert b"attempt 0 has ended; explaining it failed: ZeroDivisionError()\n" in err.read_bytes()
