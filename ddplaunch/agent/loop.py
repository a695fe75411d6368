"""One epoll(7) and what to call for each descriptor; refuses to know what any of them is for."""

from __future__ import annotations

import select
from collections.abc import Callable


class Loop:
    """Waits for descriptors. A callback may forget any descriptor, its own too."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call ``call()`` whenever ``descriptor`` is readable, or its other side is gone."""
        if descriptor not in self._calls:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._calls[descriptor] = call

    def forget(self, descriptor: int) -> None:
        """Watch it no more; to be done before it is closed."""
        if self._calls.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def once(self, timeout_s: float | None) -> None:
        """Wait until something happens, at most ``timeout_s`` (None: for ever), and make the calls."""
        for descriptor, _ in self._epoll.poll(timeout_s):
            if call := self._calls.get(descriptor):
                call()
