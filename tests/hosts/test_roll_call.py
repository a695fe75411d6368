"""The roll call between real sockets: all come, somebody does not, strangers knock, and what does not fit together."""

from __future__ import annotations

import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from ddplaunch.hosts.roll_call.call import keep_alive
from ddplaunch.hosts.roll_call.messages import (
    PROTOCOL,
    Greeting,
    Hello,
    Verdict,
    line_with,
    read_message,
    sealed,
    secrets_of,
    unsealed,
)
from ddplaunch.values.resolved import Unavailable
from tests.agent.guarded import until
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.roll_calls import WORDS, Gathering, hello, knock


def test_all_come_and_the_port_is_free_at_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[socket.socket] = []
    monkeypatch.setattr("ddplaunch.hosts.roll_call.call.keep_alive", watched.append)
    with Gathering(port) as gathering:
        nodes = [gathering.node(rank) for rank in (2, 0, 1)]
        verdicts = [node.result(60) for node in nodes]
        with socket.socket(socket.AF_INET6) as store:  # as TCPStore does
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("::", port))
            store.listen()
    assert all(verdict.go and not verdict.findings and verdict.run_id == "run" for verdict in verdicts)
    assert gathering.shown[0][-1].missing == ()
    assert len(watched) == 4, "a host that loses its power is noticed by both sides of each connection"
    (identity,) = {verdict.rendezvous_id for verdict in verdicts}
    assert identity is not None and identity.startswith("id-") and len(identity) > 8
    with Gathering(port, nodes=2) as pair:
        both = [pair.node(rank, machine="one").result for rank in (0, 1)]
        (second,) = {(verdict.rendezvous_id, verdict.run_id) for verdict in (result(60) for result in both)}
    assert second[0] != identity and second[1] is None, (
        "each roll call has an id; two nodes of one machine have two runs"
    )


def test_a_connection_is_looked_after_within_half_a_minute_and_sends_at_once() -> None:
    with socket.socket() as connection:
        keep_alive(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle_s, pause_s, count = (connection.getsockopt(socket.IPPROTO_TCP, name) for name in names)
    assert idle_s + pause_s * count <= 30


def test_a_node_0_that_fails_tells_the_others(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hosts.roll_calls.all_together", lambda *_: 1 / 0)
    with Gathering(port, nodes=2) as gathering:
        first, other = gathering.node(0), gathering.node(1)
        (finding,) = other.result(60).findings
        assert finding.code == "roll-call-ended" and "node 0 (gpu-0) failed while" in finding.what
        with pytest.raises(ZeroDivisionError):
            first.result(60)


def test_who_is_missing_is_named_everywhere(port: int) -> None:
    with Gathering(port, timeout_s=1) as gathering:
        nodes = [gathering.node(0), gathering.node(1)]
        for verdict in (node.result(60) for node in nodes):
            (finding,) = verdict.findings
            assert not verdict.go and finding.code == "nodes-missing"
            assert "2 of 3 nodes joined" in finding.what and "missing: node 2" in finding.what
            assert "`--join-timeout 30m`" in finding.fix


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "connection refused"),
        ("no-such-host.invalid", "the name `no-such-host.invalid` does not resolve"),
        ("127.0.0.2", "nothing came back, as with a firewall or a host that is down"),
    ],
)
def test_node_0_does_not_call(port: int, address: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Unavailable("`no-such-host.invalid` does not resolve")  # a child process takes long to find that out
    if address == "no-such-host.invalid":
        monkeypatch.setattr("ddplaunch.machine.network.look_up", lambda *_: lambda: answer)
    elif address == "127.0.0.2":
        monkeypatch.setattr("socket.socket.connect", Mock(side_effect=TimeoutError))
    with Gathering(port, timeout_s=0.2) as gathering:
        gathering.call = replace(gathering.call, address=address)
        verdict = gathering.node(1).result(60)
    (finding,) = verdict.findings
    assert not verdict.go and not verdict.heard and finding.code == "nodes-missing"
    assert reason in finding.what and f"{address}:{port}" in finding.what


def test_another_program_at_the_port_hears_nothing(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as server, Gathering(port, timeout_s=0.5) as gathering:
        node = gathering.node(1)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(10)
            heard = connection.recv(100)
        verdict = node.result(60)
    assert heard == b""
    assert "no roll call at" in verdict.findings[0].what


def test_what_is_no_hello_of_the_launch_does_not_disturb_and_a_line_without_end_is_cut_off(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddplaunch.hosts.roll_call.call._FIRST_LINE_S", 600.0)  # not because its time is over
    with Gathering(port) as gathering:
        first = gathering.node(0)
        for line in (b'{"Hello":{"node_rank":true}}\n', b"[" * 60000 + b"\n", line_with(hello(1, launch={}))):
            knock(port, line).close()
        with knock(port, b"x" * 200_000) as connection:
            connection.settimeout(10)
            with pytest.raises(OSError, match=r"closed|reset"):
                while connection.recv(1 << 16):
                    pass
                raise OSError("closed")
        assert all(node.result(60).go for node in (first, gathering.node(1), gathering.node(2)))


def test_a_node_goes_and_comes_back(port: int) -> None:
    with Gathering(port) as gathering:
        first = gathering.node(0)
        with knock(port, line_with(hello(2))):
            gathering.until(0, 2)
        gathering.until(0, 1)
        away = "node 2 (gpu-2) went away"
        until(lambda: any(status.note == away for status in list(gathering.shown[0])), away)
        assert gathering.shown[0][-1].missing == ("node 1", "node 2 (gpu-2)")
        other = gathering.node(1)
        with knock(port, line_with(hello(2))):  # that never hangs up is waited for a while only
            assert first.result(60).go and other.result(60).go


def test_what_cannot_be_of_one_launch_is_refused_everywhere(port: int) -> None:
    with Gathering(port) as gathering:
        nodes = [gathering.node(0), gathering.node(1)]
        gathering.until(0, 2)
        nodes.append(gathering.node(2, node_rank=1, host="gpu-9", machine="another", pid=900))
        for verdict in (node.result(60) for node in nodes):
            (finding,) = verdict.findings
            assert not verdict.go and finding.code == "node-rank-twice" and "kill" in finding.fix
            assert "pid 101 on gpu-1" in finding.what and "pid 900 on gpu-9" in finding.what


def test_a_node_0_of_another_version_is_named_and_no_run_id_is_a_path(port: int) -> None:
    with Gathering(port) as gathering, socket.create_server(("127.0.0.1", port)) as server:
        node = gathering.node(1)
        connection, _ = server.accept()
        with connection:
            connection.sendall(line_with(Greeting(PROTOCOL + 1, "nonce")))
            (finding,) = node.result(60).findings
    assert finding.code == "hosts-differ-ddplaunch" and f"protocol {PROTOCOL + 1}, this node {PROTOCOL}" in finding.what
    for run_id, taken in (("run-1", True), ("run\0", False), ("x" * 400, False)):
        assert (read_message(line_with(Verdict(True, run_id=run_id)), Verdict) is not None) == taken


def test_a_node_waits_for_a_node_0_that_comes_back(port: int) -> None:
    with Gathering(port) as gathering:
        node = gathering.node(1)
        until(lambda: any("refused" in (status.note or "") for status in gathering.shown[1]), "node 0 is not there")
        with socket.create_server(("127.0.0.1", port)) as server:  # a node 0 that is killed
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                connection.sendall(line_with(Greeting(PROTOCOL, "nonce")))
                assert read_message(lines.readline(), Hello), "the node speaks"
        first = gathering.node(0)  # and comes back
        gathering.until(0, 2)
        assert any("went away" in (status.note or "") for status in gathering.shown[1])
        nodes = (first, node, gathering.node(2))
        assert all(each.result(60).go for each in nodes)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.slow
def test_signals_end_the_wait_and_are_told(port: int, number: signal.Signals, status: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('launched')\n")
    place = ("--nnodes", "3", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port))
    argv = ddplaunch("run", "4", "--device", "cpu", "--no-checks", *place, "--", "train.py")
    environment = clean_environment(DDPLAUNCH_JOIN_SECRET="of this test")
    (secret,) = secrets_of(environment, "flag")
    process = subprocess.Popen(argv, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        said = {**WORDS, "--device": "cpu"}
        with knock(port, b"") as connection:
            lines = connection.makefile("rb")
            first = read_message(lines.readline(), Greeting)
            assert first is not None and first.secret == "given"
            node = hello(1, launch=said, nonce="mine")
            connection.sendall(sealed(line_with(node), secret, "hello", first.nonce))
            assert process.stderr is not None and any("2 of 3 nodes joined" in line for line in process.stderr)
            process.send_signal(number)
            body = unsealed(lines.readline(), secret, "verdict", first.nonce, "mine")
            verdict = None if body is None else read_message(body, Verdict)
            lines.close()
        told = process.communicate(timeout=120)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == status, told
    assert verdict is not None and verdict.findings[0].code == "roll-call-ended"
    assert "was interrupted" in verdict.findings[0].what
    assert "Traceback" not in told and not (tmp_path / ".ddplaunch").exists()
