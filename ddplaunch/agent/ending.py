"""The end of torchrun as the plug-in sees it: told to the guard, then the exit status; refuses to say why it ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ddplaunch.agent.protocol import Failure, State
from ddplaunch.agent.session import Session
from ddplaunch.agent.signals import Signals

_MESSAGES_CHARS = 48_000  # of all failures together; a message to the guard has to fit into one piece
_ERROR_CHARS = 4_000


class Ending:
    """Watches for the end of this process by ``sys.excepthook`` and ``atexit``."""

    def __init__(
        self, session: Session, signals: Signals, before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        """``before`` is called before the last word, ``after`` when it was answered."""
        self._session = session
        self._before, self._after = before, after
        self._signals = signals
        self._leaving: int | None = None  # the thread that says the end
        self._owner = os.getpid()

    def install(self) -> None:
        """Take the last word. What was in ``sys.excepthook`` still prints: into torchrun's own messages."""
        before = sys.excepthook

        def failed(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            with contextlib.suppress(Exception):
                before(kind, value, trace)
            if os.getpid() == self._owner:
                self._leave(self._failed(value))

        sys.excepthook = failed
        atexit.register(self._exit)

    def by_signal(self, number: int) -> None:
        """End at once, before any rank ran."""
        self._leave({"state": "signal", "signal": number}, 128 + number)

    def _exit(self) -> None:
        """Torchrun comes to its end without an exception: the ranks succeeded, or none was ever started."""
        if os.getpid() != self._owner:
            return
        if self._session.attempt < 0:
            self._leave(_end("error", error="torchrun ended before any rank was started"), 1)
        self._leave(_end("succeeded"), 0)

    def _failed(self, value: BaseException) -> dict[str, Any]:
        failures = getattr(value, "failures", None)
        if isinstance(failures, dict) and failures:  # ChildFailedError
            return _end("failed", self._signals.first, failures=failures_of(failures))
        signalled = getattr(value, "sigval", None)  # SignalException
        if signalled is not None or isinstance(value, KeyboardInterrupt) or self._signals.first is not None:
            return _end("signal", self._signals.first or int(signalled or 2))
        return _end("error", error=error_text(value))

    def _leave(self, message: dict[str, Any], status: int = 1) -> None:
        """Say the end, wait for the guard, and leave with the status that it names; ``status`` without a guard."""
        if self._leaving is not None and self._leaving != threading.get_ident():
            threading.Event().wait()  # a signal was quicker, and its thread is about to end the process
        if self._leaving is not None:
            return
        self._leaving = threading.get_ident()
        self._signals.ending()
        _flush()
        with contextlib.suppress(Exception):
            self._before()
        lived_s = time.monotonic() - (self._session.began_s or time.monotonic())
        answered = self._session.end(message)
        guarded = answered is not None
        if answered is None:
            self._session.give_stderr_back()
            answered = fallback_status(message, status)
        _flush()
        with contextlib.suppress(Exception):
            self._after()
        if guarded and "relaunch" in self._session.settings and message["state"] != "succeeded":
            self._relaunch(answered, lived_s)
        os._exit(answered)

    def _relaunch(self, status: int, lived_s: float) -> None:
        """Launch all of it again where that was asked for and is of use; it returns where it is not."""
        try:
            from ddplaunch.agent.relaunch import relaunch  # for the few launches that ask for it

            relaunch(self._session.settings, status, lived_s, self._signals, self._session.give_stderr_back)
        except Exception as exception:
            self._session.give_stderr_back()
            with contextlib.suppress(OSError):
                os.write(2, f"ddplaunch: not relaunched: {type(exception).__name__}: {exception}\n".encode())


def _end(
    state: State, signal: int | None = None, *, error: str = "", failures: list[Failure] | None = None
) -> dict[str, Any]:
    return {"state": state, "signal": signal, "failures": failures or [], "error": error}


def failures_of(failures: dict[int, Any]) -> list[Failure]:
    """Return what torch's ``ProcessFailure`` says of each failed rank, with the traceback that ``@record`` wrote."""
    budget = _MESSAGES_CHARS // len(failures)
    return [
        Failure(
            rank=int(rank),
            local_rank=int(failure.local_rank),
            pid=int(failure.pid),
            exit_code=int(failure.exitcode),
            message=_message(failure.message)[-budget:],
            timestamp_s=int(failure.timestamp),
        )
        for rank, failure in failures.items()
    ]


def _message(message: Any) -> str:
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo") or {}
    return str(extra.get("py_callstack") or message.get("message") or "")


def error_text(value: BaseException) -> str:
    """Return torchrun's own exception with what it arose from, the last first."""
    words, seen = [], set()
    current: BaseException | None = value
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        words.append(f"{type(current).__name__}: {current}".rstrip(": "))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return " <- ".join(words)[:_ERROR_CHARS]


def fallback_status(message: dict[str, Any], status: int) -> int:
    """Return the exit status from what torchrun itself knows: the first failure that the agent did not cause."""
    if message.get("signal"):
        return 128 + int(message["signal"])
    failures = sorted(message.get("failures") or [], key=lambda failure: int(failure["timestamp_s"]))
    own = [failure for failure in failures if failure["exit_code"] != -15] or failures
    if not own:
        return status
    code = int(own[0]["exit_code"])
    return code if code > 0 else 128 - code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
