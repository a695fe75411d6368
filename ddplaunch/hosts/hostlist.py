"""Reads the hosts of `--hosts` or a host file, and applies `--exclude`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass

_COUNT = "([1-9][0-9]{0,5})"
_HOST = re.compile(
    r"((?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?)"
    r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([A-Za-z0-9_][A-Za-z0-9_.-]*)|([0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Za-z:.%]*))"
    rf"(?::{_COUNT})?\Z"
)
#: Open MPI's limit on overcommitting is none here, since a launch never does that.
_SETTING = re.compile(rf"(?:slots={_COUNT}|max_slots=[0-9]+)\Z")


@dataclass(frozen=True)
class Host:
    """One host: ``name`` for ssh, and ``slots``, its number of processes, where the list gives one."""

    name: str
    slots: int | None = None


def from_words(text: str) -> tuple[Host, ...]:
    """Return the hosts of ``--hosts``: ``[USER@]NAME[:SLOTS]``, separated by commas.

    Raises UsageError.
    """
    place = "flag: --hosts"
    hosts = [_host([word.strip()], place) for word in text.split(",")]
    return _unique(tuple(hosts), [place] * len(hosts))


def from_file(text: str, name: str) -> tuple[Host, ...]:
    """Return the hosts of a host file, one a line: ``NAME``, ``NAME slots=N`` (DeepSpeed, Open MPI) or ``NAME:N``.

    https://www.deepspeed.ai/getting-started/#resource-configuration-multi-node and
    https://docs.open-mpi.org/en/main/launching-apps/scheduling.html. Raises UsageError with the line's number.
    """
    hosts, places = [], []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):  # the byte order mark of Windows
        words = line.partition("#")[0].split()
        if not words:
            continue
        places.append(f"{name}:{number}")
        hosts.append(_host(words, places[-1]))
    if not hosts:
        raise usage(
            f"`{name}` names no host",
            why="a host file has one host a line, with the number of its processes",
            fix="write lines such as `gpu-a slots=8`",
            where="flag: --hostfile",
            code="hostfile-malformed",
        )
    return _unique(tuple(hosts), places)


def _host(words: Sequence[str], place: str) -> Host:
    """Read ``NAME``, ``NAME:N`` or ``[IPV6]:N``, and ``slots=N``; a name with several colons is an IPv6 address."""
    host, settings = _HOST.match(words[0]), [_SETTING.match(word) for word in words[1:]]
    slots = {match[match.re.groups] for match in (host, *settings) if match} - {None}
    if host is not None and all(settings) and len(slots) < 2:
        return Host(host[1] + (host[2] or host[3] or host[4]), int(slots.pop()) if slots else None)
    in_file = not place.startswith("flag")
    raise usage(
        f"`{' '.join(words)}` is not a host" if words[0] else "a host's name is missing",
        why="a host is a name as for ssh, with its number of processes if the list has these: `gpu-a:8`, or in a host "
        "file `gpu-a slots=8`",
        fix="correct the line" if in_file else "`--hosts gpu-a,gpu-b`",
        where=place,
        code="hostfile-malformed" if in_file else "host-name-malformed",
    )


def _unique(hosts: tuple[Host, ...], places: Sequence[str]) -> tuple[Host, ...]:
    names: dict[str, str] = {}
    for host, place in zip(hosts, places, strict=True):
        if host.name in names:
            raise usage(
                f"host `{host.name}` is named twice",
                why="each host gets one node rank; two launches on it would take the same GPUs",
                fix=f"name it once; for more processes on it write `{host.name}:8`",
                where=tuple(dict.fromkeys((names[host.name], place))),
                code="host-named-twice",
            )
        names[host.name] = place
    return hosts


def chosen(hosts: tuple[Host, ...], exclude: Sequence[str]) -> tuple[Host, ...]:
    """Return the hosts that ``--exclude`` does not drop.

    Raises UsageError for a host that is not in the list, and where no host is left.
    """
    names = [host.name for host in hosts]
    if unknown := next((name for name in exclude if name not in names), None):
        raise usage(
            f"`--exclude {unknown}` names no host of the list",
            why=f"the hosts are {', '.join(names)}; a host is left out with all of its GPUs",
            fix=f"`--exclude {names[0]}`; `--gpus 0,2` takes these GPUs of every host",
            where="flag: --exclude",
            code="host-unknown",
        )
    remaining = tuple(host for host in hosts if host.name not in exclude)
    if not remaining:
        raise usage("no host is left", why="`--exclude` drops all of them", fix="exclude fewer", code="host-unknown")
    return remaining
