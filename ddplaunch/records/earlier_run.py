"""Finds how the newest earlier run of the same command ended, and which of the script's files changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddplaunch.records.find import RunRecord, read_record, run_directories
from ddplaunch.records.outcome import Ended, PreviousRun, RunOutcome

_LOOKED_AT = 50  # records of earlier runs to look at


def run_before(directory: Path, outcome: RunOutcome) -> PreviousRun | None:
    """Return how the newest earlier run of the same command ended; None if no earlier run succeeded or failed.

    ``directory`` is that of the current run, which ended with ``outcome``.
    """
    this = read_record(directory)
    if not this.run:
        return None
    command = _command(this)
    for path in run_directories(directory.parent.parent)[:_LOOKED_AT]:
        if path.name == directory.name:
            continue
        earlier = read_record(path)
        if earlier.created_s > this.created_s or _command(earlier) != command:
            continue
        ended = earlier.outcome
        if ended is None or ended.state not in ("succeeded", "failed"):
            continue
        alike = ended.diagnosis is not None and ended.diagnosis.is_like(outcome.diagnosis)
        earlier_code, now = _code(earlier), _code(this)
        changed = [name for name in dict.fromkeys((*earlier_code, *now)) if earlier_code.get(name) != now.get(name)]
        how: Ended = "succeeded" if ended.state == "succeeded" else "alike" if alike else "otherwise"
        return PreviousRun(earlier.run_id, how, tuple(changed))
    return None


def _command(record: RunRecord) -> tuple[Any, ...]:
    numbers = record.value("plan", "numbers")
    items = numbers.items() if isinstance(numbers, dict) else ()
    values = {name: item.get("value") for name, item in items if isinstance(item, dict)}
    return (record.value("plan", "target"), record.value("cwd"), values, record.value("plan", "device", "value"))


def _code(record: RunRecord) -> dict[str, str]:
    """Return the script's files by name, each with a value that identifies its version."""
    code = record.value("code")
    return {str(name): str(value) for name, value in code.items()} if isinstance(code, dict) else {}
