"""Who belongs to a run, from the process table alone; real processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from ddplaunch.agent.guard.attempt import Attempt
from ddplaunch.agent.guard.loop import Loop
from ddplaunch.agent.guard.sweep import Owner, Sweeps, grace_of_left, of_ranks, unannounced
from ddplaunch.machine.processes.process_table import ProcessStat, own_processes, read_stat
from ddplaunch.machine.processes.stop_processes import asked_first, send_signal, status_of_reaped
from tests.agent.guarded import PATIENCE_S, failure, until

STAT = b"%d (%s) %s %d %d %d" + b" 0" * 15 + b" %d" + b" 0" * 29 + b" %d\n"


def row(pid: int, parent: int, session: int, start: int, state: bytes = b"S", name: bytes = b"python") -> ProcessStat:
    return ProcessStat(pid, STAT % (pid, name, state, parent, pid, session, start, 0))


def owner(pid: int, start: int) -> Owner:
    return Owner(pid, None, start)


def test_what_a_look_within_a_look_has_handled_is_not_handled_again() -> None:
    loop, read = Loop(), list[int]()

    def look(one: int) -> None:
        os.eventfd_read(one)  # which fails where nothing is left
        read.append(one)
        loop.once(0)

    wakes = [os.eventfd(1, os.EFD_NONBLOCK) for _ in range(2)]
    for wake in wakes:
        loop.watch(wake, lambda wake=wake: look(wake))  # type: ignore[misc]
    loop.once(1.0)
    assert sorted(read) == sorted(wakes)
    for wake in wakes:
        loop.forget(wake)
        os.close(wake)


def test_a_rank_its_session_and_nobody_else() -> None:
    table = [
        row(10, 5, 10, 100, name=b"a) R (b"),  # the rank
        row(11, 10, 10, 100),  # its worker, which it has made at once
        row(12, 1, 10, 120),  # a worker's child, orphaned
        row(13, 10, 13, 130),  # given a session of its own
        row(14, 13, 13, 131),
        row(15, 5, 5, 100),  # torchrun's
    ]
    assert [one.pid for one in of_ranks(table, {10: owner(10, 100)})] == [10, 11, 12]
    assert (table[0].name, table[0].alive) == ("a) R (b", True) and not row(7, 1, 7, 90, b"Z").alive
    assert of_ranks([row(10, 1, 10, 40), row(11, 10, 10, 45)], {10: owner(10, 50)}) == [], "its number was given again"


def test_a_rank_that_nobody_told_of_is_found_by_the_token_of_its_launch() -> None:
    launcher, token = read_stat(os.getpid()), "launch-a"
    environment = {**os.environ, "DDPLAUNCH_RUN_ID": "run", "DDPLAUNCH_LAUNCH": token}
    other = {**environment, "DDPLAUNCH_LAUNCH": "launch-b"}
    code = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True),
        subprocess.Popen([sys.executable, "-c", code], env=other, start_new_session=True),
        subprocess.Popen([sys.executable, "-c", code], env=environment),
    ]
    try:
        until(lambda: unannounced(own_processes(), token, launcher), "the kernel shows its environment")
        found = unannounced(own_processes(), token, launcher)
        assert [one.pid for one in found] == [started[0].pid]
        assert unannounced(own_processes(), "", launcher) == [] == unannounced(own_processes(), token, None)
        for younger_by, pids in ((0, [started[0].pid]), (1, [])):  # what ran before torchrun is none of its ranks
            torchrun = row(os.getpid(), 1, 1, found[0].start_ticks + younger_by)
            assert [one.pid for one in unannounced(own_processes(), token, torchrun)] == pids
        owners = {started[0].pid: Owner(started[0].pid, found[0])}
        until(lambda: len(of_ranks(own_processes(), owners)) == 2, "its child runs")
        _, child = of_ranks(own_processes(), owners)
        apart = row(child.pid, child.parent, child.pid, child.start_ticks)
        assert unannounced([found[0], apart], token, launcher) == [found[0]], "what a rank starts in another session"
        sweeps = Sweeps(Loop().at)
        sweeps.begin(lambda: of_ranks(own_processes(), owners), lambda _: 1.0)

        def swept() -> bool:
            sweeps.tick()
            return not sweeps.running

        until(swept, "swept")
        assert started[0].wait(10) == -signal.SIGTERM and len(sweeps.ended) == 2
        assert started[1].poll() is None and started[2].poll() is None
    finally:
        for one in started:
            for child in own_processes():
                if child.parent == one.pid:
                    send_signal(child, signal.SIGKILL)
            one.kill()
            one.wait()


def test_a_stopped_process_that_catches_sigterm_goes_on_to_save() -> None:
    program = "import os, signal\nsignal.signal(15, lambda *_: os._exit(3))\nprint(flush=True)\nsignal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"\n"
        process.send_signal(signal.SIGSTOP)
        sweeps = Sweeps(Loop().at)
        sweeps.begin(lambda: [one for one in own_processes() if one.pid == process.pid], lambda _: 600.0)
        try:
            assert process.wait(PATIENCE_S) == 3 and sweeps.ended == {process.pid}
        finally:
            process.kill()


def test_what_cannot_be_ended_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddplaunch.agent.guard.sweep._GIVE_UP_AFTER_S", 0.1)
    sweeps = Sweeps(Loop().at)
    sweeps.begin(lambda: [row(os.getpid(), 1, 1, 1)], None)  # its number is another's: it gets no signal
    assert sweeps.running

    def given_up() -> bool:
        sweeps.tick()
        return not sweeps.running

    until(given_up, "it is given up")


def test_only_what_runs_below_python_is_not_asked_at_first() -> None:
    python_below_shell = f"{sys.executable} -c \"import subprocess; subprocess.run(['sleep', '60'])\"; :"
    rank = subprocess.Popen(["sh", "-c", python_below_shell], start_new_session=True)
    owners = {rank.pid: Owner(rank.pid, read_stat(rank.pid))}
    try:
        until(lambda: len(of_ranks(own_processes(), owners)) == 3, "the shell, Python and sleep run")
        shell, python, sleep = of_ranks(own_processes(), owners)
        assert asked_first([sleep, python, shell]) == [python, shell]
        assert asked_first([sleep]) == [sleep], "Python is gone"
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


@pytest.mark.parametrize(
    ("code", "name", "grace_s"),
    [
        ("signal.signal(signal.SIGTERM, print)", "", 30.0),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "", 1.0),
        ("signal.signal(signal.SIGTERM, print)", "pt_data_worker", 1.0),
        ("signal.signal(signal.SIGTERM, print)  # multiprocessing.spawn", "", 1.0),
    ],
)
def test_what_catches_sigterm_and_is_no_data_worker_has_the_grace(code: str, name: str, grace_s: float) -> None:
    named = f"open('/proc/self/comm', 'w').write({name!r})" if name else ""
    program = f"import signal, time; {code}; {named}\nprint(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline() == b"\n"
        seen = read_stat(process.pid)
        assert seen and grace_of_left({}, 30.0)(seen) == grace_s
        rank = Owner(process.pid, seen)
        assert grace_of_left({process.pid: rank}, 30.0)(seen) == (1.0 if "SIG_IGN" in code else 30.0)
        assert grace_of_left({1: rank}, 30.0)(seen) == 1.0, "a fork of a rank has its command line"
    finally:
        process.kill()
        process.communicate()
    assert grace_of_left({}, 30.0)(seen) == 1.0, "it is gone"


def test_the_command_line_of_a_process_is_known_from_its_start() -> None:
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})  # so that the process is not through its execve when Popen returns
    try:
        with subprocess.Popen(["sleep", "60"]) as new:
            owner = Owner(new.pid, read_stat(new.pid))
            new.kill()
    finally:
        os.sched_setaffinity(0, cpus)
    assert owner.command == (b"sleep", b"60")


def test_the_status_of_a_process_that_was_reaped_is_right_where_the_kernel_keeps_it() -> None:
    for command, expected in (("exit 5", 5 << 8), ("kill -9 $$", 9), ("exit 0", 0)):
        child = subprocess.Popen(["sh", "-c", command])
        handle = os.pidfd_open(child.pid)
        child.wait(10)
        assert status_of_reaped(handle) in (expected, None)
        os.close(handle)


def announced(ranks: int) -> Attempt:
    return Attempt(0, [{"rank": rank, "local_rank": rank, "streams": ["out"]} for rank in range(ranks)])


def ended(*words: str) -> subprocess.Popen[bytes]:
    """Return a process that has ended, and that nobody has reaped."""
    process = subprocess.Popen(words)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


def test_where_the_kernel_has_no_pidfd_torchruns_word_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    attempt, (first, second, last) = announced(3), (ended("false") for _ in range(3))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pidfd_open", refused)
        assert attempt.started({"0": first.pid, "1": second.pid}, None) == []
    said = [failure(0, first.pid, -signal.SIGTERM, at_s=0), failure(1, second.pid, -signal.SIGKILL)]
    attempt.complete(said, succeeded=False)
    assert attempt.first == attempt.ranks[1].end() and attempt.first.signal == signal.SIGKILL
    ended_s = [rank.ended_s for rank in attempt.ranks.values()]
    assert ended_s[0] is not None and ended_s[0] > 5.0 and ended_s[1:] == [5.0, None], "torch may not know the time"
    (handle,) = attempt.started({"2": last.pid}, None)
    attempt.has_ended(handle)
    attempt.complete(said, succeeded=False)
    assert attempt.first == attempt.ranks[2].end(), "who was seen to end comes before those of whom torchrun tells"
    for one in (first, second, last):
        one.wait()


def test_the_status_of_another_process_of_the_same_number_is_not_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    child = ended(sys.executable, "-c", "raise SystemExit(3)")
    seen = read_stat(child.pid)
    assert seen is not None
    for younger_by, exit_code in ((0, 3), (1, None)):
        known = row(child.pid, 1, 1, seen.start_ticks - younger_by)
        attempt = announced(1)
        with monkeypatch.context() as patched:
            patched.setattr("ddplaunch.agent.guard.attempt.read_stat", lambda _, known=known: known)
            (handle,) = attempt.started({"0": child.pid}, None)
        attempt.has_ended(handle)
        with pytest.raises(OSError):
            os.fstat(handle)
        ended_s = attempt.ranks[0].ended_s
        assert attempt.ranks[0].end().exit_code == exit_code and attempt.running() == []
        attempt.complete([failure(0, child.pid, 9)], succeeded=False)
        assert attempt.ranks[0].end().exit_code == (exit_code or 9), "what was seen stays"
        assert attempt.ranks[0].ended_s == ended_s
    child.wait()


def test_ranks_that_run_and_ranks_that_torchrun_ends() -> None:
    attempt, through = announced(3), ended("true")
    with subprocess.Popen(["sleep", "60"]) as runs, subprocess.Popen(["sleep", "60"]) as other:
        attempt.started({"0": runs.pid, "1": through.pid, "2": other.pid}, None)
        attempt.owners[other.pid] = owner(other.pid, 1)  # its number was given again
        assert [one.pid for one in attempt.running()] == [runs.pid]
        for pids in ([runs.pid], [other.pid]):
            attempt.close(pids, None)
        assert [rank.closed for rank in attempt.ranks.values()] == [True, False, True]
        for one in (runs, other):
            one.kill()
    through.wait()
    for handle in attempt.handles:
        os.close(handle)


def test_torchruns_word_counts_for_the_process_that_it_names() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for other_by, exit_code in ((0, 9), (1, None)):
        attempt, later = announced(2), ended("false")
        (handle,) = attempt.started({"0": gone.pid, "1": later.pid}, None)  # nobody saw the first end
        attempt.has_ended(handle)
        attempt.complete([failure(0, gone.pid + other_by, 9)], succeeded=False)
        assert [rank.end().exit_code for rank in attempt.ranks.values()] == [exit_code, 1]
        assert attempt.first == attempt.ranks[other_by].end(), "the first of which it is known"
        attempt.complete([], succeeded=True)
        assert [rank.end().exit_code for rank in attempt.ranks.values()] == [exit_code or 0, 1], "a good end is all's"
        later.wait()
