"""Durations, sizes, counts, lists and signals in words, and what systems other than Linux lack or name differently.

Logs and records come from Linux wherever they are read, so signal numbers are always Linux's.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddplaunch.values.finding import Finding


_AGES = ((2 * 86400, 86400, "d"), (2 * 3600, 3600, "h"), (2 * 60, 60, "min"))
_DURATIONS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPANS = 8  # of ranks that are listed; the rest is counted

#: A length of time as flags and profiles spell it.
LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|)")


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 40`` if the number has no name."""
    return SIGNAL_NAMES.get(number, f"signal {number}")


def number_of_signal(name: str) -> int | None:
    """Return 9 for ``SIGKILL`` and 40 for ``signal 40``, the reverse of ``signal_name``; None for anything else.

    Python's own table lacks SIGSTKFLT before 3.11, and the real-time signals between the first and the last.
    """
    number = name.removeprefix("signal ")
    return SIGNALS.get(name, int(number) if number.isdecimal() and number.isascii() and len(number) < 3 else None)


def nearest(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the candidate most similar to ``word``, which may be a typing error; None if none is similar.

    Dashes in front, which all options have, make none similar.
    """
    import difflib  # needed for mistakes only

    by_name = {each.lstrip("-"): each for each in candidates}
    near = difflib.get_close_matches(word.lstrip("-"), by_name, 1, cutoff)
    return by_name[near[0]] if near else None


def age_text(seconds: float | None) -> str:
    """Return ``45 s``, ``12 min``, ``3 h``, ``9 d``, rounded down, each unit from two on; empty for None."""
    if seconds is None:
        return ""
    for least, unit_s, name in _AGES:
        if seconds >= least:
            return f"{int(seconds // unit_s)} {name}"
    return f"{max(0, int(seconds))} s"


def duration_text(seconds: float) -> str:
    """Return a measured duration, rounded: ``0.8 s``, ``42 s``, ``3 min 5 s``, ``2 h 10 min``, ``3 d 4 h``."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, large, small_size, small in _DURATIONS:
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def duration_s(flag: str, text: str, where: str | None = None) -> float:
    """Return the seconds in ``30``, ``90s``, ``10m``, ``1.5h`` or ``2d``. Raises UsageError for anything else."""
    match = LENGTH.fullmatch(text.strip())
    if match is None:
        from ddplaunch.values.finding import usage  # the guard needs no findings and starts faster without

        raise usage(
            f"`{flag} {text}` is not a length of time",
            why="it is a number of seconds, or a number with s, m, h or d",
            fix=f"`{flag} 30` or `{flag} 10m`",
            where=where or f"flag: {flag}",
        )
    return float(match[1]) * _SECONDS[match[2][:1]]


def size_text(size_bytes: int | None) -> str:
    """Return ``512 B``, ``64 MiB``, ``1.5 GiB``, with one decimal below ten from MiB on; empty for None."""
    if size_bytes is None:
        return ""
    size, names = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(names) > 1:
        size /= 1024
        names.pop(0)
    number = f"{size:.0f}" if names[0] in ("B", "KiB") or size >= 10 else f"{size:.1f}".removesuffix(".0")
    return f"{number} {names[0]}"


def count(number: int, noun: str) -> str:
    """Return ``1 error``, ``2 errors``, ``2 processes``: the plural ends in -es after s or ch, else in -s.

    Except "epochs", where ch is pronounced as k.
    """
    hisses = noun.endswith(("s", "ch")) and not noun.endswith("epoch")
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if hisses else 's'}"


def listed(names: Iterable[object], most: int = 4, last: str = ", ") -> str:
    """Return ``a, b, c``; for more than ``most`` names ``a, b and 3 more``, but never ``and 1 more``.

    ``last`` joins the last two names if all are listed.
    """
    shown = [str(name) for name in names]
    if len(shown) > most + 1:
        return f"{', '.join(shown[:most])} and {len(shown) - most} more"
    return last.join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def in_one(sentences: Sequence[str]) -> str:
    """Return sentences that differ in one word as one that lists these words; of others, the first as an example."""
    words = [sentence.split() for sentence in dict.fromkeys(sentences)]
    places = [place for place, column in enumerate(zip(*words, strict=False)) if len(set(column)) > 1]
    if len(words) == 1:
        return sentences[0]
    if len(places) > 1 or len({len(words_of_one) for words_of_one in words}) > 1:
        return f"{sentences[0]}; the same for the others"
    every = listed([words_of_one[places[0]] for words_of_one in words], len(words), last=" and ")
    return " ".join((*words[0][: places[0]], every, *words[0][places[0] + 1 :]))


def tallied(names: Iterable[str]) -> str:
    """Return ``4 × H100, 1 × A100``: each name once with its count, in order of first appearance."""
    return ", ".join(f"{number} × {name}" for name, number in Counter(names).items())


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0-2``, ``ranks 0, 2-4``; for many scattered ranks the first, and how many more."""
    spans = _spans(sorted(ranks))
    parts = [f"{span[0]}-{span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans]
    more = sum(map(len, spans[_SPANS:]))
    shown = ", ".join(parts[:_SPANS]) + (f" and {more} more" if more else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def numbers_text(numbers: Iterable[int]) -> str:
    """Return ``0-3,6`` for 0, 1, 2, 3, 6, as in flags; keeps the order."""
    return ",".join(f"{span[0]}-{span[-1]}" if span[1:] else str(span[0]) for span in _spans(numbers))


def numbers_of(text: str) -> tuple[int, ...]:
    """Return 0, 1, 2, 3, 6 for ``0-3,6``, the kernel's format for CPU lists. Raises ValueError for anything else."""
    numbers = list[int]()
    for span in filter(None, text.strip().split(",")):
        first, _, last = span.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def _spans(numbers: Iterable[int]) -> list[list[int]]:
    """Return the numbers grouped into runs of consecutive ones."""
    spans = list[list[int]]()
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return spans


#: Linux's signals (signal(7)) on x86-64 and aarch64, in the order of their numbers.
_NAMES = """
SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM SIGTERM
SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO
SIGPWR SIGSYS
"""
SIGNAL_NAMES = dict(enumerate(_NAMES.split(), 1)) | {34: "SIGRTMIN", 64: "SIGRTMAX"}
SIGNALS = {name: number for number, name in SIGNAL_NAMES.items()}

#: Commands that need Linux: they start ranks or inspect this machine's processes. Listing checks and showing records
#: do not.
_OF_LINUX = "run,doctor,scale,fit,prove,stop,clean,stacks,top,plan --hosts".split(",")  # noqa: SIM905
_OF_UNIX = (*_OF_LINUX, "ps", "logs", "report")  # commands that read records do not work on Windows either


def open_flags(*names: str) -> int:
    """Return these flags of open(2) combined, without those that this system lacks."""
    flags = 0
    for name in names:
        flags |= getattr(os, f"O_{name}", 0)
    return flags


def own_id() -> int:
    """Return the effective user ID; 0 on Windows, where files have no owner ID."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def host_name() -> str:
    """Return this machine's host name."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "localhost")


def needs_linux(command: str) -> Finding | None:
    """Return a finding if ``command`` does not work on this operating system, otherwise None."""
    windows = sys.platform == "win32"
    if sys.platform == "linux" or command not in (_OF_UNIX if windows else _OF_LINUX):
        return None
    from ddplaunch.values.finding import error

    name, instead = ("Windows", "in WSL2 (`wsl --install`), or on") if windows else ("macOS", "on")
    return error(
        "not-on-linux",
        f"this is {name}, where `{command}` does not work",
        why="it needs what Linux has: /proc, pidfds, process groups that outlive their parent, files below a folder",
        fix=f"type it {instead} the machine that trains; `plan`, `convert` and `explain` of a log work here",
    )
