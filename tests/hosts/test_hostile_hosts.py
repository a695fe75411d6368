"""A host that says anything at all: the launcher names it, and neither fails nor waits for ever."""

from __future__ import annotations

import json
import math
import random
import signal
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from ddplaunch.comm.inbound import connected
from ddplaunch.hosts.json_lines import message_in
from ddplaunch.hosts.session import collect
from ddplaunch.hosts.session.answers import Question
from ddplaunch.hosts.session.collect import meet
from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.session.start_hosts import LaunchOnHosts
from ddplaunch.machine.facts import ProbeRequest
from ddplaunch.planning.hosts_plan import Meeting
from ddplaunch.values.finding import Finding

_RAW = (b"", b"NaN", b"\xff\xfe", b"[" * 100_000, b'{"status": ' * 20_000, b'{"status": 1e999, "wall": NaN, "sent": 0}')
_VALUES: tuple[Any, ...] = (None, True, -1, 0, 7, 255, 256, 2**70, 1e308, float("nan"), "", "x", "9" * 5000)
_VALUES += ([], {}, [[1]], {"a": {}})
_NAMES = ("id", "status", "sent", "wall", "port", "addresses", "reached", "at", "facts", "report", "problem")


def body(chance: random.Random) -> bytes:
    """What no host of ours says, but looks like it."""
    if chance.random() < 0.2:
        return chance.choice(_RAW)
    return json.dumps({name: chance.choice(_VALUES) for name in chance.sample(_NAMES, 6)}).encode()


class Peer:
    """A session in which everything that is sent is lost."""

    stderr_text, stderr_end, heard_s, silence = "", b"", time.monotonic(), (0.0, 0.0)

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self._chance = name, chance
        self.status = chance.choice((None, -9, 0, 7, 255, 256))

    def send(self, *_: object) -> None:
        """Send nothing."""

    kill = close = send

    async def ask(self, *_: object) -> dict[str, Any]:
        return message_in(body(self._chance))

    def hand_over(self, what: str, receive: Callable[..., None], **order: object) -> None:
        """Start nothing, but say it all."""
        for _ in "12345":
            receive(self, self._chance.choice(("out", "err")), body(self._chance))
        receive(self, "end", b"")


def test_a_launch_ends_whatever_a_host_says(links: Links) -> None:
    for seed in range(300):
        peer = Peer("host", random.Random(seed))
        (end,) = LaunchOnHosts(links, [cast(Link, peer)], lambda *_: None, 1.0, 60.0).run([{}])
        assert end.status == peer.status if peer.status in (0, 7) else end.lost is not None


def test_a_meeting_is_one_or_is_refused(links: Links) -> None:
    for seed in range(500):
        chance = random.Random(seed)
        asked = [cast(Link, Peer(name, chance)) for name in ("host", "other")]
        found = links.run(meet(asked, None, None))
        assert isinstance(found, Meeting) or found[0].code.startswith(("host", "port"))
        assert all(math.isfinite(clock[0]) for clock in (links.run(collect._clock(link)) for link in asked))


class Deaf(Peer):
    """A session whose host goes on, whatever it is told."""

    heard_s = math.inf

    def __init__(self) -> None:
        super().__init__("deaf", random.Random(0))
        self.sent: list[object] = []
        self.send = self.sent.append  # type: ignore[assignment]

    def close(self, *_: object) -> None:
        self.sent.append("closed")

    def hand_over(self, what: str, receive: Callable[..., None], **order: object) -> None:
        """Go on."""


@pytest.mark.parametrize("status", [7, 255])
def test_a_host_that_does_not_end_is_killed_and_then_given_up(
    links: Links, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Another one has failed, or is lost."""
    monkeypatch.setattr("ddplaunch.hosts.session.start_hosts._SETTLE_S", 0.0)
    monkeypatch.setattr("ddplaunch.hosts.session.start_hosts._KILLED_S", 0.1)
    deaf, failed = Deaf(), Peer("failed", random.Random(0))
    failed.status = status
    made = LaunchOnHosts(links, [cast(Link, peer) for peer in (deaf, failed)], lambda *_: None, -5.0, 60.0)
    handlers = [signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGINT)]
    with made.handling():
        assert signal.getsignal(signal.SIGTSTP) == signal.SIG_IGN, "a stopped launcher looks like a dead one"
        ends = made.run([{}, {}])
    assert [signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGINT)] == handlers
    assert ends[0].lost == "it did not end within 0 s after SIGKILL"
    assert (ends[1].status, ends[1].lost is None) == ((7, True) if status == 7 else (None, False))
    told = [message for message in deaf.sent if message != {}]  # without beats
    assert told == [{"signal": signal.SIGTERM}, {"signal": signal.SIGKILL}, "closed"]


class Told(Peer):
    """A session that answers the same to all questions."""

    def __init__(self, name: str, **reply: Any) -> None:
        super().__init__(name, random.Random(0))
        self._reply = reply
        self.ports: list[int | None] = []

    async def ask(self, *asked: Any) -> dict[str, Any]:
        self.ports += [asked[0]["port"]] if "port" in asked[0] else [port for _, port in asked[0]["places"]]
        return self._reply


AT = {"port": 29500, "addresses": ["10.0.0.1", "10.1.0.1"]}


@pytest.mark.parametrize(
    ("first", "reached", "code", "where"),
    [
        ({"listening": AT}, ("10.0.0.1", "10.1.0.1"), "hosts-not-connected", ("b", "c")),  # each another one
        ({"listening": AT}, ("10.0.0.1", ""), "hosts-not-connected", ("c",)),
        *(({"listening": {**AT, "port": port}}, ("10.0.0.1",) * 2, "port-taken", ("a",)) for port in (0, 1 << 16)),
        ({"listening": {**AT, "problem": "Address already in use"}}, ("10.0.0.1",) * 2, "port-taken", ("a",)),
        ({"listening": AT, "problem": "out of memory"}, ("10.0.0.1",) * 2, "host-answer-unknown", ("a",)),
    ],
)
def test_who_keeps_hosts_from_meeting(
    links: Links, first: dict[str, Any], reached: tuple[str, str], code: str, where: tuple[str, ...]
) -> None:
    routes = [[[address, "10.0.0.9", address]] if address else "nowhere" for address in reached]
    others = (Told(name, reached=found) for name, found in zip("bc", routes, strict=True))
    (finding,) = links.run(meet([cast(Link, peer) for peer in (Told("a", **first), *others)], None, None))  # type: ignore[misc]
    assert (finding.code, finding.where) == (code, where)
    if where == ("c",):
        assert finding.what == "c cannot reach a at 10.0.0.1 or 10.1.0.1 port 29500"


@pytest.mark.parametrize(
    ("peers", "place"), [(("10.0.0.1", "10.0.0.1"), "10.0.0.1"), (("10.0.0.1", "10.1.0.1"), "gpu-a")]
)
def test_a_name_becomes_the_one_address_that_it_means_to_all(links: Links, peers: tuple[str, str], place: str) -> None:
    """On the first host it may mean 127.0.1.1."""
    others = [Told(name, reached=[["gpu-a", "10.0.0.9", peer]]) for name, peer in zip("bc", peers, strict=True)]
    met = links.run(meet([cast(Link, peer) for peer in (Told("a", listening=AT), *others)], None, "gpu-a"))
    assert isinstance(met, Meeting) and met.address == place


def test_the_host_that_takes_no_connection_is_named(links: Links) -> None:
    """`b` and `c` reach the first host, which reaches `b` alone, each at the port that its kernel chose."""
    peers = [Told("a", listening=AT, reached=[["10.0.0.2", "10.0.0.1", "10.0.0.2"]])]
    for name, own, listening in (("b", 2, {"port": 41002}), ("c", 3, {"port": "none"})):
        peers.append(Told(name, listening=listening, reached=[["10.0.0.1", f"10.0.0.{own}", "10.0.0.1"]]))
    (finding,) = links.run(connected([cast(Link, peer) for peer in peers], None, None))  # type: ignore[misc]
    assert (finding.code, finding.where) == ("hosts-not-connected", ("c",))
    assert [peer.ports for peer in peers] == [[None, 41002, 0], [29500, 29500, 0], [29500, 29500, 0]]


def test_a_question_to_such_a_host_is_answered_by_a_finding() -> None:
    for seed in range(500):
        reply = message_in(body(random.Random(seed)))
        report = collect._report("host", Question(ProbeRequest(), "python"), reply, (0.0, 0.0))
        assert isinstance(report, Finding) and report.code.startswith("host")
