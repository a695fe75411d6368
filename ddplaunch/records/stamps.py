"""The time that a line of a log begins with; refuses to guess one where there is none."""

from __future__ import annotations

import re
import time
from calendar import timegm

_RANK = rb"(?:\[rank\d+\]:? ?)?"  # as torch's own handler puts in front
_ISO = re.compile(
    _RANK + rb"[\[(<]?(?:[A-Z]{4,8}[ :|\]-]{1,4})?(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    rb" ?(Z|[+-]\d\d:?\d\d)?"
)
# I1121 14:30:12.123456 of glog, in which torch and NCCL's C++ sides log; it names no year.
_GLOG = re.compile(_RANK + rb"\[?[DIWEFV](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})")


def stamp_s(line: bytes, year: int) -> float | None:
    """Return the time at the start of ``line`` in seconds since the epoch, None if it does not begin with one.

    A time without a zone is taken as local, one without a year as of ``year``.
    """
    match = _ISO.match(line)
    if match:
        return _seconds(tuple(int(part) for part in match.groups()[:6]), match[8]) + _fraction(match[7])
    match = _GLOG.match(line)
    if match:
        return _seconds((year, *(int(part) for part in match.groups()[:5])), None) + _fraction(match[6])
    return None


_minutes: dict[tuple[int, ...], float] = {}  # mktime() takes longer than the rest, and most lines share a minute


def _seconds(moment: tuple[int, ...], zone: bytes | None) -> float:
    *_, second = moment
    if zone is None:
        if moment[:5] not in _minutes:
            _minutes.clear()
            _minutes[moment[:5]] = _local(moment[:5])
        return _minutes[moment[:5]] + second
    offset_s = 0
    if zone != b"Z":
        digits = zone[1:].replace(b":", b"")
        offset_s = (int(digits[:2]) * 60 + int(digits[2:])) * 60 * (-1 if zone[:1] == b"-" else 1)
    return timegm(moment) - offset_s


def _local(moment: tuple[int, ...]) -> float:
    try:
        return time.mktime((*moment, 0, 0, 0, -1))  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return 0.0


def _fraction(digits: bytes | None) -> float:
    return int(digits) / 10 ** len(digits) if digits else 0.0
