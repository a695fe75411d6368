"""Nodes for tests of the roll call: hellos, and whole roll calls between threads."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ddplaunch.hosts.roll_call.call import Call, answer, hold
from ddplaunch.hosts.roll_call.messages import Hello, Secret, Status, Verdict
from ddplaunch.hosts.roll_call.rules import all_together, told
from ddplaunch.values import codec
from ddplaunch.values.finding import Finding
from tests.agent.guarded import until
from tests.checks.healthy import healthy_facts

WORDS = {"--nnodes": "3", "NPROC": "4", "--max-restarts": "0", "--run-id": "", "script": "train.py"}
FACTS = codec.to_json(told(healthy_facts()))


def hello(rank: int, **changes: Any) -> Hello:
    """Return what a healthy node of a launch on three says."""
    now = time.time()
    said = Hello(rank, f"gpu-{rank}", f"machine {rank}", 100 + rank, now, now, "0.1", WORDS, "args", FACTS, "abc")
    return replace(said, **changes)


def compare(joined: Mapping[int, Hello], clocks: Mapping[int, tuple[float, float]]) -> tuple[Finding, ...]:
    """Compare as a launch does."""
    return all_together(joined, clocks, "train.py", ())


def knock(port: int, data: bytes) -> socket.socket:
    """Connect to node 0 as soon as it listens, and send ``data``."""
    end = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), 5)
            connection.sendall(data)
            return connection
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)


class Gathering:
    """A roll call on the loopback; every node a thread, with all that it was shown. Use as a context manager."""

    def __init__(
        self,
        port: int,
        nodes: int = 3,
        timeout_s: float = 20.0,
        secrets: Mapping[int, tuple[Secret, ...]] | None = None,
    ) -> None:
        self.call = Call(nodes, "127.0.0.1", port, timeout_s, {})
        self._secrets = secrets or {}
        self.shown: dict[int, list[Status]] = {}
        self._pool = ThreadPoolExecutor(8)

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)

    def node(self, rank: int, **changes: Any) -> Future[Verdict]:
        said, shown = hello(rank, **changes), self.shown.setdefault(rank, [])
        call = replace(self.call, secrets=self._secrets.get(rank, self.call.secrets))
        if rank == 0:
            return self._pool.submit(hold, call, said, "id", "run", compare, shown.append)
        return self._pool.submit(answer, call, lambda: replace(said, clock_s=time.time()), shown.append)

    def until(self, rank: int, joined: int) -> None:
        """Wait until node ``rank`` was shown that ``joined`` nodes are there."""
        shown = self.shown[rank]
        until(lambda: any(status.joined == joined for status in list(shown)), f"{joined} nodes are there")
