"""Words for what no signature words: exceptions, bare exits, and logs that do not decide; refuses to decide."""

from __future__ import annotations

from ddplaunch.explain.decide import Decision
from ddplaunch.explain.endings import status_text
from ddplaunch.explain.facts import RunFacts
from ddplaunch.frozen import dataclass

_RECORD = "run it again by `ddplaunch run … -- SCRIPT …`: it keeps what every rank prints, and how each one ended"
_TEE = "with torchrun: `--tee 3 --log-dir logs` keeps what every rank prints; `@record` on `main()` keeps its traceback"
_DMESG = "`dmesg -T | grep -i -E 'killed process|oom'` on the node tells whether it was the kernel, for lack of memory"
_NATIVE = "run again with `--env PYTHONFAULTHANDLER=1`: the rank then prints where in Python it was"


@dataclass(frozen=True)
class Words:
    """What, why and fixes of a diagnosis."""

    what: str
    why: str
    fixes: tuple[str, ...]


def exception_words(decision: Decision) -> Words:
    """Return the words for an exception of the user's code or of a library that it calls."""
    candidate = decision.candidate
    assert candidate is not None and candidate.raised is not None
    raised = candidate.raised
    name = raised.type.rpartition(".")[2]
    said = f"{name}: {raised.message}" if raised.message else name
    what = f"{said[:160]} at {raised.frame}" if raised.frame else said[:200]
    who = f"rank {decision.rank}" if decision.rank is not None else "the script"
    where = f"look at `{raised.frame.split(' ')[0]}`" if raised.frame else "look at the traceback above this line"
    return Words(
        what,
        f"{who} ended by an exception that nothing caught; what the other ranks report follows from that",
        (where + ": the exception is raised there or in what it calls",),
    )


def ended_words(decision: Decision, facts: RunFacts | None) -> Words:
    """Return the words for a rank whose end is known and whose reason is not."""
    assert decision.ended is not None
    who = "a rank" if decision.rank is None else f"rank {decision.rank}"
    how = status_text(decision.ended.exit.code)
    if decision.code == "killed":
        return Words(
            f"{who} ended by {how}, and nothing says who sent it",
            "SIGKILL leaves no message; mostly it is the kernel, because the node or the cgroup has no memory left",
            (_DMESG, "fewer DataLoader workers, less loaded into host memory by each rank; else ask who ended it"),
        )
    if decision.code == "segmentation-fault":
        return Words(
            f"{who} ended by {how} in native code",
            "a C, C++ or CUDA library read or wrote memory that is not its own; Python cannot say which",
            (_NATIVE, "look at extensions built for another torch, and at libraries that were updated last"),
        )
    if decision.code == "aborted":
        return Words(
            f"{who} ended by {how} without a message",
            "native code called abort(); mostly a line of C++ above says why, here none does",
            (_NATIVE, _RECORD),
        )
    return Words(
        f"{who} ended with {how}, and no line says why",
        "its output may have gone elsewhere, or the script left by `sys.exit()` or `os._exit()`",
        (_RECORD, _TEE),
    )


def unknown_words(decision: Decision) -> Words:
    """Return the words where only survivors speak, or where the log just ends."""
    if decision.echoes:
        return Words(
            "ranks lost their connection to another one, and that one says nothing here",
            "these lines are printed by survivors; the cause is in the log of the rank or host that they lost",
            ("`ddplaunch explain` with the logs of all nodes; else look for its exit status, and " + _DMESG, _RECORD),
        )
    return Words(
        "the log ends without saying how the run ended",
        "no error, no exit status and no sign of completion: it still runs, hangs, or was cut off",
        ("`py-spy dump --pid PID` for every rank while it hangs; else the exit status and " + _DMESG, _RECORD),
    )
