"""What a launcher over several hosts does with signals, with real services that stand for hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddplaunch.hosts.session import start_hosts
from ddplaunch.hosts.session.links import Links
from ddplaunch.hosts.session.start_hosts import HostEnd, LaunchOnHosts
from tests.hosts.launching import SERVICE, stand_in


class Launch:
    """One host with a shell script as its program; ``at`` maps what it prints to the signal that we then get."""

    def __init__(self, folder: Path, program: str, at: dict[bytes, signal.Signals]) -> None:
        self._at = at
        self.said = ""
        self._python = stand_in(folder, program)

    def run(self) -> tuple[HostEnd, int | None]:
        order = {"python": self._python, "run_id": "none-such", "token": "", "grace_s": 60.0, "record": ""}
        with Links() as links:
            host = links.open("host", SERVICE)
            made = LaunchOnHosts(links, [host], self._show, 60.0, 60.0, self._say)
            with made.handling():
                (end,) = made.run([order])
        return end, made.interrupted

    def _show(self, node: int, stream: str, data: bytes) -> None:
        for word in [word for word in self._at if word in data]:
            os.kill(os.getpid(), self._at.pop(word))

    def _say(self, text: str) -> None:
        self.said += text
        if text and (number := self._at.pop(b"told", None)) is not None:
            os.kill(os.getpid(), number)


@pytest.fixture
def nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_ends_the_hosts(tmp_path: Path) -> None:
    """The program does not inherit that the service ignores the signal."""
    end, interrupted = Launch(tmp_path, "echo up; exec sleep 60", {b"up": signal.SIGHUP}).run()
    assert (end.status, interrupted) == (128 + signal.SIGHUP, signal.SIGHUP)


@pytest.mark.usefixtures("nohup")
def test_under_nohup_it_does_not(tmp_path: Path) -> None:
    end, interrupted = Launch(tmp_path, "echo up; sleep 0.5", {b"up": signal.SIGHUP}).run()
    assert (end.status, interrupted) == (0, None)


def test_what_is_waited_for_is_said_and_a_second_ctrl_c_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_hosts, "_QUIET_S", 0.1)
    stubborn = "trap '' INT; echo up; while :; do sleep 0.1; done"
    launch = Launch(tmp_path, stubborn, {b"up": signal.SIGINT, b"told": signal.SIGINT})
    end, interrupted = launch.run()
    assert launch.said == "the ranks on host get 60 s to end; Ctrl-C again ends them at once"
    assert (end.status, interrupted) == (128 + signal.SIGKILL, signal.SIGINT)
