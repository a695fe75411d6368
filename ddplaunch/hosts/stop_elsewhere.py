"""Asks other hosts by ssh, all at once, to end what they still run of a run; refuses to wait longer than a deadline."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ddplaunch.finding import Finding
from ddplaunch.frozen import dataclass
from ddplaunch.hosts.ssh import CONNECT_S, command, environment, failure

_AT_ONCE = 64
_ENDING_S = 30.0  # beyond the grace: a cold interpreter, SIGKILL, the guard's last words


@dataclass(frozen=True)
class HostStopped:
    """What ended on one host: entries with ``pid``, ``role``, ``rank`` and ``by`` ("itself" or "SIGKILL").

    ``remaining`` still runs; ``problem`` says why the host could not be asked.
    """

    host: str
    ended: tuple[dict[str, Any], ...] = ()
    remaining: tuple[dict[str, Any], ...] = ()
    problem: Finding | None = None


def ask_hosts(places: Sequence[tuple[str, str]], run_id: str, grace_s: float) -> tuple[HostStopped, ...]:
    """Have each host, given with its interpreter, end this run as its own ``stop`` would; ``grace_s`` in seconds."""
    with ThreadPoolExecutor(min(_AT_ONCE, len(places)) or 1) as pool:
        return tuple(pool.map(lambda place: _ask(place[0], place[1], run_id, grace_s), places))


def _ask(host: str, python: str, run_id: str, grace_s: float) -> HostStopped:
    words = [python, "-m", "ddplaunch.cli.stop_here", run_id, f"{grace_s:g}"]
    argv = [*command(host, python)[:-1], f"exec env PYTHONSAFEPATH=1 {shlex.join(words)}"]
    status: int | None = None
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CONNECT_S + grace_s + _ENDING_S,
            check=False,
            env=environment(),
        )
        status, said = done.returncode, done.stderr
        answer = _answer(done.stdout)
        if status == 0 and answer is not None:
            return HostStopped(host, tuple(answer["ended"]), tuple(answer["remaining"]))
    except subprocess.TimeoutExpired as late:
        said = late.stderr or b""
    except OSError as error:  # no ssh here
        said = f"{error.strerror}: {error.filename}".encode()
    return HostStopped(host, problem=failure(host, python, status, said.decode("utf-8", "replace")))


def _answer(out: bytes) -> dict[str, Any] | None:
    """Return the last line, behind whatever the login's shell printed, None where it is no answer."""
    try:
        answer = json.loads((out.splitlines() or [b""])[-1])
    except ValueError:
        return None
    complete = isinstance(answer, dict) and {"ended", "remaining"} <= set(answer)
    return answer if complete else None
