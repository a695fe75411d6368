"""The plug-in's parts by themselves: what ranks write into, what is told of the end, and reading without a guard."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddplaunch.agent.plugin import torchrun_end
from ddplaunch.agent.plugin.outlets import close, console_kinds, open_outlets, path_of
from ddplaunch.agent.plugin.torchrun_end import Ending, OtherNodes, error_text, fallback_status, write_alone
from ddplaunch.agent.rank_site import sitecustomize
from ddplaunch.planning.settings import Settings
from ddplaunch.records.outcome import RunOutcome, read_outcome
from tests.agent.guarded import PATIENCE_S, ROOT


def test_what_the_shown_rank_gets() -> None:
    ends = [pty.openpty(), pty.openpty(), os.pipe(), os.pipe()]
    one, other, writing, log = (end for _, end in ends)
    same = os.dup(writing)
    try:
        assert console_kinds(one, one) == ("terminal",)
        assert console_kinds(one, other) == ("terminal", "terminal")  # two terminals
        assert console_kinds(writing, one) == ("pipe", "terminal")  # > out.txt
        assert console_kinds(one, writing) == ("terminal", "pipe")  # 2> err.txt
        assert console_kinds(writing, same) == ("pipe",)  # 2>&1 | tee
        assert console_kinds(writing, log) == ("pipe", "pipe")
    finally:
        for descriptor in (same, *(descriptor for pair in ends for descriptor in pair)):
            os.close(descriptor)
    assert console_kinds(writing, one) == ("pipe", "pipe"), "both are closed"


def test_outlets_carry_bytes_as_they_are() -> None:
    outlets = open_outlets(("pipe", "terminal"))
    for outlet in outlets:
        assert not os.get_inheritable(outlet.read) and not os.get_inheritable(outlet.write)
        with open(path_of(outlet.write), "w") as stream:  # as torchrun opens it
            stream.write("a\nb\t\x1b[1m\r")
        assert os.read(outlet.read, 100) == b"a\nb\t\x1b[1m\r"
    close(outlets)
    with pytest.raises(OSError):
        os.fstat(outlets[0].read)


@pytest.mark.parametrize(
    ("changes", "terminals", "watched"),
    [
        ({}, (1, 2), True),
        ({"CI": "true"}, (1, 2), False),
        ({"TERM": "dumb"}, (1, 2), False),
        ({"DDPLAUNCH_AGENT": '{"run_id":"r","quiet":true}'}, (1, 2), False),
        ({}, (2,), False),
        ({}, (1,), False),
    ],
)
def test_only_who_looks_at_a_terminal_is_told_what_goes_on(
    changes: dict[str, str], terminals: tuple[int, ...], watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = {"DDPLAUNCH_TYPED": "1.0", "DDPLAUNCH_AGENT": '{"run_id":"r"}', "TERM": "xterm"}
    monkeypatch.setattr(os, "environ", launch | changes)
    monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor in terminals)
    assert sitecustomize.is_watched() is watched
    monkeypatch.setattr(os, "environ", {"TERM": "xterm"})  # torchrun without ddplaunch, or with --no-capture
    assert not sitecustomize.is_watched()


def test_a_terminal_of_another_session_ends_no_import() -> None:
    program = (
        "import signal; from ddplaunch.agent.rank_site import sitecustomize; sitecustomize._show_import()\n"
        "signal.raise_signal(signal.SIGALRM); print('goes on', signal.getitimer(signal.ITIMER_REAL))"
    )
    master, slave = pty.openpty()
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=slave, start_new_session=True, check=False)
    os.close(slave)
    os.close(master)
    assert (done.returncode, done.stdout) == (0, b"goes on (0.0, 0.0)\n")


def test_an_import_that_fails_ends_with_its_own_status() -> None:
    program = (
        "import sys; from ddplaunch.agent.rank_site import sitecustomize; sitecustomize._show_import()\n"
        "class Slow: __del__ = lambda self, wait=__import__('time').sleep: wait(1.5)\n"
        "sys.slow = Slow(); import no_such"
    )
    assert subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=False).returncode == 1


def raised(**attributes: object) -> Exception:
    error = RuntimeError("gone")
    vars(error).update(attributes)
    return error


OF_TORCH = {3: SimpleNamespace(pid=5, exitcode=-9, message="said", timestamp=7)}
FAILURES = [{"rank": 3, "pid": 5, "exit_code": -9, "timestamp_s": 7}]


@pytest.mark.parametrize(
    ("value", "first", "message"),
    [
        (raised(failures=OF_TORCH), None, {"state": "failed", "signal": None, "failures": FAILURES}),
        (raised(failures=OF_TORCH), 15, {"state": "failed", "signal": 15, "failures": FAILURES}),
        (raised(failures={}), None, {"state": "error", "error": "RuntimeError: gone"}),
        (raised(sigval=1), None, {"state": "signal", "signal": 1}),
        (raised(sigval=1), 15, {"state": "signal", "signal": 15}),
        (KeyboardInterrupt(), None, {"state": "signal", "signal": 2}),
        (raised(), 15, {"state": "signal", "signal": 15}),
    ],
)
def test_what_is_reported_of_torchruns_own_exception(
    value: BaseException, first: int | None, message: dict[str, object]
) -> None:
    session: Any = SimpleNamespace()
    signals: Any = SimpleNamespace(first=first)
    ending = Ending(session, signals, lambda: None)
    assert ending._failed(value) == message
    ending._leaving = threading.get_ident()
    ending._leave(message)  # the end is being reported: nothing is left to do


#: A process that ends as torchrun may. What it has printed by then is to be seen before the end is reported.
ENDS = """
import os, resource, signal, sys, time
from ddplaunch.agent.plugin.session import Session
from ddplaunch.agent.plugin.signals import Signals
from ddplaunch.agent.plugin.torchrun_end import Ending
from ddplaunch.planning.settings import Settings
from ddplaunch.values.variable_names import SETTINGS
guarded, how, folder = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [open(os.devnull) for _ in range(1024)]  # so that what follows has numbers that select(2) does not take
signal.signal(2, signal.SIG_DFL)  # as torch was imported
settings, signals = Settings("r", folder), Signals()
assert signal.getsignal(2) is signal.default_int_handler
session = Session(settings, {**os.environ, SETTINGS: settings.to_json()}, ("pipe", "pipe"))
def before():
    os.write(1, b"before the end\\n")
    time.sleep(0.5 * (how == "signal"))
    print("printed last")
    1 / 0
ending = Ending(session, signals, before)
ending.install()
if guarded == "True":
    session.start()
print("printed", end=" ")
if how == "forks":
    if os.fork() == 0: sys.exit(5)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 5 and not os.path.exists(f"{folder}/outcome.json")
elif how == "raises":
    if os.fork() == 0: raise OSError("of a fork")
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 1 and not os.path.exists(f"{folder}/outcome.json")
    raise OSError("of its own")
elif how == "breaks":
    session.end = lambda message: 1 / 0
elif how == "ranks":
    def theirs(*_): print("heard", end=" ")
    signals.only_heard()
    signal.raise_signal(10)  # only the guard acts on it
    signals.before_ranks(ending.by_signal)
    signals.ranks_start()
    signal.signal(15, theirs)
    signals.ranks_run(theirs)
    for _ in range(2): signal.raise_signal(15)  # Slurm sends it twice
    raise OSError("as torch's handler")
elif how == "signal":
    signals.before_ranks(ending.by_signal)
    os.kill(os.getpid(), 15)
    while ending._leaving is None: time.sleep(0.01)
"""


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize(
    ("how", "state", "status"),
    [
        ("forks", "succeeded", 0),
        ("breaks", "succeeded", 0),
        ("raises", "failed", 1),
        *((how, "terminated", 143) for how in ("ranks", "signal")),
    ],
)
def test_the_end_of_torchruns_process_is_reported_once_and_not_by_its_forks(
    how: str, state: str, status: int, guarded: bool, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", ENDS, str(guarded), how, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    outcome = read_outcome(tmp_path)
    assert isinstance(outcome, RunOutcome), done.stderr
    assert (done.returncode, outcome.state, outcome.exit_status) == (status, state, status), done.stderr
    printed = "printed heard " if how == "ranks" else "printed "
    assert done.stdout.startswith(f"{printed}before the end\n") and done.stdout.endswith("printed last\n")
    assert done.stderr.count("\nOSError: of its own\n") == (how == "raises")
    told = guarded and how != "breaks"  # by the guard, which is ended where it cannot be asked
    assert bool(outcome.notes) is not told and ("ddplaunch: " in done.stderr) is told


def test_without_a_guard_torchrun_writes_what_it_knows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings("r", str(tmp_path))
    (tmp_path / "empty").mkdir()
    failed = {"state": "failed", "failures": told(3, -15)["failures"][::-1]}
    interrupted = {"state": "signal", "signal": 2}
    ends: list[tuple[dict[str, Any], int, str | None]] = [
        (failed, 3, None),
        (interrupted, 3, "Too many open files"),  # a guard that has reported this status wrote more
        (interrupted, 130, "Too many open files"),
    ]
    written = []
    for message, status, without in ends:
        write_alone(settings, message, status, 100.0, without)
        outcome = read_outcome(tmp_path)
        assert isinstance(outcome, RunOutcome) and outcome.started_s == 100.0
        note = outcome.notes[0].partition(": ")[2]
        written.append((outcome.state, outcome.exit_status, outcome.first_failed_rank, note))
    lost = ("failed", 3, 0, "the process that records it was lost")
    assert written == [lost, lost, ("terminated", 130, None, "Too many open files")]
    monkeypatch.chdir(tmp_path / "empty")
    write_alone(Settings("r"), failed, 3, 100.0, None)
    assert not list((tmp_path / "empty").iterdir()), "there is no record"


@pytest.mark.parametrize(
    ("first", "node", "state", "others", "calls"),
    [
        ("own", 0, "failed", "host 1", ["tells", "stays"]),
        ("own", 1, "failed", "host 1", ["tells"]),
        ("own", 1, "succeeded", "host 1", []),
        ("own", 1, "failed", "", []),  # on one node there is nobody to tell
        ("other", 0, "failed", "host 1", ["hears", "SIGTERM", *["rank runs"] * 2, "", "ends"]),
        ("gone", 0, "failed", "host 1", ["tells", "stays"]),
    ],
)
def test_of_two_ends_a_node_tells_its_own_or_obeys_the_others_once(
    first: str, node: int, state: str, others: str, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    ranks = ["", "rank runs", "rank runs"]  # seen three times
    store = SimpleNamespace(
        check=lambda names: [1 / 0] if first == "gone" else True,
        get=lambda name: '{"state": "failed"}',
        set=lambda name, text: made.append("tells" if json.loads(text)["state"] == "failed" else text),
    )

    def still_runs(pid: int) -> str:
        made.append(ranks.pop())
        return made[-1]

    settings = Settings("r", str(tmp_path), node=node, others=others, grace_s=60.0)
    session: Any = SimpleNamespace(settings=settings, pids=(7,), elsewhere=lambda outcome: made.append("hears"))
    write_alone(settings, {"state": state}, 1, 100.0, None)
    nodes = OtherNodes(session, lambda number: made.append("ends"))
    monkeypatch.setattr(nodes, "_store", lambda: store)
    monkeypatch.setattr(torchrun_end, "read_stat", still_runs)
    monkeypatch.setattr(time, "sleep", lambda seconds: made.append("stays") if seconds == 2 else None)
    monkeypatch.setattr(os, "kill", lambda pid, number: made.append(signal.Signals(number).name))
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None if first == "own" else thread.run())
    nodes.listen()
    nodes.listen()
    nodes.tell()
    nodes.tell()
    if others:
        nodes._listen()
    assert made == calls


def test_error_of_torchrun_names_where_it_came_from() -> None:
    used, here = OSError("address in use"), RuntimeError("no rendezvous")
    for cause, context, suppressed, words in (
        (used, TimeoutError(), True, " <- OSError: address in use"),
        (None, used, False, " <- OSError: address in use"),
        (None, used, True, ""),
        (here, None, True, ""),
    ):
        here.__cause__, here.__context__, here.__suppress_context__ = cause, context, suppressed
        assert error_text(here) == f"RuntimeError: no rendezvous{words}"
    assert error_text(TimeoutError()) == "TimeoutError"


def told(*codes: int) -> dict[str, Any]:
    failures = [{"rank": at, "exit_code": code, "timestamp_s": at} for at, code in enumerate(codes)]
    return {"state": "failed", "failures": failures}


def test_status_without_a_guard() -> None:
    assert fallback_status(told(-15, 3)) == 3 and fallback_status({**told(-9), "signal": 1}) == 129


@pytest.mark.parametrize(("rank", "waits"), [("1", True), ("0", False), (None, False)])
def test_one_rank_waits_for_a_debugger(rank: str | None, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun, which has no rank, hands the variable on; what the rank itself starts does not get it."""
    calls: list[object] = []
    debugger = SimpleNamespace(listen=calls.append, wait_for_client=lambda: calls.append("waits"))
    environ = {sitecustomize.DEBUG: "1", **({} if rank is None else {"RANK": rank})}
    monkeypatch.setitem(sys.modules, "debugpy", debugger)
    monkeypatch.setattr(os, "environ", environ)
    sitecustomize.begin(SimpleNamespace(keep_data_workers=lambda: None), lambda name: None)
    assert calls == [5678, "waits"] * waits and (sitecustomize.DEBUG in environ) is not waits
