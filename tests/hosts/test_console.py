"""What hosts print on one console, and findings of many hosts said once."""

from __future__ import annotations

import os
import pty
import threading
import tty

import pytest

from ddplaunch.cli.hosts import hosts_console
from ddplaunch.cli.hosts.hosts_console import HostsConsole
from ddplaunch.cli.hosts.plan_hosts import AskedHosts, asked_for, hosts_of, once
from ddplaunch.cli.hosts.run_on_hosts import notes_on
from ddplaunch.values.finding import Finding, UsageError, error
from tests.agent.guarded import read_for


def test_node_0_passes_as_it_is_and_others_by_line(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    console = HostsConsole(("a", "b"), prefixed=False)
    console.show(0, "out", b"bar 10%\rbar 2")
    console.show(1, "err", b"first\nsec")
    console.show(0, "out", b"0%\r\0")
    console.show(1, "err", b"ond\n\nthird")
    console.close()
    assert capfdbinary.readouterr() == (b"bar 10%\rbar 20%\r\0", b"[b] first\n[b] second\n[b] third\n")
    console = HostsConsole(("a", "b"), prefixed=False)
    for part in (b"x" * 65537, b"y\n"):
        console.show(1, "out", part)
    console.close()
    assert capfdbinary.readouterr().out == b"[b] " + b"x" * 65537 + b"\n[b] y\n", "what has no end is not kept"
    console = HostsConsole(("a", "b"), prefixed=True)  # lines that name their rank are not named again
    console.show(1, "out", b"[b:2] one\n")
    console.show(1, "err", b"[b:2] two\nthree\n")
    console.say("")
    console.say("the ranks on gpu-a, gpu-b, gpu-c get 30 s to end; Ctrl-C again ends them at once")
    console.close()
    wrapped = b"ddplaunch: the ranks on gpu-a, gpu-b, gpu-c get 30 s to end; Ctrl-C again ends\n  them at once\n"
    assert capfdbinary.readouterr() == (b"[b:2] one\n", b"[b:2] two\n[b] three\n" + wrapped)


@pytest.mark.parametrize("prefixed", [False, True])
def test_a_terminal_gets_of_other_nodes_only_text_and_colours(prefixed: bool) -> None:
    hostile = b"\x1b[31m\x1b]0;title\x07\x1b[2J\xc2\x9b2Jx\n"
    master, slave = pty.openpty()
    tty.setraw(slave)
    before = os.dup(1), os.dup(2)
    for descriptor in (1, 2):
        os.dup2(slave, descriptor)
    try:
        console = HostsConsole(("a", "b"), prefixed=prefixed)
        for node in (0, 1):
            for byte in hostile:
                console.show(node, "out", bytes([byte]))
        console.show(0, "out", b"end")
        console.close()
    finally:
        for descriptor, saved in zip((1, 2), before, strict=True):
            os.dup2(saved, descriptor)
    shown = read_for(master, lambda data: data.endswith(b"end\n"))
    harmless = b"\x1b[31mx\n" if prefixed else b"[b] \x1b[31mx\x1b[0m\n"
    assert shown == (harmless * 2 if prefixed else hostile + harmless) + b"end\n"
    for descriptor in (master, slave, *before):
        os.close(descriptor)


def test_a_console_that_stands_still_holds_nobody_up(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_console, "_WAITING", 32 * 65536)
    reading, writing = os.pipe()
    before = os.dup(1)
    os.dup2(writing, 1)
    try:
        console = HostsConsole(("a",), prefixed=False)

        def show() -> None:
            for _ in range(64):
                console.show(0, "out", b"x" * 65536)

        shown = threading.Thread(target=show)
        shown.start()
        shown.join(60)
        assert not shown.is_alive()
        dropped = console._dropped
        left = 64 * 65536 - dropped
        while left:
            left -= len(os.read(reading, 65536))
        console.close()
    finally:
        os.dup2(before, 1)
        for descriptor in (before, reading, writing):
            os.close(descriptor)
    assert dropped >= 30 * 65536 and b"ddplaunch: %d bytes were not shown" % dropped in capfdbinary.readouterr().err


def finding(what: str, *where: str) -> Finding:
    return error("some-code", what, why="so", fix="do it", where=where)


def test_findings_are_said_once_with_their_hosts() -> None:
    found = [("a", finding("x", "t.py")), ("b", finding("x", "t.py")), ("b", finding("y")), (None, finding("z", "c"))]
    assert [(each.what, each.where) for each in once(found, 2)] == [("x", ("t.py",)), ("y", ("b",)), ("z", ("c",))]


def test_more_than_64_hosts_are_told_what_suits_them() -> None:
    names = [f"h{number}" for number in range(65)]
    assert len(notes_on(names[:64])) == 1 and notes_on(names)[1].startswith("65 hosts by ssh: Slurm, Kubernetes or Ray")


def test_flags() -> None:
    flags = {"hosts": ["a,b"], "hostfile": None, "exclude": ["b"], "join_timeout": 60.0}
    assert asked_for(flags) == AskedHosts(["a,b"], exclude=["b"], join_timeout=60.0)
    assert asked_for({**flags, "hosts": None, "exclude": [], "join_timeout": None}) is None
    assert [host.name for host in hosts_of(AskedHosts(["a,b", "c"]))] == ["a", "b", "c"], "typed twice"
    assert (AskedHosts(host_timeout=9.0).patience_s, AskedHosts().patience_s) == (9.0, 300.0)
    with pytest.raises(UsageError, match="`--chdir` without hosts"):
        asked_for({"chdir": "/x"})
