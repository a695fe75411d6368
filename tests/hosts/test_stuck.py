"""Ranks of a torchrun that waits for a store which is gone are told to end in its place; others are left to theirs."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ddplaunch.hosts.session import job
from ddplaunch.hosts.session.job import StuckTorchrun, is_silent, store_of
from ddplaunch.machine.processes.process_table import Process, read_process
from tests.records.fake_runs import wait_for


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def order(port: int) -> dict[str, object]:
    return {"launch": {"options": {"master_addr": {"value": "127.0.0.1"}, "master_port": {"value": port}}}}


def over(stuck: StuckTorchrun, within_s: float) -> bool:
    return wait_for(stuck.over, within_s)


def stuck_one(rank: subprocess.Popen[bytes], port: int, monkeypatch: pytest.MonkeyPatch) -> StuckTorchrun:
    monkeypatch.setattr(job, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(job, "_LOOK_S", 0.05)

    def ranks() -> list[Process]:
        process = read_process(rank.pid)
        return [process] if process is not None and process.alive else []

    return StuckTorchrun(order(port), ranks)


def test_silent_store(rank: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A full backlog answers to nobody, as a host without power."""
    monkeypatch.setattr(job, "_CONNECT_S", 0.2)
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for each in (first, second):
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        assert is_silent("127.0.0.1", port)
        stuck = stuck_one(rank, port, monkeypatch)
        assert not over(stuck, 0.3) and rank.poll() is None  # nobody has asked for the end
        stuck.signalled(signal.SIGTERM)
        assert over(stuck, 30)
        assert rank.wait(30) == -signal.SIGTERM


def test_store_that_answers_or_refuses(rank: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not is_silent("127.0.0.1", port)
    assert not is_silent("127.0.0.1", port)
    stuck = stuck_one(rank, port, monkeypatch)
    stuck.signalled(signal.SIGTERM)
    assert not over(stuck, 0.5) and rank.poll() is None


def test_store_of() -> None:
    assert store_of(order(29500)) == ("127.0.0.1", 29500)
    assert store_of({"launch": {"options": {"master_addr": None}}}) is None
    assert store_of({}) is None
