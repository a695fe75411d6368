"""Reports the end of torchrun to the guard, which answers with the exit status."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from ddplaunch.agent.plugin.session import Session
from ddplaunch.agent.plugin.signals import Signals
from ddplaunch.agent.protocol import RankFailure
from ddplaunch.machine.processes.process_table import read_stat
from ddplaunch.planning.settings import Settings
from ddplaunch.records.first_failure import exit_status, run_state

_FAILED = "ddplaunch/failed"
_LISTEN_S = 1.0
_SETTLE_S = 3.0
_STORE_S = 10.0


class Ending:
    """Watches for the end of this process by ``sys.excepthook`` and ``atexit``."""

    def __init__(self, session: Session, signals: Signals, before: Callable[[], None]) -> None:
        """``before`` is called before the end is reported."""
        self._session, self._before = session, before
        self._signals = signals
        self.others = OtherNodes(session, self.by_signal)
        self._leaving: int | None = None  # the thread that reports the end
        self._owner, self._started_s = os.getpid(), time.time()

    def install(self) -> None:
        """Report the end when this process exits. The previous ``sys.excepthook`` still prints to torchrun's stderr."""
        before = sys.excepthook

        def failed(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            with contextlib.suppress(Exception):
                before(kind, value, trace)
            self._leave(self._failed(value))

        sys.excepthook = failed
        atexit.register(self._leave, {"state": "succeeded"})  # torchrun exits without an exception

    def by_signal(self, number: int) -> None:
        """End at once, because of signal ``number``."""
        self._leave({"state": "signal", "signal": number})

    def _failed(self, value: BaseException) -> dict[str, Any]:
        failures = getattr(value, "failures", None)
        if isinstance(failures, dict) and failures:  # ChildFailedError
            return {"state": "failed", "signal": self._signals.first, "failures": failures_of(failures)}
        signalled = getattr(value, "sigval", None)  # SignalException
        if signalled is not None or isinstance(value, KeyboardInterrupt) or self._signals.first is not None:
            return {"state": "signal", "signal": self._signals.first or int(signalled or 2)}
        return {"state": "error", "error": error_text(value)}

    def _leave(self, message: dict[str, Any]) -> None:
        """Report the end, wait for the guard, and exit with the status that it returns; do nothing in a fork."""
        if os.getpid() != self._owner:
            return
        if self._leaving is not None and self._leaving != threading.get_ident():
            threading.Event().wait()  # another thread, of a signal, is about to end the process
        if self._leaving is not None:
            return
        self._leaving = threading.get_ident()
        self._signals.ending()
        _flush()
        with contextlib.suppress(Exception):
            self._before()
        answered = None
        with contextlib.suppress(Exception):
            answered = self._session.end(message)
        if answered is None:
            self._session.part()
            answered = fallback_status(message)
            with contextlib.suppress(Exception):
                write_alone(self._session.settings, message, answered, self._started_s, self._session.without)
        with contextlib.suppress(Exception):
            self.others.tell()
        _flush()
        os._exit(answered)


class OtherNodes:
    """Exchanges failures between the nodes of a launch by hand, through the store of node 0's torchrun.

    torchrun does not: a node whose ranks have ended waits up to five minutes for the others, and a node whose ranks
    wait for those of a failed node does so until their collectives time out.
    """

    def __init__(self, session: Session, end: Callable[[int], None]) -> None:
        """``end`` ends this process in order, even while its main thread waits in C++."""
        self._session, self._end = session, end
        self._thread: threading.Thread | None = None
        self._told = False

    def listen(self) -> None:
        """Start listening, once. Ranks run by now, so the store exists."""
        if self._session.settings.others and self._thread is None:
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()

    def tell(self) -> None:
        """Tell how this node failed, from its record; node 0 stays until the others had time to read it."""
        settings = self._session.settings
        if self._told or not settings.directory or self._thread is None:
            return
        from ddplaunch.records.outcome import RunOutcome, read_outcome, short_outcome

        outcome, self._told = read_outcome(Path(settings.directory), settings.node), True
        if isinstance(outcome, RunOutcome) and outcome.state != "succeeded":
            self._store().set(_FAILED, json.dumps(short_outcome(outcome)))
            if settings.node == 0:
                time.sleep(2 * _LISTEN_S)

    def _store(self) -> Any:
        from datetime import timedelta

        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        host, _, port = self._session.settings.others.rpartition(" ")
        return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=_STORE_S), wait_for_workers=False)

    def _listen(self) -> None:
        try:
            store = self._store()
            while not store.check([_FAILED]):
                time.sleep(_LISTEN_S)
            told = json.loads(store.get(_FAILED))
        except Exception:  # node 0 is gone, which this torchrun will notice itself
            return
        if self._told:
            return  # this node's own end came first
        self._told = True
        self._session.elsewhere(told)
        time.sleep(_SETTLE_S)  # ranks that fail because of it report that first
        os.kill(os.getpid(), signal.SIGTERM)
        until_s = time.monotonic() + self._session.settings.grace_s + _SETTLE_S
        while any(map(read_stat, self._session.pids)) and time.monotonic() < until_s:
            time.sleep(0.1)
        time.sleep(_SETTLE_S)
        self._end(signal.SIGTERM)  # the main thread waits in C++, where no handler runs


def failures_of(failures: dict[int, Any]) -> list[RankFailure]:
    """Return each failed rank's end, from torch's ``ProcessFailure``."""
    return [
        RankFailure(
            rank=int(rank),
            pid=int(failure.pid),
            exit_code=int(failure.exitcode),
            timestamp_s=int(failure.timestamp),
        )
        for rank, failure in failures.items()
    ]


def error_text(value: BaseException) -> str:
    """Return torchrun's own exception followed by its causes, the latest first."""
    words, seen = [], set()
    current: BaseException | None = value
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        words.append(f"{type(current).__name__}: {current}".rstrip(": "))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return " <- ".join(words)


def fallback_status(message: dict[str, Any]) -> int:
    """Return the exit status as far as torchrun itself knows it; a signal to torchrun outranks the ranks' exits."""
    failures = ((each["timestamp_s"], each["exit_code"]) for each in message.get("failures") or ())
    number = message.get("signal")
    return exit_status("signal" if number else message["state"], None, failures, signal=number)


def write_alone(
    settings: Settings, message: dict[str, Any], status: int, started_s: float, without: str | None
) -> None:
    """Write the outcome of a run without a guard, as far as torchrun itself knows it and the disk permits."""
    from ddplaunch.records.outcome import RunOutcome, read_outcome, write_outcome

    written = read_outcome(Path(settings.directory), settings.node) if settings.directory else None
    if not settings.directory or (isinstance(written, RunOutcome) and written.exit_status == status):
        return  # a guard that died after its report wrote more detail
    failures = sorted(message.get("failures") or (), key=lambda failure: failure["timestamp_s"])
    outcome = RunOutcome(
        run_id=settings.run_id,
        host=os.uname().nodename,
        node=settings.node,
        state=run_state("signal" if message.get("signal") else message["state"]),
        exit_status=status,
        started_s=round(started_s, 3),
        ended_s=round(time.time(), 3),
        first_failed_rank=failures[0]["rank"] if failures else None,
        diagnosis=None,
        cascade=(),
        attempts=(),
        notes=(f"not all output is recorded: {without or 'the process that records it was lost'}",),
    )
    write_outcome(Path(settings.directory), outcome)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
