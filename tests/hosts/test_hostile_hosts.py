"""A host that says anything at all: the launcher names it, and neither fails nor waits for ever."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest

from ddplaunch.hosts.json_lines import GREETING, message_in
from ddplaunch.hosts.session import collect
from ddplaunch.hosts.session.collect import Question, ask_all, meet
from ddplaunch.hosts.session.links import Event, Link, Links
from ddplaunch.hosts.session.start_hosts import LaunchOnHosts
from ddplaunch.machine.facts import ProbeRequest
from ddplaunch.planning.hosts_plan import Meeting

_RAW = (b"", b"NaN", b"\xff\xfe", b"[" * 100_000, b'{"status": ' * 20_000, b'{"status": 1e999, "wall": NaN, "sent": 0}')
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    7,
    255,
    256,
    2**70,
    1e308,
    float("nan"),
    "",
    "x",
    "9" * 5000,
    [],
    {},
    [[1]],
    {"a": {}},
)
_NAMES = (
    *("id", "status", "sent", "wall", "port", "addresses", "reached", "at", "facts", "report"),
    *("problem", "port_problem", "killed"),
)


def body(chance: random.Random) -> bytes:
    """What no host of ours says, but looks like it."""
    if chance.random() < 0.2:
        return chance.choice(_RAW)
    return json.dumps({name: chance.choice(_VALUES) for name in chance.sample(_NAMES, 6)}).encode()


class Peer:
    """A session in which everything that is sent is lost."""

    name, closed, said, heard_s = "host", False, b"", 0.0
    status: int | None = 0

    def send(self, *_: object) -> None:
        """Send nothing."""

    kill = close = send

    def hand_over(self, *_: object, **order: object) -> None:
        """Start nothing."""

    def reap(self, _: float) -> int | None:
        return self.status


class Sessions:
    """Sessions that hand out ``events``, and then nothing."""

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events

    def wait(self, _: float) -> list[Event]:
        return [event] if (event := next(self._events, None)) else []

    def close(self, link: Peer) -> None:
        """Close nothing."""

    def keep_alive(self, wanted: object) -> list[Link]:
        return []


def test_a_launch_ends_whatever_a_host_says() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        peer: Any = Peer()
        peer.status = chance.choice((None, -9, 0, 7, 255, 256))
        said = [Event(peer, chance.choice(("message", "out", "err")), body(chance)) for _ in "12345"]
        links = cast(Links, Sessions(iter([*said, Event(peer, "end")])))
        made = LaunchOnHosts(links, [peer], lambda *_: None, 1.0)
        (end,) = made.run([{}])
        assert end.status == peer.status if peer.status in (0, 7) else end.lost is not None


def test_a_meeting_is_one_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(500):
        chance = random.Random(seed)

        def replies(_: object, asked: list[Peer], *__: object, chance: random.Random = chance) -> Iterator[Any]:
            for each in asked:
                yield each.name, message_in(body(chance))

        monkeypatch.setattr(collect, "replies", replies)
        first, second = Peer(), Peer()
        second.name = "other"
        asked = [cast(Link, first), cast(Link, second)]
        found = meet(cast(Links, None), asked, None, None)
        assert isinstance(found, Meeting) or found[0].code.startswith(("host", "port"))
        assert {clock[0] == clock[0] for clock in collect._clocks(cast(Links, None), asked).values()} <= {True}


SAYS = "import sys; sys.stdout.buffer.write(bytes.fromhex(sys.argv[1])); sys.stdout.flush()"


def test_a_question_to_such_a_host_is_answered_by_a_finding() -> None:
    for seed in range(8):
        chance = random.Random(seed)
        said = GREETING + b"".join(body(chance)[:9000] + b"\n" for _ in range(3))
        words = [sys.executable, "-ISc", SAYS, said.hex()]
        with Links() as links:
            gathered = ask_all(links, ["host"], partial(links.open, argv=words), Question(ProbeRequest(), "python"))
        assert not gathered.reports
        assert gathered.missing[0].code.startswith("host")
