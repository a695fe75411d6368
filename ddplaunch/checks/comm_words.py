"""Words for what `doctor --comm` found; refuses to decide what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddplaunch.checks.comm_groups import Blame, Comm, Group, failed, lossy

TWO = "with two hosts nothing tells which of them it is, or what lies between them"
_NAMED = 3
_PREFIXES = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))


def rate_text(bandwidth: float) -> str:
    """Return bytes per second in bits, as networks are sold: ``9.4 Gbit/s``, ``12 Mbit/s``."""
    bits = 8 * bandwidth
    for factor, unit in _PREFIXES:
        if bits >= factor:
            return f"{_two_digits(bits / factor)} {unit}"
    return f"{bits:.0f} bit/s"


def time_text(microseconds: float) -> str:
    """Return a short time: ``85 us``, ``1.2 ms``, ``2.1 s``."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= factor:
            return f"{_two_digits(microseconds / factor)} {unit}"
    return f"{microseconds:.0f} us"


def _two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def losses_text(groups: Sequence[Group]) -> str:
    """Return the shares of segments that were sent again: ``21 %``, ``18 to 22 %``."""
    shares = sorted(round(100 * group.loss) for group in groups)
    low, high = shares[0], shares[-1]
    return f"{low} %" if low == high else f"{low} to {high} %"


def listed(names: Sequence[str]) -> str:
    """Return ``gpu-a``, ``gpu-a and gpu-b``, ``gpu-a, gpu-b, gpu-c and 4 more``."""
    shown = [*names[:_NAMED], f"{len(names) - _NAMED} more"] if len(names) > _NAMED + 1 else list(names)
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def partners(host: str, groups: Iterable[Group]) -> list[str]:
    """Return whom ``host`` was tested with, each once."""
    return list(
        dict.fromkeys(other for group in groups if host in group.hosts for other in group.hosts if other != host)
    )


def because_of_partners(host: str, found: Blame, groups: Iterable[Group]) -> str:
    """Say which partners of a host that is to blame show that it is not them."""
    others = [other for other in partners(host, groups) if other in found.innocent]
    return f"{listed(others)} {'does' if len(others) == 1 else 'do'} well with another host"


def between(group: Group, comm: Comm) -> str:
    """Say why neither of two hosts can be blamed alone."""
    if len(comm.hosts) == 2:
        return TWO
    good = {host for each in comm.between if not (failed(each) or lossy(each)) for host in each.hosts}
    if all(host in good for host in group.hosts):
        return "each of them works with another host: it is what lies between these two"
    return "neither of them was tested with a host that works"
