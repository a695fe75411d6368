"""What commands write: messages to stderr, data to stdout, and events to a program that started ``ddplaunch run``.

Such a program (``api/child.py``) sets ``DDPLAUNCH_TOLD`` to ``PID:PATH``: its own process, and a file that gets one
line of JSON for each event,

    {"findings": [{"code": …, "severity": …, "what": …, "why": …, "fix": …, "where": […]}, …]}
    {"launched": {"run_id": …, "directory": "/…/runs/RUN_ID" or null}}

Only a child of that process writes events: torchrun and the ranks inherit the variable, and may start launches too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.ui.speech import findings_text, refusal_text
from ddplaunch.ui.terminal import Terminal, speak, write
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.frozen import dataclass

VARIABLE = "DDPLAUNCH_TOLD"


def tell(text: str) -> None:
    """Write a message to stderr."""
    speak(text)


def say(text: str) -> None:
    """Write sentences to stderr, wrapped at the terminal's width; commands in backticks are never broken."""
    terminal = Terminal.of(sys.stderr)
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip(" ")))
        tell(terminal.page(terminal.lines(line.lstrip(" "), indent, f"{indent}  ")))


def answer(text: str | bytes) -> None:
    """Write data to stdout; a reader that closed its end (``| head -1``) is not an error."""
    write(text)


def answer_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    write(json.dumps(value, indent=2) + "\n")


def tell_findings(findings: Sequence[Finding]) -> None:
    """Write findings to stderr, each in four lines; a program that started this one raises its errors itself."""
    if findings:
        tell_findings_to_starter(findings)
        if _path() is None or all(one.severity is not Severity.ERROR for one in findings):
            tell(findings_text(findings, Terminal.of(sys.stderr)) + "\n")


def tell_refusal(findings: Sequence[Finding]) -> None:
    """Write the findings that refuse a launch, and how to launch all the same, which such a program knows itself."""
    tell_findings(findings)
    if _path() is None:
        tell(refusal_text(findings, Terminal.of(sys.stderr)))


@dataclass(frozen=True)
class StartReport:
    """All findings, and the last run that was launched; ``directory`` is None where it has no record."""

    findings: tuple[Finding, ...] = ()
    run_id: str | None = None
    directory: Path | None = None


def asked(path: Path) -> dict[str, str]:
    """Return the variable that makes a child of this process report to ``path`` and end with this process."""
    return {VARIABLE: f"{os.getpid()}:{path}"}


def end_with_starter() -> None:
    """Have the kernel send SIGTERM when the program that started this process is gone; execve(2) keeps that.

    A restarted notebook kills its kernel, which would otherwise leave the ranks training. Does nothing where no program
    asked for events.
    """
    if _path() is None:
        return
    get_signal_at_parents_end(signal.SIGTERM)
    if _path() is None:  # the starter ended just now
        os.kill(os.getpid(), signal.SIGTERM)


def get_signal_at_parents_end(number: int) -> None:
    """Have the kernel send this process a signal when its parent ends, 0 for none; do nothing where it cannot."""
    from ddplaunch.machine.processes.stop_processes import signal_at_parents_end  # a launch does not need it

    with contextlib.suppress(OSError, AttributeError):
        signal_at_parents_end(number)


@contextlib.contextmanager
def ending_by_signals(end: Callable[[int, Any], Any]) -> Iterator[None]:
    """Have SIGTERM and SIGHUP call ``end``, which raises, in the ``with`` block; if ignored (nohup) they stay so."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def tell_findings_to_starter(findings: Sequence[Finding]) -> None:
    """Report findings to the starter; write errors are ignored."""
    if findings:
        _tell({"findings": plain(tuple(findings))})


def tell_launch_to_starter(run_id: str, directory: Path | str) -> None:
    """Report a launch to the starter; ``directory`` is its record, or explains why it has none."""
    path = str(directory.absolute()) if isinstance(directory, Path) else None
    _tell({"launched": {"run_id": run_id, "directory": path}})


def read_told(path: Path | int) -> StartReport:
    """Return what was reported to ``path``, or to its open file, since a program that tidies /tmp may remove the name.

    A line cut off by a full disk is left out. Raises OSError.
    """
    from ddplaunch.records.outcome import findings_from_json  # a launch does not need it

    findings: list[Finding] = []
    run_id, directory = None, None
    with open(path, "rb", closefd=isinstance(path, Path)) as file:
        file.seek(0)
        text = file.read()
    for line in text.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            event = json.loads(line)
            findings += findings_from_json(event.get("findings"))
            if launched := event.get("launched"):
                run_id, directory = str(launched["run_id"]), launched["directory"]
    return StartReport(tuple(dict.fromkeys(findings)), run_id, None if directory is None else Path(directory))


def _path() -> str | None:
    starter, _, path = os.environ.get(VARIABLE, "").partition(":")
    return path if starter == str(os.getppid()) else None


def _tell(event: Mapping[str, object]) -> None:
    path = _path()
    if path is not None:
        with contextlib.suppress(OSError, ValueError), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
