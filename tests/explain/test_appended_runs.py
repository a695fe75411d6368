"""Several runs that were appended to one log: the last one decides, where the log shows that it is another run."""

from __future__ import annotations

import pytest

from tests.explain.logs import diagnosed, explained, failed, lost, raised, summary

HEAD = "Job {job} on node-7\nloading the data\n"
BANNER = (
    "W0131 {clock} 900 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process\n"
)
COUNTS = "epoch 0 step 0 loss 0.9\nepoch 0 step 1 loss 0.8\n"
OLD = raised(0, "KeyError: 'labels'")
NEW = raised(1, "ValueError: bad sample")


def over(clock: str, rank: int = 0, host: str = "node-7", script: str = "train.py") -> str:
    """Return what torchrun says at its end."""
    text = failed(1, rank, 10) + summary((rank, 1, 10))
    text = text.replace("12:00:00", clock).replace("node-7", host)
    return text.replace("train.py FAILED", f"{script} FAILED")


FIRST = HEAD.format(job=11) + COUNTS + OLD + over("12:00:00")
SECOND = HEAD.format(job=12) + COUNTS + NEW


@pytest.mark.parametrize(
    ("text", "name", "rank"),
    [
        (
            FIRST + "srun: error: node-7: task 0: Exited with exit code 1\n" + SECOND + over("12:30:00", 1),
            "ValueError",
            1,
        ),
        (COUNTS + OLD + over("12:00:00") + COUNTS + NEW + over("12:30:00", 1), "ValueError", 1),
        (OLD + over("12:00:00") + BANNER.format(clock="12:20:00.0") + NEW + over("12:30:00", 1), "ValueError", 1),
        (FIRST + HEAD.format(job=12) + BANNER.format(clock="12:20:00.0") + NEW, "ValueError", 1),
        (FIRST + SECOND + over("12:30:00", 1) + SECOND.replace("Value", "Type") + over("12:50:00", 1), "TypeError", 1),
        # begun on another host after the first one had ended
        (
            OLD + over("12:00:00") + BANNER.format(clock="12:20:00.0") + NEW + over("12:30:00", 1, "node-8"),
            "ValueError",
            1,
        ),
        # in doubt the first failure: nothing begins again, or nothing tells that it came later
        (FIRST + NEW + over("12:30:00", 1), "KeyError", None),
        (FIRST + SECOND, "KeyError", None),
        # two nodes in one file, one below the other, and two agents of one run
        (FIRST + SECOND + over("12:00:04", 1, "node-8"), "KeyError", None),
        (FIRST + SECOND + over("12:00:04", 1).replace("rank      : 1", "rank      : 5"), "KeyError", None),
        (FIRST + SECOND + over("11:59:58", 1), "KeyError", None),
        (FIRST + HEAD.format(job=11) + BANNER.format(clock="11:50:00.0") + lost(1) + NEW, "KeyError", None),
        (OLD + over("12:00:00") + "srun: job step 0 ended\n" + NEW + over("12:00:01", 1), "KeyError", None),
        # a program that runs after the training and does not find what that has not written
        (FIRST + HEAD.format(job=11) + NEW + over("12:30:00", 1, script="eval.py"), "KeyError", None),
        # a restart by torchrun itself, which prints no summary before the end
        (HEAD.format(job=1) + OLD + failed(1, 0, 9) + HEAD.format(job=1) + NEW + over("12:30:00", 1), "KeyError", None),
    ],
)
def test_the_last_run_of_a_log_decides_if_it_is_one(text: str, name: str, rank: int | None) -> None:
    found = diagnosed(text)
    assert found.exception is not None and (found.exception.type, found.rank) == (name, rank)


def test_the_earlier_run_is_named_in_a_clause_and_lines_keep_their_numbers() -> None:
    found = diagnosed(FIRST + SECOND + over("12:30:00", 1))
    lines = len(FIRST.splitlines())
    clause = f"; an earlier run in this file, up to line {lines}, failed "
    assert found.why.endswith(f"{clause}differently: KeyError: 'labels' at train.py:31 in main")
    assert found.evidence[0].line == lines + len(SECOND.splitlines())
    again = HEAD.format(job=12) + COUNTS + OLD + over("12:30:00")
    assert diagnosed(FIRST + again).why.endswith(f"{clause}in the same way")
    silent = diagnosed(FIRST.replace(OLD, "") + SECOND + over("12:30:00", 1))
    assert silent.why.endswith("failed too, for a reason that it does not tell")
    assert "earlier run" not in diagnosed(FIRST).why


def test_a_last_run_that_ended_well_is_not_accused_of_what_an_older_one_met() -> None:
    well = HEAD.format(job=12) + BANNER.format(clock="12:20:00.0") + COUNTS + "training finished\n"
    assert explained(FIRST + well).diagnosis is None
    assert diagnosed(FIRST + well.replace("12:20:00.0", "11:20:00.0")).rank == 0


RUNNER = (
    "[2026-01-31 {clock},100] [WARNING] [runner.py:202:fetch_hostfile] Unable to find hostfile\n"
    "[2026-01-31 {clock},120] [INFO] [runner.py:568:main] cmd = python3 -u -m deepspeed.launcher.launch\n"
)
RETURNED = (
    "[2026-01-31 {clock},300] [ERROR] [launch.py:321:sigkill_handler] ['python3', 'train.py'] exits with "
    "return code = 1\n"
)


def test_the_last_of_deepspeeds_runs_decides() -> None:
    first = RUNNER.format(clock="11:00:00") + raised(None, "KeyError: 'labels'") + RETURNED.format(clock="11:10:00")
    second = RUNNER.format(clock="12:00:00") + raised(None, "ValueError: bad") + RETURNED.format(clock="12:10:00")
    found = diagnosed(first + second)
    assert found.exception is not None and found.exception.type == "ValueError"
    assert "an earlier run in this file, up to line 7, failed differently" in found.why
    assert explained(first + RUNNER.format(clock="12:00:00") + COUNTS + "training finished\n").diagnosis is None


def test_the_last_run_of_plain_python_decides() -> None:
    first = HEAD.format(job=11) + COUNTS + raised(None, "KeyError: 'labels'")
    second = HEAD.format(job=12) + COUNTS + raised(None, "ValueError: bad")
    found = diagnosed(first + second)
    assert found.exception is not None and found.exception.type == "ValueError" and "an earlier run" in found.why
    together = HEAD.format(job=1) + HEAD.format(job=1) + first + second  # several processes wrote it at once
    assert "an earlier run" not in diagnosed(together).why


LAUNCH = "torchrun --standalone --nproc-per-node=2 train.py 2>&1 | tee -a run.log\n"


@pytest.mark.parametrize(
    "prompt", ["$ ", "kim@node-7:~/seg$ ", "(env) kim@node-7:~/seg$ ", "[root@node-7 seg]# ", "$ BATCH=32 "]
)
def test_in_a_recorded_session_the_launch_that_was_typed_last_counts(prompt: str) -> None:
    first = f"$ {LAUNCH}{OLD}{over('12:00:00')}"
    done = "epoch 1/2 loss 0.9\nepoch 2/2 loss 0.6\nsaved model.pth\ndone in 2:41:09\n"
    assert explained(f"{first}{prompt}{LAUNCH}{done}$ echo $?\n0\n").diagnosis is None
    found = diagnosed(f"{first}{prompt}{LAUNCH}{NEW}{over('12:30:00', 1)}")
    assert found.what.startswith("ValueError") and "failed differently: KeyError" in found.why


@pytest.mark.parametrize(
    "after", ["", f"$ {LAUNCH}", "$ nvidia-smi\nGPU 0\n", f"# {LAUNCH}rank 0 is done\n", f"+ {LAUNCH}x\n"]
)
def test_what_is_no_other_launch_changes_nothing(after: str) -> None:
    assert diagnosed(f"$ {LAUNCH}{OLD}{over('12:00:00')}{after}").what.startswith("KeyError")


def test_nohup_says_once_that_it_starts_a_program() -> None:
    first, second = f"nohup: ignoring input\nrun 1\n{OLD}{failed(1, 0, 10)}", f"nohup: ignoring input\nrun two\n{NEW}"
    found = diagnosed(first + second + failed(1, 1, 20))
    assert found.what.startswith("ValueError") and "failed differently: KeyError" in found.why
    assert diagnosed("nohup: ignoring input\n" + first).what.startswith("KeyError"), "two that ran at once"


def test_a_banner_with_a_date_begins_a_run() -> None:
    banner = "==== run.sh 2024-02-0{} 21:07:11 bs=48 ====\nloading\n"
    first, second = banner.format(1) + OLD + failed(1, 0, 10), banner.format(1) + COUNTS
    found = diagnosed(first + second + banner.format(2) + NEW + failed(1, 1, 20))
    assert found.what.startswith("ValueError")
