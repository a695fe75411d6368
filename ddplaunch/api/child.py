"""One ``ddplaunch run`` as a child of this program: where its output goes, interrupts, and what it tells of itself."""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from ddplaunch.cli.streams import StartReport, asked, read_told
from ddplaunch.records.find import numbered
from ddplaunch.records.own.own_files import LOCK_SHARED, closing, try_lock
from ddplaunch.values.variable_names import own_command
from ddplaunch.values.words import duration_text
from ddplaunch.watch.step_rate import Steps

_LOOK_S = 0.2  # at whether the child has ended, where a pipe of its stays open
_BAR_S = 1.0


class Ended(NamedTuple):
    """How it ended: a process's ``returncode`` as ``subprocess`` counts it; ``interrupted`` if by a Ctrl-C here."""

    returncode: int
    interrupted: bool
    told: StartReport


def run_child(words: Sequence[str], *, show: bool, environment: Mapping[str, str] | None = None) -> Ended:
    """Run ``ddplaunch WORDS`` to its end, with what it prints on this program's stdout and stderr if ``show``.

    An interrupt (KeyboardInterrupt) is passed on, once for each, and the end of the ranks is awaited. If this program
    is killed, its ranks end.
    """
    with held_folder() as folder, open(told := folder / "told.jsonl", "x+b") as kept:
        command = own_command(sys.executable, "ddplaunch", *words)
        variables = {**os.environ, **asked(told), **(environment or {})}
        if show and _has_console():
            code, interrupted = _with_our_console(command, variables)
        else:
            code, interrupted = _with_pipes(command, variables, told, show)
        return Ended(code, interrupted, read_told(kept.fileno()))


@contextlib.contextmanager
def held_folder() -> Iterator[Path]:
    """Make a folder in /tmp, or where TMPDIR says, for as long as the block takes, which may be weeks.

    What tidies /tmp by age leaves it alone while it is locked: https://systemd.io/TEMPORARY_DIRECTORIES/.
    """
    with contextlib.ExitStack() as held:
        name = held.enter_context(tempfile.TemporaryDirectory(prefix="ddplaunch-", ignore_cleanup_errors=True))
        with contextlib.suppress(OSError):  # a file system without locks
            try_lock(held.enter_context(closing(os.open(name, os.O_RDONLY))), LOCK_SHARED)
        yield Path(name)


def _has_console() -> bool:
    """Return whether Python's stdout and stderr are those of the process, which a child would share."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is None or stream.fileno() != number:
                return False
        except (OSError, ValueError, AttributeError):
            return False
    return _cell() is None


def _with_our_console(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bool]:
    sys.stdout.flush()
    sys.stderr.flush()
    interrupted = False
    with subprocess.Popen(command, env=environment) as process:
        while True:
            try:
                return process.wait(), interrupted
            except KeyboardInterrupt:
                interrupted = True
                if not _from_terminal():
                    process.send_signal(signal.SIGINT)


def _from_terminal() -> bool:
    """Return whether Ctrl-C of the terminal reaches this program's children too: it is in the foreground there."""
    with contextlib.suppress(OSError):
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(descriptor) == os.getpgrp()
        finally:
            os.close(descriptor)
    return False


def _with_pipes(command: Sequence[str], environment: Mapping[str, str], told: Path, show: bool) -> tuple[int, bool]:
    """Run it in a session of its own, so that an interrupt of a notebook's kernel and its children reaches it once."""
    interrupted = False
    bar = _bar(told) if show else None
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        pump = _Pump({process.stdout.fileno(): sys.stdout, process.stderr.fileno(): sys.stderr}, show)
        while True:
            try:
                if not pump.once() and process.poll() is not None:
                    break
                if bar is not None:
                    bar()
            except KeyboardInterrupt:
                interrupted = True
                process.send_signal(signal.SIGINT)
        if bar is not None:
            bar(ended=True)
        return process.wait(), interrupted


class _Pump:
    """Carries what arrives at descriptors into streams of Python."""

    def __init__(self, sinks: Mapping[int, TextIO | None], show: bool) -> None:
        self._selector = selectors.DefaultSelector()
        decoder = codecs.getincrementaldecoder("utf-8")
        for descriptor, sink in sinks.items():
            self._selector.register(descriptor, selectors.EVENT_READ, (sink if show else None, decoder("replace")))

    def once(self) -> bool:
        """Wait a moment for something; return whether there was any, or some is still to come."""
        if not self._selector.get_map():
            time.sleep(_LOOK_S / 10)
            return False
        ready = self._selector.select(_LOOK_S)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            sink, decoder = key.data
            text = decoder.decode(data, final=not data)
            if sink is not None and text:
                sink.write(text)
                sink.flush()
            if not data:
                self._selector.unregister(key.fd)
        return bool(ready)


def _cell() -> Any:
    """Return the shell of the notebook that this program is a kernel of, None elsewhere."""
    if "ipykernel" not in sys.modules:
        return None
    from IPython import get_ipython

    shell = get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


class _Bar:
    """A line below the cell that says, each second, how far the run is."""

    def __init__(self, told: Path) -> None:
        from IPython.display import DisplayHandle

        self._told, self._began_s, self._next_s = told, time.monotonic(), 0.0
        self._handle = DisplayHandle()  # type: ignore[no-untyped-call]
        self._shown = False
        self._steps: dict[Path, Steps] = {}

    def __call__(self, *, ended: bool = False) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s and not ended:
            return
        self._next_s = now_s + _BAR_S
        text = self._text(duration_text(now_s - self._began_s), ended)
        bar = "" if ended else "<progress></progress> "
        data = {"text/plain": text, "text/html": f"{bar}<code>{escape(text)}</code>"}
        show: Any = self._handle.update if self._shown else self._handle.display
        show(data, raw=True)
        self._shown = True

    def _text(self, after: str, ended: bool) -> str:
        told = read_told(self._told)
        words = ["ddplaunch" if told.run_id is None else f"ddplaunch {told.run_id}", after]
        if told.directory is not None and (attempts := numbered(told.directory / "node-0", "attempt")):
            folder = attempts[-1][1]
            steps = self._steps.setdefault(folder, Steps(folder, range(1)))
            progress = steps.progress(time.time()).get(0)
            if progress is not None:
                words.append(f"step {progress.step:g}")
                if progress.rate is not None and not ended:
                    words.append(f"{progress.rate:.3g} steps/s")
        return " · ".join([*words, "ended"] if ended else words)


def _bar(told: Path) -> Callable[..., None] | None:
    if _cell() is None:
        return None
    return _Bar(told)
