"""Who may join: nodes that prove a secret, which needs no typing where they share a home directory."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.hosts.roll_call.messages import (
    PROTOCOL,
    Greeting,
    Secret,
    Verdict,
    line_with,
    read_message,
    sealed,
    secrets_of,
)
from ddplaunch.values.finding import UsageError
from ddplaunch.values.secrets import names_a_secret
from tests.agent.guarded import until
from tests.hosts.roll_calls import Gathering, hello, knock
from tests.ports import free_port

OURS, THEIRS = Secret("given", b"o" * 32), Secret("given", b"t" * 32)


def all_share(secret: Secret) -> dict[int, tuple[Secret, ...]]:
    return dict.fromkeys(range(3), (secret,))


def knocked(port: int, made: bytes | None = None, secret: Secret | None = None, **changes: Any) -> bytes:
    """Say a hello, or ``made``, as a stranger would; return all that is answered until the connection ends."""
    with knock(port, b"") as connection, connection.makefile("rb") as lines:
        connection.settimeout(60)
        first = read_message(lines.readline(), Greeting)
        assert first is not None
        line = made or sealed(line_with(hello(1, **changes)), secret, "hello", first.nonce)
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        return lines.read()


def test_strangers_neither_join_nor_end_a_launch_with_a_secret(port: int) -> None:
    """Other launches and ranks, an old proof, silence, other protocols: the launch goes on as if nobody had come."""
    with Gathering(port, secrets=all_share(OURS)) as gathering:
        first = gathering.node(0)
        silent = [knock(port, b"") for _ in range(140)]  # more than are kept
        for secret, launch in ((None, hello(1).launch), (THEIRS, hello(1).launch), (THEIRS, {"--nnodes": "9"})):
            for rank in (0, 1, 2147483647):
                verdict = read_message(knocked(port, secret=secret, node_rank=rank, launch=launch), Verdict)
                assert verdict is not None and not verdict.go and not verdict.findings
        old = sealed(line_with(hello(1)), OURS, "hello", "of another connection")
        for line in (old, line_with(hello(1, protocol=99)), b"GET / HTTP/1.1\r\n\r\n", b"\0\xff\n" * 20, b'{"Hello":'):
            knocked(port, line)
        until(lambda: any(status.note for status in list(gathering.shown[0])), "it is told")
        assert {status.joined for status in gathering.shown[0]} == {1}
        verdicts = [node.result(60) for node in (first, gathering.node(1), gathering.node(2))]
        for connection in silent:
            connection.close()
    assert all(verdict.go for verdict in verdicts)


def test_a_node_without_the_secret_is_told_at_once_and_node_0_in_the_end() -> None:
    lacking: tuple[tuple[Secret, ...], ...] = ((), (THEIRS,), (Secret("user 12345678", b"o" * 32),))
    with ExitStack() as at_once:  # each waits for its time-out

        def gathered(mine: tuple[Secret, ...], theirs: tuple[Secret, ...]) -> tuple[Future[Verdict], Future[Verdict]]:
            roll_call = Gathering(free_port(), timeout_s=1, secrets={0: mine, 1: theirs})
            gathering = at_once.enter_context(roll_call)
            return gathering.node(0), gathering.node(1)

        node_1_lacks_it = [gathered((OURS,), theirs) for theirs in lacking]
        for first, other in [gathered(mine, (OURS,)) for mine in lacking]:  # nor does node 1 believe node 0
            assert other.result(60).findings[0].code == "join-secret-differs" and not first.result(60).go
        for first, other in node_1_lacks_it:
            (finding,) = other.result(60).findings
            assert finding.code == "join-secret-differs"
            assert re.match(r"`export DDPLAUNCH_JOIN_SECRET=\w{32}` on every node", finding.fix)
            (finding,) = first.result(60).findings
            assert finding.code == "nodes-missing" and finding.why.startswith("1 caller did not prove the secret")


def test_a_forged_verdict_launches_nothing(port: int) -> None:
    """Somebody listens at the port before node 0, and says go."""
    with Gathering(port, timeout_s=1, secrets=all_share(OURS)) as gathering:
        with socket.create_server(("127.0.0.1", port)) as server:
            node = gathering.node(1)
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                connection.sendall(line_with(Greeting(PROTOCOL, "nonce", OURS.name)))
                assert lines.readline(), "the node speaks"
                for secret in (None, THEIRS):
                    connection.sendall(sealed(line_with(Verdict(True, (), "evil")), secret, "verdict", "nonce", ""))
                time.sleep(0.2)
                assert not node.done()
        verdict = node.result(60)
    assert not verdict.go


def test_which_secret_a_node_has(tmp_path: Path) -> None:
    homes = tmp_path / "home", tmp_path / "elsewhere"
    for home in homes:
        home.mkdir()
    at_home, elsewhere = ({"HOME": str(home)} for home in homes)
    (own,) = secrets_of(at_home, "flag")
    assert own.name.startswith("user ") and secrets_of(at_home, "Slurm") == (own,)  # a shared home directory
    assert secrets_of(elsewhere, "flag") != (own,)
    assert secrets_of(at_home, "Kubeflow") == () == secrets_of({}, "flag")
    (given,) = secrets_of({**at_home, "DDPLAUNCH_JOIN_SECRET": "correct horse\n"}, "Kubeflow")
    assert given.name == "given" and b"correct" not in given.key
    assert names_a_secret("DDPLAUNCH_JOIN_SECRET", "correct horse"), "no record holds it"
    assert secrets_of({"DDPLAUNCH_JOIN_SECRET": "12345678"}, "flag")
    with pytest.raises(UsageError, match="has 7 characters"):
        secrets_of({"DDPLAUNCH_JOIN_SECRET": "1234567"}, "flag")
