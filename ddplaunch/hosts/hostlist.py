"""Reads the hosts of `--hosts` or a host file, and applies `--exclude`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass

_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:%-]*\Z")
_COUNT = re.compile(r"[1-9][0-9]{0,5}\Z")


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
    hosts = [_host(word.strip(), place) for word in text.split(",")]
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
        host = _host(words[0], places[-1])
        for word in words[1:]:
            host = _with_setting(host, word, places[-1])
        hosts.append(host)
    if not hosts:
        raise usage(
            f"`{name}` names no host",
            why="a host file has one host a line, with the number of its processes",
            fix="write lines such as `gpu-a slots=8`",
            where="flag: --hostfile",
            code="hostfile-malformed",
        )
    return _unique(tuple(hosts), places)


def _with_setting(host: Host, word: str, place: str) -> Host:
    key, equals, value = word.partition("=")
    if key == "max_slots" and _COUNT.match(value):
        return host  # Open MPI's limit on overcommitting, which a launch here never does
    if key != "slots" or not equals or not _COUNT.match(value):
        what = f"`{word}` after host `{host.name}` is not a number of slots"
    elif host.slots is not None and host.slots != int(value):
        what = f"`{host.name}:{host.slots}` and `{word}` are two numbers of slots"
    else:
        return Host(host.name, int(value))
    raise usage(
        what,
        why="a host is followed by the number of its processes, 1 or more",
        fix=f"write `{host.name} slots=8` in that line",
        where=place,
        code="hostfile-malformed",
    )


def _host(word: str, place: str) -> Host:
    """Read ``NAME``, ``NAME:N`` or ``[IPV6]:N``; a name with several colons is an IPv6 address."""
    if word.startswith("-"):
        raise usage(
            f"`{word}` is not a host",
            why="ssh would read it as an option",
            fix="`--hosts gpu-a,gpu-b`" if place.startswith("flag") else "correct the line",
            where=place,
            code="host-name-malformed",
        )
    name, colon, slots = word, "", ""
    if match := re.match(r"((?:[^@\[\]]+@)?)\[([0-9A-Fa-f:.%a-z]+)\](?::(.*))?\Z", word):
        name, colon, slots = match[1] + match[2], ":" if match[3] is not None else "", match[3] or ""
    elif word.count(":") == 1:
        name, colon, slots = word.partition(":")
    if not _NAME.match(name) or (colon and not _COUNT.match(slots)):
        raise _malformed(word, place)
    return Host(name, int(slots) if colon else None)


def _malformed(word: str, place: str) -> UsageError:
    in_file = not place.startswith("flag")
    return usage(
        f"`{word}` is not a host" if word else "a host's name is missing",
        why="a host is a name as for ssh, and the number of its processes"
        + (": `gpu-a slots=8` or `gpu-a:8`" if in_file else ", if the list has one: `gpu-a:8`"),
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
