"""One launch, looked at from outside: until all ranks have met, what they hold then, how it ends.

All ranks report on a socket after their first all-reduce and wait. While they wait, the memory of every process of the
launch is read; the seconds that this takes are left out of ``wall``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.launchers import Launcher

RANK = str(Path(__file__).with_name("launch_rank.py"))
DEADLINE_S = 180
FIGURES = ("first line", "torch", "ready", "wall", "end", "cpu", "pss_mib")
Figures = dict[str, float]
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_TRIES = 3  # torch aborts now and then when an interpreter ends (status 134); what then was measured means nothing


def measure(launcher: Launcher, ranks: int, environ: Mapping[str, str], more: tuple[str, ...] = ()) -> Figures:
    """Return what one launch took: seconds since its start, CPU seconds, MiB. Raises RuntimeError if it keeps failing.

    ``first line``: the last rank begins its script. ``torch``: the last has it. ``ready``: the last has finished its
    all-reduce. ``end``: from the end of the last rank's process to the prompt. ``wall``: all of it.
    """
    # what a launcher leaves without waiting for it: its CPU time counts too
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for attempt in range(_TRIES):
        try:
            return _once(launcher.argv(ranks, more), ranks, {**environ, **launcher.environ})
        except RuntimeError:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError


def _once(argv: Sequence[str], ranks: int, environ: Mapping[str, str]) -> Figures:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder, "ranks"))
        listener.bind(path)
        listener.listen(ranks)
        with open(Path(folder, "errors"), "w+b") as errors:
            used, began = cpu_s(), time.monotonic()
            process = subprocess.Popen(
                [*argv, RANK, path],
                cwd=folder,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            try:
                figures = _followed(process, listener, ranks, began)
            except Exception as exception:
                errors.seek(0)
                said = errors.read().decode(errors="replace")[-2000:]
                raise RuntimeError(f"{' '.join(argv)}: {exception}\n{said}") from exception
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
                _reap_orphans()
        return {**figures, "cpu": cpu_s() - used}


def _followed(process: subprocess.Popen[bytes], listener: socket.socket, ranks: int, began: float) -> Figures:
    """Wait for all ranks, read their memory, let them end, wait for the prompt."""
    deadline = began + DEADLINE_S
    with selectors.DefaultSelector() as selector:
        ended = os.pidfd_open(process.pid)
        selector.register(ended, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        channels: list[socket.socket] = []
        while len(channels) < ranks:
            found = [key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
            if ended in found or not found:
                raise RuntimeError(f"{len(channels)} of {ranks} ranks met")
            channels.append(listener.accept()[0])
        answers = [json.loads(channel.makefile().readline()) for channel in channels]
        held = time.monotonic()
        watched = {os.pidfd_open(answer["pid"]) for answer in answers}
        memory = sum(map(pss_kib, tree(process.pid))) / 1024
        for handle in watched:
            selector.register(handle, selectors.EVENT_READ)
        released = time.monotonic()
        for channel in channels:
            channel.sendall(b"+")
            channel.close()
        last, over = _ends(selector, watched, ended, deadline)
        os.close(ended)
    if process.wait() != 0:
        raise RuntimeError(f"status {process.returncode}")
    return {
        **{name: max(answer[key] for answer in answers) - began for name, key in _RANKS_SAY},
        "wall": over - began - (released - held),
        "end": over - last,
        "pss_mib": memory,
    }


_RANKS_SAY = (("first line", "started"), ("torch", "has_torch"), ("ready", "ready"))


def _reap_orphans() -> None:
    until = time.monotonic() + 5
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.005)


def _ends(selector: selectors.BaseSelector, watched: set[int], ended: int, deadline: float) -> tuple[float, float]:
    """Return when the last rank and when the launcher ended. Raises RuntimeError at the deadline."""
    last = over = 0.0
    while not over:
        found = {key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))}
        now = time.monotonic()
        if not found:
            raise RuntimeError(f"not ended after {DEADLINE_S} s")
        for handle in found & watched:
            selector.unregister(handle)
            os.close(handle)
            watched.discard(handle)
            last = now
        over = now if ended in found else 0.0
    return last, over


def pss_kib(pid: int) -> int:
    """Return what the process holds, shared pages divided by how many share them; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def tree(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(found for child in children for found in tree(child))]


def cpu_s() -> float:
    """Return the CPU seconds of all that were waited for: tells more than wall time on a busy machine."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
