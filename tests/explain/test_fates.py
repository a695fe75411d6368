"""What becomes of each failure in a log, and by which rule: each with logs in which it just holds and just does not."""

from __future__ import annotations

import io
import re

import pytest

from ddplaunch.explain.diagnosis import LogSource, RunFacts
from ddplaunch.explain.explain_logs import explain_texts
from tests.explain.logs import ended, failed, lost, raised, summary, told

FULL = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
ENDED, OWN = failed(1, 1, 11), raised(1, "KeyError: 'x'") + failed(1, 1, 11)
RETRIED = "WARNING: retrying\n" + raised(None, "OSError: once")
OF_THREAD = "Exception in thread T:\n" + raised(None, "KeyError: 'q'")
BARE, CAUGHT, BEFORE = "ValueError: bad row\n", f"auto-batch: {FULL}\n", raised(0, "KeyError: 'y'")
PORT = "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n"
PREEMPTED = "slurmstepd: error: *** JOB 4 ON n CANCELLED AT 2026-05-01T10:00:00 DUE TO PREEMPTION ***\n"
TOLD = "W1 10:55:17.9 3047 torch/distributed/elastic/api.py:7] Received 15 death signal, shutting down workers\n"
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040).\n"
MISSING = raised(1, "FileNotFoundError: [Errno 2] No such file or directory: 'x'")
NO_HUB = raised(0, "OSError: We couldn't connect to 'https://huggingface.co' to load this file")
NO_GPU = raised(1, "ValueError: needs a supported device")
MINOR = f"/w/a.py:3: UserWarning: {FULL}\n"
LIMIT = "User defined signal 2\nTERM_RUNLIMIT: job killed after reaching LSF run time limit.\n"
HELD_UP = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n"
PASSED, WENT_ON, STEPS = "announced and passed over", "work went on", "steps followed"
LOGGED, OLDER, BESIDE = "caught and logged", "older than the exception that ended its rank", "told beside the failure"
OTHER, NAMED, OUTSIDE = "explained by another", "named beside", "after an end from outside"


def words(number: int) -> str:
    """Return lines that differ and say nothing of steps or of an end."""
    return "".join(f"words of {chr(97 + at % 26)}{chr(97 + at // 26)}\n" for at in range(number))


def fates(text: str, facts: RunFacts | None = None) -> list[str]:
    """Return the rule that decided on each failure, else its fate, in the order of their lines."""
    why: list[str] = []
    explain_texts([LogSource("train.log", io.BytesIO(text.encode()))], facts, why)
    rows = (re.fullmatch(r"  train.log:(\d+) .*?: (\w+)(?: \((.*)\))?, tier \w+", line) for line in why)
    return [row[3] or row[2] for row in sorted(filter(None, rows), key=lambda row: int(row[1]))]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        # three lines that say something, up to what fails next: an exception, an exit, or what tells of another rank
        (RETRIED + words(3) + ENDED, [PASSED]),
        (RETRIED + words(2) + ENDED, [LOGGED]),
        (RETRIED + words(2) + ENDED + words(3), [LOGGED]),
        (RETRIED + "\n  of a source\n" + words(2) + ENDED, [LOGGED]),
        (RETRIED + words(2) + BARE + words(2) + ENDED, [LOGGED, "fatal"]),
        (RETRIED + words(2) + CAUGHT + words(2) + ENDED, [LOGGED, "fatal"]),
        (RETRIED + RETRIED + words(3) + ENDED, [PASSED, PASSED]),
        (BARE + words(3) + ENDED, [PASSED]),
        (BARE + words(2) + ENDED, ["fatal"]),
        (f"[rank1]: {BARE}" + words(3) + OWN, [OLDER, "fatal"]),
        (CAUGHT + words(3) + ENDED, [PASSED]),
        (f"n1:1:2 [0] NCCL WARN Error: {FULL}\n" + words(3) + ENDED, ["fatal"]),
        # a side matter beside work that is done; an end from outside that the work was resumed after; a quote
        (OF_THREAD + "training finished\n", [WENT_ON]),
        (OF_THREAD + words(1), ["fatal"]),
        (OF_THREAD + "training finished\n" + ENDED, ["fatal"]),
        (MINOR + "training finished\n", [WENT_ON]),
        (PREEMPTED + "resumed\nstep 4\n", [WENT_ON]),
        (PREEMPTED + "step 4\n", ["fatal"]),
        (PREEMPTED + words(1) + "finished\n", ["fatal"]),
        (f'log: "{FULL}"\n' + words(1), [WENT_ON]),
        (f'log: "{FULL}"\n', ["quoted"]),
        (OWN + "resumed\nstep 1\nstep 2\n", [WENT_ON]),
        # in a run that failed: four steps, sixteen reports, two of what only a rank that has not begun ends by
        (BEFORE + "loss 0.5\n" * 16 + OWN, [STEPS, "fatal"]),
        (BEFORE + "loss 0.5\n" * 15 + OWN, ["fatal", "fatal"]),
        (BEFORE + "step 1\nstep 2\nstep 3\nstep 4\n" + OWN, [STEPS, "fatal"]),
        (BEFORE + "step 1\nstep 2\nstep 3\n" + OWN, ["fatal", "fatal"]),
        (PORT + "step 1\nstep 1\n" + OWN, [STEPS, "fatal"]),
        (PORT + "step 1\n" + OWN, ["fatal", "fatal"]),
        (f'log: "{FULL}"\n' + OWN, ["quoted", "fatal"]),
        (MINOR + OWN, [LOGGED, "fatal"]),
        # a rank's own later exception, not one that it ignored, logged or left to a thread; libraries speak before it
        (f"[rank1]: {FULL}\n" + OWN, [OLDER, "fatal"]),
        (f"[rank1]: ERROR: {FULL}\n" + OWN, ["fatal", NAMED]),
        (f"[rank0]: {FULL}\n" + OWN, ["fatal", "fatal"]),
        (OWN + f"[rank1]: {FULL}\n", [NAMED, "fatal"]),
        (f"[rank1]: {FULL}\n[rank1]: Exception ignored in: x\n" + raised(1, "KeyError: 'x'") + ENDED, ["fatal"]),
        (f"[rank1]: {FULL}\n[rank1]: Exception in thread T:\n" + raised(1, "KeyError: 'x'") + ENDED, ["fatal", NAMED]),
        (f"[rank1]: {FULL}\n[rank1]: ValueError: bare\n" + ENDED, ["fatal", NAMED]),
        # what no rank signs: below a failure or an exit, and above one only what reports an exception or is a shell's
        (f"words {FULL}\n" + OWN, [BESIDE, "fatal"]),
        ("wrap.sh: line 2: train.sh: No such file or directory\n" + OWN, [BESIDE, "fatal"]),
        ("wrap.sh: line 2: train.sh: No such file or directory\n" + ENDED, ["fatal"]),
        (f"words {FULL}\n" + ENDED, ["fatal"]),
        (ENDED + f"words {FULL}\n", [BESIDE]),
        (OWN + f"words {FULL}\n", ["fatal", BESIDE]),
        ("srun: error: n1: tasks 0-3: Terminated\n" + f"words {FULL}\n", ["fatal"]),
        (OWN + f"[rank0]: words {FULL}\n", ["fatal", "fatal"]),
        (OWN + HELD_UP, ["fatal", "fatal"]),
        # what leads to it is in the log, on any rank
        (MISSING + NO_HUB, [OTHER, "fatal"]),
        (MISSING + raised(0, FULL), ["fatal", "fatal"]),
        (f"[rank0]: {OLD_DRIVER}" + NO_GPU, ["fatal", OTHER]),
        (f"[rank0]: {OLD_DRIVER}" + NO_GPU.replace("supported device", "table"), ["fatal", "fatal"]),
        # the cause that its rank names near, up to forty lines away
        (f"ERROR: {FULL}\n" + words(36) + raised(None, "KeyError: 'x'"), ["fatal", NAMED]),
        (f"ERROR: {FULL}\n" + words(37) + raised(None, "KeyError: 'x'"), ["fatal", "fatal"]),
        ("terminate called without an active exception\n" + raised(None, "KeyError: 'x'"), ["fatal", "fatal"]),
        # what is printed after an end from outside follows from it, unless a launcher saw a rank fail before
        (TOLD + raised(0, "ValueError: x"), ["fatal", OUTSIDE]),
        (raised(0, "ValueError: x") + TOLD, ["fatal", OUTSIDE]),
        (lost(0) + TOLD, ["fatal"]),
        (TOLD + raised(0, "ValueError: x") + failed(1, 0, 10), [OUTSIDE, "fatal"]),
        (TOLD + raised(0, "ValueError: x") + failed(143, 0, 10), ["fatal", OUTSIDE]),
        (TOLD + raised(0, "ValueError: x") + summary((0, 1, 10)), ["fatal", OUTSIDE]),
        (failed(1, 0, 10) + TOLD, [OUTSIDE]),
        (TOLD + HELD_UP, ["fatal", "fatal"]),
        (LIMIT, [OUTSIDE, "fatal"]),
    ],
)
def test_the_rule_that_decides_on_each_failure(log: str, expected: list[str]) -> None:
    assert fates(log) == expected


def test_a_rank_that_the_launcher_ended_did_not_fail_unless_the_others_only_lost_it() -> None:
    stopped = "stopped by the launcher"
    for others, first in ((raised(1, "KeyError: 'x'"), stopped), (lost(1), "fatal")):
        facts = RunFacts(ranks=(told(0), ended(1, 1), ended(2, 0)), state="failed")
        assert fates(raised(0, "ValueError: x") + others + raised(2, "OSError: x"), facts)[::2][:1] == [first]
        assert fates(raised(2, "ValueError: x") + others, facts)[0] == stopped
