"""Host names to addresses with a deadline, /etc/hosts first; refuses to wait for a silent DNS server."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from ddplaunch.frozen import dataclass
from ddplaunch.probes import deadline, files
from ddplaunch.values import Unavailable


@dataclass(frozen=True)
class Lookup:
    """A name on its way: answered at once by ``addresses``, or by ``child`` later."""

    name: str
    addresses: tuple[str, ...] = ()
    child: deadline.Child | None = None


def start(name: str, root: Path = Path("/")) -> Lookup:
    """Begin to resolve ``name``; an address or a name in /etc/hosts is answered without a resolver.

    Raises OSError if no child can be forked for the resolver.
    """
    if is_address(name):
        return Lookup(name, (name,))
    listed = in_hosts_file(files.read(f"{root}/etc/hosts") or "", name)
    if listed:
        return Lookup(name, listed)
    return Lookup(name, child=deadline.start(lambda: _ask(name)))


def finish(lookup: Lookup, deadline_s: float) -> tuple[str, ...] | Unavailable:
    """Return the addresses in the resolver's order, or why there are none after ``deadline_s`` seconds."""
    if lookup.child is None:
        return lookup.addresses
    answer = deadline.collect([lookup.child], time.monotonic() + deadline_s)[0]
    if answer.late:
        return Unavailable(f"`{lookup.name}` did not resolve within {deadline_s:g} s (the name server is silent)")
    if answer.error is not None:
        return Unavailable(f"`{lookup.name}` could not be resolved: {answer.error}")
    error, addresses = answer.value
    if error is not None:
        return Unavailable(f"`{lookup.name}` does not resolve: {error}")
    return tuple(addresses)


def is_address(text: str) -> bool:
    """Return whether ``text`` is an IPv4 or IPv6 address rather than a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text.partition("%")[0] if family == socket.AF_INET6 else text)
        except (OSError, ValueError, UnicodeEncodeError):
            continue
        return True
    return False


def in_hosts_file(text: str, name: str) -> tuple[str, ...]:
    """Return the addresses that hosts(5) text gives ``name``, in order, each once."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if name.lower() in (word.lower() for word in words[1:]):
            found[words[0]] = None
    return tuple(found)


def _ask(name: str) -> tuple[str | None, tuple[str, ...]]:
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return (getattr(error, "strerror", None) or str(error), ())
    return (None, tuple(dict.fromkeys(str(answer[4][0]) for answer in answers)))
