"""The fixtures that tests of hosts share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddplaunch.hosts.session.links import Links
from tests.ports import free_port


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[Links]:
    """Sessions that end with the test, which many of them do only when they are killed."""
    monkeypatch.setattr("ddplaunch.hosts.session.links._CLOSING_S", 0.1)
    with Links() as made:
        yield made
