"""Signatures of how processes end: signals, crashes, interruptions, and the launchers' trailers; refuses to say why."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.ending_signals import SIGNALS
from ddplaunch.explain.signatures.ending_trailers import TRAILERS

_WHY = (
    "The launcher itself was signalled and passed it on: SIGHUP when a terminal or ssh session closes, SIGINT from "
    "Ctrl-C, "
    "SIGTERM from a person, a supervisor or a scheduler. The training had no error."
)
_FIXES = (
    "For SIGHUP: start inside `tmux` or `screen`, or submit the run to the scheduler (nohup is not enough with "
    "torchrun).",
    "For SIGTERM: ask who sent it (scheduler, `kubectl describe pod`, another user, `journalctl`); save on SIGTERM to "
    "resume.",
)
_STEP_ENDED = (r"srun: Terminating (?:[Ss]tep|job)", r"DUE TO (?:TIME LIMIT|NODE FAILURE)")

SIGNATURES: tuple[Signature, ...] = (
    *SIGNALS,
    *TRAILERS,
    Signature(
        code="terminated",
        role="root",
        literals=("death signal", "SignalException", "closing signal SIG"),
        patterns=(
            r"Received (?:Signals\.)?(?P<signal>\w+) death signal, shutting down workers",
            r"SignalException: Process \d+ got signal: (?P<signal>\d+)",
            r"Sending process \d+ closing signal (?P<signal>SIGHUP|SIGINT|SIGQUIT|SIGUSR1|SIGUSR2)",
        ),
        what="the launcher was ended from outside by signal {signal}",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "W0209 api.py:704] Received Signals.SIGTERM death signal, shutting down workers",
            "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 9120 got signal: 15",
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 20877 closing signal SIGHUP",
        ),
        near_misses=("WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 2 closing signal SIGTERM",),
        log_unless=_STEP_ENDED,
        priority=48,
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py",
    ),
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
        why=_WHY,
        fixes=(
            "If you pressed Ctrl-C because nothing moved, the traceback shows where the rank waited: look for the "
            "hang there.",
            *_FIXES,
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
