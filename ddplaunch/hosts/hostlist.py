"""Which hosts `--hosts` or a host file names, and which of them and of their GPUs `--include` and `--exclude` leave."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass

_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:%-]*\Z")
_COUNT = re.compile(r"[1-9][0-9]{0,5}\Z")
_DEVICES = re.compile(r"[0-9]{1,6}(,[0-9]{1,6})*\Z")


@dataclass(frozen=True)
class Host:
    """One host: ``name`` is what ssh gets; ``slots`` its processes where the list says so; ``devices`` its GPUs where
    ``--include`` or ``--exclude`` chose, as nvidia-smi counts.
    """

    name: str
    slots: int | None = None
    devices: tuple[int, ...] | None = None


def from_words(text: str) -> tuple[Host, ...]:
    """Return the hosts of ``--hosts``: names with commas between them, each ``[USER@]NAME[:SLOTS]``.

    Raises UsageError.
    """
    place = "flag: --hosts"
    hosts = [_host(word.strip(), place) for word in text.split(",")]
    return _unique(tuple(hosts), [place] * len(hosts))


def from_file(text: str, name: str) -> tuple[Host, ...]:
    """Return the hosts of a host file: a host a line, ``NAME``, ``NAME slots=N`` (DeepSpeed, Open MPI) or ``NAME:N``.

    https://www.deepspeed.ai/getting-started/#resource-configuration-multi-node and
    https://docs.open-mpi.org/en/main/launching-apps/scheduling.html. Raises UsageError with the line's number.
    """
    hosts, places = [], []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):  # Windows' editors write that mark
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
        return host  # Open MPI's limit to overcommitting, which a launch here never does
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


def chosen(hosts: tuple[Host, ...], include: Iterable[str], exclude: Iterable[str]) -> tuple[Host, ...]:
    """Return the hosts that ``--include`` keeps and ``--exclude`` does not drop, ``HOST`` or ``HOST:0,2`` each.

    Several in one word are divided by ``@``, as in DeepSpeed. An excluded GPU of a host without known slots cannot be
    resolved here, so a host file must say them. Raises UsageError for a host or GPU that is not in the list.
    """
    included, dropped = _choices(include, hosts, "--include"), _choices(exclude, hosts, "--exclude")
    if included and dropped:
        raise usage(
            "`--include` and `--exclude` together",
            why="one says what to take, the other what to leave out",
            fix="give one of them",
        )
    result = []
    for host in hosts:
        devices = included.get(host.name, ())
        if dropped.get(host.name):
            devices = _without(host, dropped[host.name])
        elif host.name in dropped or (included and host.name not in included):
            continue
        result.append(Host(host.name, len(devices), devices) if devices else host)
    if not result:
        raise usage("no host is left", why="`--exclude` drops all of them", fix="leave one in", code="host-unknown")
    return tuple(result)


def _choices(words: Iterable[str], hosts: tuple[Host, ...], flag: str) -> dict[str, tuple[int, ...]]:
    slots = {host.name: host.slots for host in hosts}
    choices: dict[str, tuple[int, ...]] = {}
    for word in (part for words_of_option in words for part in words_of_option.split("@")):
        typed = f"`{flag} {word}`"
        name, colon, devices = word.strip().partition(":")
        if name not in slots:
            names = f"the hosts are {', '.join(slots)}"
            raise _no_choice(flag, f"{typed} names no host of the list", names, f"`{flag} {next(iter(slots))}`")
        if colon and not _DEVICES.match(devices):
            why = "the host is followed by their numbers, as nvidia-smi counts"
            raise _no_choice(flag, f"{typed} names no GPUs", why, f"`{flag} {name}:0,2`", "host-name-malformed")
        choices[name] = tuple(dict.fromkeys(map(int, devices.split(",")))) if colon else ()
        most = slots[name]
        if most is not None and any(number >= most for number in choices[name]):
            why = f"they count from 0 to {most - 1}"
            raise _no_choice(flag, f"{typed}, but `{name}` has {most} slots", why, f"`{flag} {name}:0`")
    return choices


def _without(host: Host, dropped: tuple[int, ...]) -> tuple[int, ...]:
    if host.slots is None:
        raise _no_choice(
            "--exclude",
            f"`--exclude {host.name}:{','.join(map(str, dropped))}`, but the GPUs of `{host.name}` are not known",
            "the GPUs that are left have to be known",
            f"write the slots, as in `--hosts {host.name}:8`, or use `--include {host.name}:0,1`",
        )
    numbers = tuple(number for number in range(host.slots) if number not in dropped)
    if not numbers:
        what, why = f"`--exclude` leaves no GPU of `{host.name}`", "a host without processes is not part of the launch"
        raise _no_choice("--exclude", what, why, f"`--exclude {host.name}`")
    return numbers


def _no_choice(flag: str, what: str, why: str, fix: str, code: str = "host-unknown") -> UsageError:
    return usage(what, why=why, fix=fix, where=f"flag: {flag}", code=code)
