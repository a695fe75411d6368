"""Reads what ranks print when no guard is left to do it, so that none of them waits; refuses to record it."""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Sequence

_READ_BYTES = 1 << 16


def drain(readers: Sequence[int], sink: int) -> None:
    """Copy everything to ``sink`` in a thread, as torchrun does without redirection: all ranks, as it comes."""
    threading.Thread(target=_copy, args=(list(readers), sink), daemon=True).start()


def _copy(readers: Sequence[int], sink: int) -> None:
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                try:
                    data = os.read(key.fd, _READ_BYTES)
                except OSError:
                    data = b""
                if not data:
                    selector.unregister(key.fd)
                    continue
                _write(sink, data)


def _write(sink: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(sink, data) :]
    except OSError:
        pass  # a console that is gone; the ranks go on
