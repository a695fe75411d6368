"""The answer to a log stays the same however a service, a viewer, a terminal or a paste in an issue shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest

from benchmarks.fault_sets import logs
from tests.explain.logs import every_code, explained

pytestmark = pytest.mark.slow
TENTH = 10  # lines of a log in a second


def _times(lines: Iterable[str]) -> Iterable[tuple[str, str, str, str]]:
    """Yield day, clock, milliseconds and text of each line, the time of which rises."""
    for at, line in enumerate(lines):
        second = 15_080 + at // TENTH
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        yield "2026-01-05", clock, f"{at % TENTH * 97:03}", line


def _each(show: Callable[[str, str, str, str, int], str]) -> Callable[[str], str]:
    def shown(log: str) -> str:
        lines = log.rstrip("\n").split("\n")
        return "".join(show(*told, at) + "\n" for at, told in enumerate(_times(lines), start=1))

    return shown


def _spaces_of_the_web(log: str) -> str:
    lines = (line.lstrip(" ").rjust(len(line), "\u00a0") for line in log.split("\n"))
    return "\n".join(lines)


#: By the program or place: what it makes of a log. None of it says anything else about the run.
SHOWN: dict[str, Callable[[str], str]] = {
    "docker logs --timestamps": _each(lambda day, clock, ms, text, _: f"{day}T{clock}.{ms}000000Z {text}"),
    "a logger's time": _each(lambda day, clock, ms, text, _: f"{day} {clock}.{ms} {text}"),
    "gh run view --log": _each(lambda day, clock, ms, text, _: f"train\tRun train.py\t{day}T{clock}.{ms}0000Z {text}"),
    "Jenkins": _each(lambda day, clock, ms, text, _: f"[{day}T{clock}.{ms}Z] {text}"),
    "ts": _each(lambda _, clock, __, text, ___: f"Jan 05 {clock} {text}"),
    "journalctl": _each(lambda _, clock, __, text, ___: f"Jan 05 {clock} gpu7 train.sh[4411]: {text}"),
    "a file of Kubernetes": _each(lambda day, clock, ms, text, _: f"{day}T{clock}.{ms}000000Z stderr F {text}"),
    "GitLab": _each(lambda day, clock, ms, text, _: f"{day}T{clock}.{ms}000Z 01O {text}"),
    "Kaggle": _each(lambda _, __, ___, text, at: f"{99 + at / TENTH:.1f}s\t{at}\t{text}"),
    "kubectl logs --prefix": _each(lambda *told: f"[pod/ddp-worker-0/pytorch] {told[3]}"),
    "docker compose": _each(lambda *told: f"trainer-1  | {told[3]}"),
    "sky logs": _each(lambda *told: f"(task, pid=2240) {told[3]}"),
    "a file of Docker": _each(lambda *told: json.dumps({"log": told[3] + "\n", "stream": "stderr"})),
    "records of JSON": _each(lambda day, clock, ms, text, _: json.dumps({"time": f"{day}T{clock}", "message": text})),
    "colours": _each(lambda *told: f"\x1b[31m{told[3]}\x1b[0m"),
    "cat -n": _each(lambda *told: f"{told[4]:6}\t{told[3]}"),
    "an indented block": _each(lambda *told: f"    {told[3]}"),
    "a block behind tabs": _each(lambda *told: f"\t{told[3]}"),
    "a quoted mail": _each(lambda *told: f"> {told[3]}" if told[3] else ">"),
    "a fenced block": lambda log: f"```\n{log}```\n",
    "spaces of the web": _spaces_of_the_web,
    "ends of lines of Windows": lambda log: log.replace("\n", "\r\n"),
    "a mark at the start": lambda log: "\ufeff" + log,
    "spaces at the end": _each(lambda *told: told[3] + "   "),
    "nohup": lambda log: "nohup: ignoring input\n" + log,
}

LOGS = [fault.log for fault in logs("sixth", "seventh", "eighth")]
LOGS += every_code()
#: Few lines do not tell what stands in front of them.
FEWEST_LINES = 6
EVERY = 40
#: Numbers before the lines, and marks of a quotation, hide where some tracebacks begin.
MOST_CHANGED = {"cat -n": 3, "a quoted mail": 3}


def _answer(log: str) -> tuple[str, int | None] | None:
    found = explained(log).diagnosis
    return None if found is None else (found.code, found.rank)


@pytest.mark.parametrize("place", SHOWN)
def test_the_answer_stays(place: str) -> None:
    long = [log for log in LOGS if log.count("\n") >= FEWEST_LINES]
    assert len(long) > 150
    some = long[list(SHOWN).index(place) :: EVERY]
    changed = [SHOWN[place](log) for log in some if _answer(SHOWN[place](log)) != _answer(log)]
    assert len(changed) <= MOST_CHANGED.get(place, 0), changed
