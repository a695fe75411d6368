"""What launchers report of ranks' ends, in their several forms."""

from __future__ import annotations

import pytest

from ddplaunch.explain.read.trailer import RankExit, Trailer, exit_code, status_text
from tests.explain.logs import failed, lines_of, summary


def exits(text: str) -> list[RankExit]:
    trailer = Trailer()
    for line in lines_of(text):
        trailer.feed(line)
    return trailer.finish()


def test_the_first_failure_gets_its_rank_from_the_summary_by_pid() -> None:
    found = exits(failed(1, 1, 77) + summary((5, 1, 77)))
    assert {(each.rank, each.code, each.host) for each in found} == {(5, 1, "node-7")}


def test_what_the_agent_ended_is_marked() -> None:
    sent = "W0131 12:00:00.0 9 torch/distributed/elastic/api.py:1] Sending process 78 closing signal SIGTERM\n"
    forced = "W0131 12:00:00.0 9 torch/x.py:1] Unable to shutdown process 79 via 15, forcefully exiting via 9\n"
    found = exits(sent + forced + failed(1, 0, 77) + summary((1, -15, 78), (2, -9, 79), (0, 1, 77)))
    assert {each.rank: each.by_agent for each in found} == {0: False, 1: True, 2: True}
    (killed,) = exits(failed(-9, 2, 80))
    assert not killed.by_agent


STARTED = "['python', '--local_rank=1']"


@pytest.mark.parametrize(
    ("line", "code", "rank"),
    [
        (f"subprocess.CalledProcessError: Command '{STARTED}' returned non-zero exit status 1.", 1, None),
        (f"subprocess.CalledProcessError: Command '{STARTED}' died with <Signals.SIGSEGV: 11>.", -11, None),
        (f"[2025-06-03 11:18:55,006] [ERROR] [launch.py:3] {STARTED} exits with return code = -9", -9, None),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL", -9, 2),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 3", 3, 0),
        ("mpirun noticed that process rank 9 with PID 614 on node a exited on signal 11 (Segmentation fault).", -11, 9),
        ("srun: error: gpu-4: task 3: Exited with exit code 2", 2, 3),
        ("srun: error: gpu-4: tasks 0-2: Killed", -9, None),
        ("zsh: segmentation fault  python3 train.py", -11, None),
        ("zsh: illegal hardware instruction  python3 train.py", -4, None),
        ("[1]  18472 segmentation fault (core dumped)  python train.py", -11, None),
        ("[2]  + 4711 killed     torchrun --nproc-per-node 2 train.py", -9, None),
        ("[1]    18472 bus error  python train.py", -7, None),
        ("[1]+  Aborted                 (core dumped) ./train.sh", -6, None),
        ("run.sh: line 3:   441 Floating point exception(core dumped) python train.py", -8, None),
        ("run_train.sh: line 32: 2796136 Terminated              python main.py", -15, None),
        ("[rank: 1] Child process with PID 24110 terminated with code 1. Forcefully terminating all", 1, 1),
        ("make: *** [Makefile:12: train] Error 2", 2, None),
        *[(f"trainer-1 exited with code {status}", status, None) for status in (137, 256)],
        ("trainer-1 exited with code 257", 129, None),  # as PBS numbers signals
        ("##[error]Process completed with exit code 3.", 3, None),
        ("Rank 2 crashed with exit code -7.", -7, 2),
        ("Global rank 0 (PID 208865) exited with code -11", -11, 0),
        ("(1) Normal termination (return value 3)", 3, None),
        ('Script done on 2024-05-01 10:11:12+02:00 [COMMAND_EXIT_CODE="1"]', 1, None),
        ("\tCommand exited with non-zero status 4".strip(), 4, None),
        ("Exited with exit code 1.", 1, None),
        ("step 3\nProcess finished with exit code 139\n", 139, None),  # as an editor shows it
        ("[2021-04-28T01:55:38Z] e54b4385 || INFO: container failed with non-zero exit code: 1", 1, None),
    ],
)
def test_other_launchers_shells_and_services(line: str, code: int, rank: int | None) -> None:
    (found,) = exits(line)
    assert (found.code, found.rank) == (code, rank)
    assert found.host == "gpu-4" or "gpu-4" not in line


def test_tracebacks_in_the_summary_belong_to_their_rank() -> None:
    trailer = Trailer()
    text = summary((3, 1, 50)).replace(
        "  traceback : To enable",
        '  traceback : Traceback (most recent call last):\n    File "a.py", line 1, in f\n  ValueError: x\n  To enable',
    )
    told = [trailer.feed(line) for line in lines_of(text)]
    (line,) = [each for each in told if each.text == "ValueError: x"]
    assert line.speaker.rank == 3 and line.speaker.host == "node-7"
    assert trailer.failed_summary is told[2]


def test_a_summary_without_a_host_is_of_the_one_that_its_lines_name() -> None:
    text = summary((3, 1, 50)).replace("node-7", "") + "loss 3\nthe job has FAILED\nother.py FAILED\n"
    trailer = Trailer()
    told = [trailer.feed(line) for line in lines_of(text.replace("\n", "\n[pod/worker-1/pytorch] "))]
    assert [(each.rank, each.host) for each in trailer.finish()] == [(3, "worker-1")]
    assert told[-4].speaker.rank is None, "an entry ends with its rule"
    assert trailer.failed_summary is not None and trailer.failed_summary.text == "train.py FAILED"


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (-9, "killed", "SIGKILL (exit code -9)"),
        (137, "killed", "SIGKILL (exit code 137)"),
        (247, "killed", "SIGKILL (exit code 247)"),
        (-11, "segmentation-fault", "SIGSEGV (exit code -11)"),
        (-6, "aborted", "SIGABRT (exit code -6)"),
        (-15, "terminated", "SIGTERM (exit code -15)"),
        (3, "unknown", "exit code 3"),
        (-7, "unknown", "SIGBUS (exit code -7)"),
        *[(status, "unknown", f"exit code {status}") for status in (-65, 0, 128, 160, 240, 254, 255)],
        (129, "terminated", "SIGHUP (exit code 129)"),
        (159, "unknown", "SIGSYS (exit code 159)"),
        (241, "terminated", "SIGTERM (exit code 241)"),
        (253, "unknown", "SIGQUIT (exit code 253)"),
        (-10, "terminated", "SIGUSR1 (exit code -10)"),
        (-12, "terminated", "SIGUSR2 (exit code -12)"),
        (-3, "terminated", "SIGQUIT (exit code -3)"),
        (-24, "time-limit", "SIGXCPU (exit code -24)"),
    ],
)
def test_what_a_status_alone_says(status: int, code: str, text: str) -> None:
    assert (exit_code(status), status_text(status)) == (code, text)
    assert status_text(status, seen=True) == (text if status < 0 else f"exit code {status}")


def test_deepspeed_names_the_process_whose_end_made_it_stop_the_others() -> None:
    (found,) = exits(
        "[2024-04-22 23:11:21] [ERROR] [launch.py:321:sigkill_handler] ['python'] exits with return code = -15\n"
    )
    assert (found.code, found.by_agent) == (-15, False)
    assert exits("srun: error: n1: tasks 0-3: Terminated\n")[0].by_agent, "srun ends all tasks of a step"


@pytest.mark.parametrize(
    "line",
    [
        *("trainer-1 exited with code 0", "[1]  + 18472 done       python train.py", "[1]+  Killed   tensorboard"),
        *("step 3 failed_parses 31\nthe process exited, exit code unknown", "Sending process data to the queue"),
        "Process finished with exit code 0",
        *("Bus error rate 0.3", "Killed 3 stale jobs", "Terminated: 4 workers", "Abort: 3"),
    ],
)
def test_what_is_no_end(line: str) -> None:
    assert exits(line) == []
