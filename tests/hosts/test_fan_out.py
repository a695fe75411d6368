"""Many sessions at once: windows, dropped connections, hosts that are dead; with real programs in the place of ssh."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.hosts.json_lines import GREETING, json_line
from ddplaunch.hosts.session.answers import Question
from ddplaunch.hosts.session.collect import ask_all
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.hosts.session.fan_out import TRIES, FanOut, delay_s, window_of
from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.ssh import was_dropped
from ddplaunch.machine.facts import ProbeRequest
from ddplaunch.records.launchers import Launched, Place
from ddplaunch.values.finding import RefusedError

DROPPED = "kex_exchange_identification: Connection closed by remote host"


def octal(data: bytes) -> str:
    """Return ``data`` as printf takes it."""
    return "".join(f"\\{byte:03o}" for byte in data)


ANSWER = octal(GREETING + json_line({"ok": True}))


def answering(folder: Path, drops: int) -> Callable[[str], list[str]]:
    """Return what makes the command of a host: its first ``drops`` connections are closed, the next one answers."""

    def command(name: str) -> list[str]:
        tried = folder / name
        tried.write_text(tried.read_text() + "x" if tried.exists() else "x")
        drop = f"echo {shlex.quote(DROPPED)} >&2; exit 255"
        answer = f"printf '{ANSWER}'; exec sleep 600"
        return ["sh", "-c", drop if len(tried.read_text()) <= drops else answer]

    return command


async def reach(fan_out: FanOut, names: Sequence[str]) -> list[Link]:
    return await asyncio.gather(*map(fan_out.reach, names))


def test_dropped_connections_are_tried_again(links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddplaunch.hosts.session.fan_out._LONGEST_DELAY_S", 0.01)
    command = answering(tmp_path, 2)
    fan_out = FanOut(links, lambda name: links.open(name, command(name)), 60, most=4)
    reached = links.run(reach(fan_out, [f"host{number}" for number in range(6)]))
    assert [each.name for each in reached] == [f"host{number}" for number in range(6)]
    assert all(each.greeted and each.tries == 3 for each in reached)
    assert {link for link in links.all if not link.closed} == set(reached)
    monkeypatch.setattr("ddplaunch.hosts.session.fan_out.delay_s", lambda tries: 60.0)
    late = FanOut(links, lambda name: links.open(name, command(name)), 60)
    assert [each.tries for each in links.run(reach(late, ["late"]))] == [1], "its time would be over by then"


def test_a_host_that_drops_every_connection_is_a_finding(
    links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddplaunch.hosts.session.fan_out._LONGEST_DELAY_S", 0.01)
    command = answering(tmp_path, 1000)
    question = Question(ProbeRequest(), sys.executable, deadline_s=60)
    gathered = links.run(ask_all(links, ["gpu-x"], lambda name: links.open(name, command(name)), question))
    (finding,) = gathered.missing
    assert (finding.code, finding.where) == ("host-connections-dropped", ("gpu-x",))
    assert finding.what == f"gpu-x closed {TRIES} connections before ssh began"


def test_dead_hosts_cost_the_others_nothing(links: Links, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddplaunch.hosts.session.fan_out._SLOT_S", 0.1)
    command, settled = answering(tmp_path, 0), []

    class Watched(FanOut):
        async def reach(self, name: str) -> Link:
            link = await super().reach(name)
            settled.append(name)
            return link

    def start(name: str) -> Link:
        return links.open(name, ["sleep", "600"] if name.startswith("dead") else command(name))

    reached = links.run(reach(Watched(links, start, 1.2, most=2), ["dead0", "dead1", "dead2", "live0", "live1"]))
    assert [each.greeted for each in reached] == [False, False, False, True, True]
    assert set(settled[:2]) == {"live0", "live1"}  # although the dead ones took the whole window first


@pytest.mark.parametrize(
    ("status", "said", "dropped"),
    [
        (255, "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.1", True),
        (255, "ssh_exchange_identification: Connection closed by remote host", True),
        (255, "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\n" + DROPPED, False),
        (255, "ssh: connect to host gpu-x port 22: Connection refused", False),
        (255, "Connection closed by 10.0.0.1 port 22", False),  # after the keys were exchanged: a login that failed
        (None, DROPPED, False),
    ],
)
def test_what_a_drop_is(status: int | None, said: str, dropped: bool) -> None:
    assert was_dropped(status, said) is dropped


def test_window_halves_once_for_a_burst_and_grows_again(links: Links, tmp_path: Path) -> None:
    command = answering(tmp_path, 0)
    start = partial(links.open, argv=command("any"))
    assert FanOut(links, start, 60)._free == window_of(len(os.sched_getaffinity(0)))
    order = FanOut(links, start, 60, most=8)
    for now in (10.0, 10.1, 10.2):
        order._dropped(now)
    assert order._free == 4
    links.run(reach(order, [f"host{number}" for number in range(4)]))  # each lets it grow by a part of its size
    assert order._free == 4
    links.run(reach(order, [f"host{number}" for number in range(4, 48)]))
    assert order._free == 8
    for now in range(100, 200):
        order._dropped(float(now))
    assert order._free == 1


def test_hosts_do_not_come_back_together() -> None:
    assert len({delay_s(1) for _ in range(64)}) == 64
    assert all(0.125 <= delay_s(1) <= 0.25 and 1.0 <= delay_s(tries) <= 2.0 for tries in range(4, TRIES))


def test_a_machine_that_starts_no_more_says_so_and_leaves_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = tuple(Place(number, f"host{number}", sys.executable) for number in range(3))
    asking = EachHost(Launched("one", tmp_path, "here", "boot", 1, 1, places), "top", "--json")

    def start(name: str) -> Link:
        if name == "host2":
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return asking._links.open(name, ["cat"])

    monkeypatch.setattr(asking, "_start", start)
    with pytest.raises(RefusedError) as refused, asking:
        raise AssertionError("it went on")
    said = "after 2 sessions this machine starts no more: Resource temporarily unavailable"
    assert refused.value.findings[0].what == said
    assert len(asking._links.all) == 2
    assert all(link.closed and link.process.returncode is not None for link in asking._links.all)


@pytest.mark.parametrize(
    ("end", "said", "problem"),
    [
        ("""echo '{"a": 1}'; exit 0""", {0: {"a": 1}}, None),
        ("""printf '{"a":'; sleep 0.1; echo ' 2}'; exit 1""", {0: {"a": 2}}, None),  # in pieces, with findings
        ("exit 3", {}, "host-silent"),
        ("exec sleep 600", {}, "host-unreachable"),
        (None, {}, "host-session-failed"),
    ],
)
def test_each_host_runs_the_command_on_its_part_and_a_silent_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str | None, said: dict[int, Any], problem: str | None
) -> None:
    place = Place(0, "gpu-x", "python", "/runs/there/one")
    asking = EachHost(Launched("one", tmp_path, "here", "boot", 1, 1, (place,), launch="token"), "stop", "--json")
    program = f"printf '{octal(GREETING)}'; read order; echo \"$order\" > {tmp_path}/order; {end}"
    argv = ["false"] if end is None else ["bash", "-c", program]
    monkeypatch.setattr(asking, "_start", lambda name: asking._links.open(name, argv))
    monkeypatch.setattr("ddplaunch.hosts.session.links._CLOSING_S", 0.1)
    with asking as host:
        assert host.nodes == (() if end is None else (0,))
        assert host.answers(0.2 if problem == "host-unreachable" else 60) == said
    assert all(link.process.returncode is not None for link in asking._links.all)
    assert [(each.code, each.where) for each in asking.problems] == ([(problem, ("gpu-x",))] if problem else [])
    if said:
        order = {"what": "command", "words": ["stop", "/runs/there/one@token", "--json"]}
        assert json.loads((tmp_path / "order").read_text()) == order


def test_a_host_that_hangs_keeps_the_command_from_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one hangs until another one has its order."""
    places = tuple(Place(number, name, "python", "/runs/there/one") for number, name in enumerate(("hangs", "waits")))
    asking = EachHost(Launched("one", tmp_path, "here", "boot", 1, 1, places), "stop", "--json")
    programs = {
        "hangs": f"until [ -e {tmp_path}/order ]; do sleep 0.05; done; exit 3",
        "waits": f"printf '{octal(GREETING)}'; read order; touch {tmp_path}/order; echo '{{}}'",
    }
    monkeypatch.setattr(asking, "_start", lambda name: asking._links.open(name, ["sh", "-c", programs[name]]))
    with asking:
        assert asking.answers(60) == {1: {}}
    assert [(each.code, each.where) for each in asking.problems] == [("host-session-failed", ("hangs",))]


@pytest.mark.slow
def test_of_forty_scripted_hosts_one_that_fails_ends_all(tmp_path: Path) -> None:
    """The real launcher starts them; all are told, and leave a record."""
    from benchmarks.fan_out import played
    from benchmarks.scripted_hosts import Script

    hosts, quick = 40, Script(login_s=0.1, facts_s=0.05, end_s=0.1, train_s=0.5)
    seen, _, status, _ = played(hosts, tmp_path / "run", quick, "--run-id", "many")
    said = (tmp_path / "run" / "err").read_text()
    assert status == 1, said
    assert (len(seen.answered), len(seen.launched), len(seen.ended)) == (hosts, hosts, hosts)
    assert len(seen.told) == hosts - 1  # all but the one that failed
    assert "h0, h1, h2, h3, h4, h5, h6, h7 … h39 (40 hosts)" in " ".join(said.split())
    record = tmp_path / "run" / ".ddplaunch" / "runs" / "many"
    assert len(list(record.glob("node-*/attempt-0/rank-*.out"))) == hosts * 8
    assert json.loads((record / "outcome.json").read_text())["diagnosis"]["host"] == "h20"
