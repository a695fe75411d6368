"""Words for what no signature words: exceptions, bare exits, and logs that do not decide; refuses to decide."""

from __future__ import annotations

import signal

from ddplaunch.explain.decide.candidates import NOISE
from ddplaunch.explain.decide.decide import RootCause
from ddplaunch.explain.decide.endings import signal_number, status_text
from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.scan import Hit
from ddplaunch.values.frozen import dataclass

_RECORD = "run it again by `ddplaunch run … -- SCRIPT …`: it keeps what every rank prints, and how each one ended"
_TEE = "with torchrun: `--tee 3 --log-dir logs` keeps what every rank prints; `@record` on `main()` keeps its traceback"
_DMESG = "`dmesg -T | grep -i -E 'killed process|oom'` on the node tells whether it was the kernel, for lack of memory"
_NATIVE = "run again with `--env PYTHONFAULTHANDLER=1`: the rank then prints where in Python it was"
_ASKED = "if it was not you: ask the scheduler (`sacct -j JOBID -o State,ExitCode,Reason`); save checkpoints on SIGTERM"


@dataclass(frozen=True)
class Words:
    """What, why and fixes of a diagnosis."""

    what: str
    why: str
    fixes: tuple[str, ...]


def exception_words(cause: RootCause) -> Words:
    """Return the words for an exception of the user's code or of a library that it calls."""
    candidate = cause.candidate
    assert candidate is not None and candidate.raised is not None
    raised = candidate.raised
    name = raised.type.rpartition(".")[2]
    said = f"{name}: {raised.message}" if raised.message else name
    what = f"{said[:160]} at {raised.frame}" if raised.frame else said[:200]
    who = f"rank {cause.rank}" if cause.rank is not None else "the script"
    where = f"look at `{raised.frame.split(' ')[0]}`" if raised.frame else "look at the traceback above this line"
    return Words(
        what,
        f"{who} ended by an exception that nothing caught; what the other ranks report follows from that",
        (where + ": the exception is raised there or in what it calls",),
    )


def ended_words(cause: RootCause, facts: RunFacts | None) -> Words:
    """Return the words for a rank whose end is known and whose reason is not."""
    assert cause.ended is not None
    who = "a rank" if cause.rank is None else f"rank {cause.rank}"
    how = status_text(cause.ended.exit.code)
    if cause.code == "killed":
        return Words(
            f"{who} ended by {how}, and nothing says who sent it",
            "SIGKILL leaves no message; mostly it is the kernel, because the node or the cgroup has no memory left",
            (_DMESG, "fewer DataLoader workers, less loaded into host memory by each rank; else ask who ended it"),
        )
    if cause.code == "segmentation-fault":
        return Words(
            f"{who} ended by {how} in native code",
            "a C, C++ or CUDA library read or wrote memory that is not its own; Python cannot say which",
            (_NATIVE, "look at extensions built for another torch, and at libraries that were updated last"),
        )
    if cause.code == "aborted":
        return Words(
            f"{who} ended by {how} without a message",
            "native code called abort(); mostly a line of C++ above says why, here none does",
            (_NATIVE, _RECORD),
        )
    if signal_number(cause.ended.exit.code) == signal.SIGBUS:
        return Words(
            f"{who} ended by {how}, and no line says why",
            "a page of a mapped file could not be had: mostly /dev/shm was full, else a file was cut while it was read",
            (
                "`df -h /dev/shm` on the node while it runs; a larger one: `docker run --shm-size=16g` or `--ipc=host`",
                _NATIVE,
            ),
        )
    if cause.code == "terminated":
        return Words(
            f"{who} was ended from outside by {how}",
            "the launcher did not send it: a person, a scheduler or a supervisor asked this process to end",
            (_ASKED,),
        )
    told = own_echo(cause)
    if told is not None:
        return Words(
            f"{who} ended with {how} because it lost another rank, and that one says nothing here",
            "the line is printed by survivors; the cause is in the log of the rank or host that they lost",
            ("`ddplaunch explain` on each of the other nodes, or with the logs of all nodes here", _DMESG),
        )
    return Words(
        f"{who} ended with {how}, and no line says why",
        "its output may have gone elsewhere, or the script left by `sys.exit()` or `os._exit()`",
        (_RECORD, _TEE),
    )


def own_echo(cause: RootCause) -> Hit | None:
    """Return what a rank whose end nothing else explains said of another one that it lost."""
    if cause.code != "unknown" or cause.ended is None or cause.rank is None:
        return None
    own = (hit for hit in cause.echoes if hit.line.speaker.rank == cause.rank)
    return next((hit for hit in own if hit.signature.code not in NOISE), None)


def kernel_words(cause: RootCause, fixes: tuple[str, ...]) -> Words:
    """Return the words for an end that only something outside of the logs explains."""
    assert cause.outside is not None
    who = "a process of the run" if cause.rank is None else f"rank {cause.rank}"
    how = f" by {status_text(cause.ended.exit.code)}" if cause.ended is not None else ""
    what = f"{who} was ended{how}: {cause.outside.file} says: {cause.outside.text.strip()[:120]}"
    why = "what is in no log: the kernel ends a process that it has no memory for, without a word to it"
    return Words(what, why, fixes or (_DMESG,))


def launcher_words(cause: RootCause, facts: RunFacts | None) -> Words:
    """Return the words for a run that was ended from outside."""
    if cause.code == "killed":
        return Words(
            "torchrun was killed (SIGKILL); its ranks were then stopped",
            "SIGKILL reaches only the process it is sent to: a person, a supervisor, or the kernel for lack of memory",
            (_DMESG, "start it again; to stop a run, `ddplaunch stop` ends all of it in order"),
        )
    name = signal_name(facts.signal) if facts is not None and facts.signal else "a signal"
    reasons = {
        "SIGHUP": ("the terminal or the ssh session was closed", "run it in tmux or screen, or as a batch job"),
        "SIGINT": ("Ctrl-C in the terminal, or somebody's `kill -INT`", "nothing is wrong if that was you"),
    }
    why, fix = reasons.get(
        name, ("a person, a scheduler that takes the node back, or a supervisor asked the run to end", _ASKED)
    )
    return Words(f"the run was ended from outside by {name}", why, (fix,))


def signal_name(number: int) -> str:
    """Return SIGTERM for 15, and the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def unknown_words(cause: RootCause) -> Words:
    """Return the words where only survivors speak, or where the log just ends."""
    if cause.witness is not None and cause.witness.raised is not None:
        raised = cause.witness.raised
        return Words(
            f"{raised.type.rpartition('.')[2]} tells of others, not what happened to them: {raised.message[:120]}",
            "the process that raised it survived another one, or passes on what a library said elsewhere",
            (
                f"`ddplaunch explain` with the logs of all ranks and nodes; `--nccl-debug INFO`; {_DMESG}",
                _RECORD,
            ),
        )
    if cause.echoes:
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
