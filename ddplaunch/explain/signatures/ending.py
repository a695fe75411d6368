"""Signatures of how processes end: signals, crashes, interruptions, and the launchers' trailers; refuses to say why."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.ending_signals import SIGNALS
from ddplaunch.explain.signatures.ending_trailers import TRAILERS

_WHY = (
    "The launcher itself was signalled and passed it on to its ranks: {sender}. The training had no error of its own."
)
_SENDERS = {
    "SIGHUP": "a terminal or ssh session was closed",
    "SIGINT": "Ctrl-C, or whoever sends SIGINT",
    "SIGTERM": "a person, a supervisor, a preemption or a scheduler",
    "SIGQUIT": "Ctrl-backslash, or a container that stops",
    "SIGUSR1": "a scheduler's warning before its limit",
    "SIGUSR2": "a scheduler's warning before its limit",
}
_KEEP = (
    "Start inside `tmux` or `screen`, or submit the run to the scheduler: nohup does not help, torchrun reacts "
    "to SIGHUP."
)
_ASK = (
    "Ask who sent it: `sacct -j JOBID`, `kubectl describe pod`, `journalctl`, other users; save on SIGTERM to resume."
)
_STEP_ENDED = (r"srun: Terminating (?:[Ss]tep|job)", r"DUE TO (?:TIME LIMIT|NODE FAILURE)")


def _ended(name: str, number: int, fix: str) -> Signature:
    """The launcher's lines about signal ``name``: Python before 3.11 writes the name, later ones the number."""
    return Signature(
        code="terminated",
        role="root",
        literals=("death signal", "got signal: ", f"closing signal {name}")
        if name != "SIGTERM"
        else ("death signal", "got signal: "),
        patterns=(
            rf"Received (?:(?:Signals\.)?{name}|{number}) death signal, shutting down workers",
            rf"SignalException: Process \d+ got signal: {number}\b",
            *((rf"Sending process \d+ closing signal {name}\b",) if name != "SIGTERM" else ()),
        ),
        what=f"the launcher was ended from outside by {name}",
        why=_WHY.format(sender=_SENDERS[name]),
        fixes=(fix,),
        examples=(
            f"W0209 api.py:704] Received Signals.{name} death signal, shutting down workers",
            f"WARNING:torch.distributed.elastic.agent.server.api:Received {number} death signal, shutting down workers",
            f"torch.distributed.elastic.multiprocessing.api.SignalException: Process 9120 got signal: {number}",
            *((f"W0209 api.py:897] Sending process 20877 closing signal {name}",) if name != "SIGTERM" else ()),
        ),
        near_misses=("WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 2 closing signal SIGTERM",),
        log_unless=_STEP_ENDED,
        priority=48,
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py",
    )


SIGNATURES: tuple[Signature, ...] = (
    *SIGNALS,
    *TRAILERS,
    _ended("SIGHUP", 1, _KEEP),
    _ended("SIGINT", 2, "If it was no person: look for what sends SIGINT to the launcher's process group."),
    _ended("SIGQUIT", 3, _ASK),
    _ended("SIGTERM", 15, _ASK),
    _ended("SIGUSR1", 10, "Save a checkpoint when it comes, and resume from it: it is the scheduler's warning."),
    _ended("SIGUSR2", 12, "Save a checkpoint when it comes, and resume from it: it is the scheduler's warning."),
    Signature(
        code="terminated",
        role="root",
        literals=("SIGTERM", "SIGINT", "SIGUSR", "SIGCONT", "KeyboardInterrupt", "^C", "Hangup", "Terminated"),
        patterns=(
            r"(?P<line>Main process received SIG(?:TERM|INT), exiting)",
            r"(?P<line>Received SIG(?:TERM|INT|USR[12])(?:: \d+)?)",
            r"(?P<line>(?:Bypassing|Caught) signal SIG(?:TERM|INT|CONT|USR[12]))",
            r"(?P<line>Detected KeyboardInterrupt)",
            r"(?:^|\s)(?P<line>KeyboardInterrupt)(?:$|: )",
            r"^(?:\([^)]*\) ?)?(?P<line>\^C)",
            r"^(?P<line>Hangup|Terminated)\s*$",
        ),
        what="the run was interrupted from outside: {line}",
        why="a person or a supervisor stopped it; nothing in the log says that the training failed before",
        fixes=(
            "if you pressed Ctrl-C because nothing moved, the traceback shows where the rank waited: look for the "
            "hang there",
            _ASK,
        ),
        examples=(
            "[2024-01-09 10:00:00,1] [INFO] [launch.py:93:main] Main process received SIGTERM, exiting",
            "Received SIGTERM: 15",
            "submitit WARNING (2024-01-01) - Bypassing signal SIGTERM",
            "Hangup",
            "Terminated",
            "Detected KeyboardInterrupt, attempting graceful shutdown...",
            "KeyboardInterrupt",
            "^CTraceback (most recent call last):",
            "INFO submitit - Caught signal SIGUSR2 on node1: this job is timed-out.",
            "submitit WARNING - Bypassing signal SIGCONT",
            "[launch.py:93:main] Main process received SIGINT, exiting",
            "(APIServer pid=201) ^C",
        ),
        near_misses=(
            "except KeyboardInterrupt:",
            "Sending process 4 closing signal SIGTERM",
            "handler for SIGTERM installed",
        ),
        log_unless=_STEP_ENDED,
        priority=40,
        source="https://docs.python.org/3/library/signal.html",
    ),
)
