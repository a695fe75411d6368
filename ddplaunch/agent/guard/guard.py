"""The guard beside torchrun: captures ranks, outlives torchrun, leaves nothing running; refuses to explain anything.

A light interpreter of its own (no site, no torch), so that neither a busy agent nor its death touches what ranks print.
``ddplaunch.agent.protocol`` says what it is told and answers, ``aftermath`` what is said at the end.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from typing import TYPE_CHECKING

from ddplaunch.agent.end.handover import conclude_run
from ddplaunch.agent.guard.guarded_run import RECORD_PATIENCE_S, GuardedRun
from ddplaunch.agent.guard.output import RecordFile
from ddplaunch.agent.protocol import send
from ddplaunch.launch.settings import Settings
from ddplaunch.values.variable_names import SETTINGS

if TYPE_CHECKING:
    from ddplaunch.agent.end.ended import EndedRun

_SPEECH_PATIENCE_S = 10.0


def guard(run: GuardedRun) -> int:
    """Guard ``run`` until it has ended and nothing is left of it; return the exit status that it deserves."""
    while not run.end or run.sweeps.running:
        run.once()
    run.loop.once(0)
    if run.attempts:
        last = run.attempts[-1]
        last.look()
        last.ended_s = time.time()
        last.complete(run.end.get("failures") or (), succeeded=run.end.get("state") == "succeeded")
    run.capture.end_attempt()
    run.capture.settle(RECORD_PATIENCE_S)
    until_s = time.monotonic() + _SPEECH_PATIENCE_S
    while run.speaking and time.monotonic() < until_s:
        time.sleep(0.005)
    if run.recorder is not None:
        run.recorder.end()
    status = conclude_run(run.settings, _ended(run), run.console)
    run.console.drain()
    return status


def _ended(run: GuardedRun) -> EndedRun:
    from ddplaunch.agent.end.ended import EndedRun

    return EndedRun(
        host=run.host,
        started_s=run.started_s,
        ended_s=time.time(),
        attempts=tuple(attempt.ended(run.directory) for attempt in run.attempts),
        state=run.end.get("state", "error"),
        signal=run.end.get("signal") or run.signal,
        interrupts=max(run.interrupts, run.interrupts_told),
        launcher_died=run.launcher_died,
        error=run.end.get("error") or "",
        failures=tuple(run.end.get("failures") or ()),
        left_over=tuple(sorted(run.sweeps.ended)),
        unrecorded=run.capture.unrecorded(),
        stopped=None if run.end.get("state") == "succeeded" else run.stopped,
    )


def main(descriptor: int) -> None:
    """Guard the run whose plug-in holds the other end of the socket ``descriptor``; never returns."""
    status = 70  # EX_SOFTWARE: the plug-in starts another guard
    settings = Settings()
    try:
        settings = Settings.from_json(os.environ.get(SETTINGS) or "{}")
        _make_room()
        channel = socket.socket(fileno=descriptor)
        os.set_inheritable(descriptor, False)
        exit_status = guard(GuardedRun(channel, settings))
        status = 0
        with contextlib.suppress(OSError):  # torchrun is gone: nobody waits for the answer
            send(channel, {"op": "done", "exit_status": exit_status})
    except BaseException as error:
        _leave_a_note(settings, error)
    finally:
        os._exit(status)  # threads may hang in a write for ever


def _make_room() -> None:
    """Name this process for process tables, and let it open as many files as it may."""
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("ddplaunch-guard")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _leave_a_note(settings: Settings, error: BaseException) -> None:
    import traceback

    note = RecordFile(f"{settings.node_directory}/launcher.err")
    if settings.directory:
        note.open()
    note.write("".join(["ddplaunch: the guard failed\n", *traceback.format_exception(error)]).encode())
