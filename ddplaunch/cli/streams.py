"""What commands write: speech to stderr, data to stdout, and events to a program that has started ``ddplaunch run``.

Such a program (``api/child.py``) sets ``DDPLAUNCH_TOLD`` to ``PID:PATH``: its process, and a file to which each event
is a line of JSON,

    {"findings": [{"code": …, "severity": …, "what": …, "why": …, "fix": …, "where": […]}, …]}
    {"launched": {"run_id": …, "directory": "/…/runs/RUN_ID" or null}}

Only a child of that process heeds it: the variable goes on to torchrun and the ranks, which may launch for themselves.
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

from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.terminal import Terminal, speak, write
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass

VARIABLE = "DDPLAUNCH_TOLD"


def tell(text: str) -> None:
    """Write speech to stderr."""
    speak(text)


def say(text: str) -> None:
    """Write sentences to stderr, each line broken where the terminal ends; commands in backticks are never broken."""
    terminal = Terminal.of(sys.stderr)
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip(" ")))
        tell(terminal.page(terminal.lines(line.lstrip(" "), indent, f"{indent}  ")))


def answer(text: str | bytes) -> None:
    """Write data to stdout; a reader that went away (``| head -1``) is no error."""
    write(text)


def answer_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    write(json.dumps(value, indent=2) + "\n")


def tell_findings(findings: Sequence[Finding]) -> None:
    """Write findings to stderr, each in four lines."""
    if findings:
        tell(findings_text(findings, Terminal.of(sys.stderr)) + "\n")
        tell_findings_to_starter(findings)


@dataclass(frozen=True)
class StartReport:
    """What was told: all findings, and the last run that was launched; ``directory`` is None where it has no record."""

    findings: tuple[Finding, ...] = ()
    run_id: str | None = None
    directory: Path | None = None


def asked(path: Path) -> dict[str, str]:
    """Return the variable with which a child of this process tells ``path``; the child ends with this process."""
    return {VARIABLE: f"{os.getpid()}:{path}"}


def end_with_starter(environ: Mapping[str, str] = os.environ) -> None:
    """Have the kernel send SIGTERM when the program that has started this process is gone; execve(2) keeps that.

    A notebook's kernel that is restarted is killed, and would otherwise leave the ranks training. Does nothing in a
    process that nobody wants to be told of.
    """
    if _path(environ) is None:
        return
    get_signal_at_parents_end(signal.SIGTERM)
    if _path(environ) is None:  # it went just now
        os.kill(os.getpid(), signal.SIGTERM)


def get_signal_at_parents_end(number: int) -> None:
    """Have the kernel send this process a signal when its parent ends, 0 for none; does nothing where it cannot."""
    from ddplaunch.machine.processes.stop_processes import signal_at_parents_end  # which a launch does not need

    with contextlib.suppress(OSError, AttributeError):
        signal_at_parents_end(number)


@contextlib.contextmanager
def ending_by_signals(end: Callable[[int, Any], Any]) -> Iterator[None]:
    """Have SIGTERM and SIGHUP call ``end``, which raises, meanwhile; what ignores them (nohup) goes on to."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def tell_findings_to_starter(findings: Sequence[Finding]) -> None:
    """Tell what is wrong, or might be. What cannot be written is not."""
    if findings:
        _tell({"findings": plain(tuple(findings))})


def tell_launch_to_starter(run_id: str, directory: Path | str) -> None:
    """Tell what is launched; ``directory`` is its record, or why it has none."""
    path = str(directory.absolute()) if isinstance(directory, Path) else None
    _tell({"launched": {"run_id": run_id, "directory": path}})


def read_told(path: Path | int) -> StartReport:
    """Return what was told to ``path``, or the open file of it: what tidies /tmp may have taken its name.

    A line that a full disk has cut is left out. Raises OSError.
    """
    from ddplaunch.records.outcome import findings_from_json  # which a launch does not need

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


def _path(environ: Mapping[str, str] = os.environ) -> str | None:
    starter, _, path = environ.get(VARIABLE, "").partition(":")
    return path if starter == str(os.getppid()) else None


def _tell(event: Mapping[str, object]) -> None:
    path = _path()
    if path is not None:
        with contextlib.suppress(OSError, ValueError), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
