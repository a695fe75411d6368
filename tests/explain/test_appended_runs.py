"""Several runs that were appended to one log: the last one decides, where the log shows that it is another run."""

from __future__ import annotations

import pytest

from tests.explain.logs import diagnosed, explained, failed, raised, summary

OLD = raised(0, "KeyError: 'labels'")
NEW = raised(1, "ValueError: bad sample")


def over(clock: str, rank: int = 0) -> str:
    """Return what torchrun says at its end."""
    return (failed(1, rank, 10) + summary((rank, 1, 10))).replace("12:00:00", clock)


LAUNCH = "torchrun --standalone --nproc-per-node=2 train.py 2>&1 | tee -a run.log\n"


@pytest.mark.parametrize(
    "prompt", ["$ ", "kim@node-7:~/seg$ ", "(env) kim@node-7:~/seg$ ", "[root@node-7 seg]# ", "$ BATCH=32 "]
)
def test_in_a_recorded_session_the_launch_that_was_typed_last_counts(prompt: str) -> None:
    first = f"$ {LAUNCH}{OLD}{over('12:00:00')}"
    done = "epoch 1/2 loss 0.9\nepoch 2/2 loss 0.6\nsaved model.pth\ndone in 2:41:09\n"
    assert explained(f"{first}{prompt}{LAUNCH}{done}$ echo $?\n0\n").diagnosis is None
    found = diagnosed(f"{first}{prompt}{LAUNCH}{NEW}{over('12:30:00', 1)}")
    assert found.what.startswith("ValueError")


@pytest.mark.parametrize(
    "after", ["", f"$ {LAUNCH}", "$ nvidia-smi\nGPU 0\n", f"# {LAUNCH}rank 0 is done\n", f"+ {LAUNCH}x\n"]
)
def test_what_is_no_other_launch_changes_nothing(after: str) -> None:
    assert diagnosed(f"$ {LAUNCH}{OLD}{over('12:00:00')}{after}").what.startswith("KeyError")


def test_nohup_says_once_that_it_starts_a_program() -> None:
    first, second = f"nohup: ignoring input\nrun 1\n{OLD}{failed(1, 0, 10)}", f"nohup: ignoring input\nrun two\n{NEW}"
    found = diagnosed(first + second + failed(1, 1, 20))
    assert found.what.startswith("ValueError")
    assert diagnosed("nohup: ignoring input\n" + first).what.startswith("KeyError"), "two that ran at once"


def test_a_banner_with_a_date_begins_a_run() -> None:
    banner = "==== run.sh 2024-02-0{} 21:07:11 bs=48 ====\nloading\n"
    found = diagnosed(banner.format(1) + OLD + failed(1, 0, 10) + banner.format(2) + NEW + failed(1, 1, 20))
    assert found.what.startswith("ValueError")
    assert found.evidence[0].line == len((banner + OLD + failed(1, 0, 10) + banner + NEW).splitlines())
