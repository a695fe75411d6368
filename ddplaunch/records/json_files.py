"""JSON files of a record: read with bounds, their values taken only if they have the right type, written in one step.

The guard, a light interpreter, imports this module: no dataclasses and no pathlib here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NEWEST_SCHEMA = 1
_LARGEST = 1 << 28  # bytes; the outcome of 10,000 ranks with 20 long lines each has 100 MB


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``, which may be half written or of any schema: what it lacks is not there.

    Raises OSError if it cannot be read, ValueError with a clause if it is no object or its schema is newer.
    """
    with open(path, "rb") as file:
        text = file.read(_LARGEST)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not JSON") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    schema = data.get("schema")
    if not isinstance(schema, int) or schema > NEWEST_SCHEMA:
        raise ValueError(f"{path.name} has schema {schema}; this ddplaunch reads {NEWEST_SCHEMA}")
    return data


def as_text(value: Any) -> str | None:
    """Return ``value`` if it is text, else None."""
    return value if isinstance(value, str) else None


def as_whole(value: Any) -> int | None:
    """Return ``value`` if it is a whole number of 64 bits, else None."""
    return value if type(value) is int and abs(value) < 1 << 63 else None


def as_number(value: Any) -> float | None:
    """Return ``value`` if it is a finite number, else None."""
    return value if type(value) in (int, float) and math.isfinite(value) else None


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; none if ``value`` is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def replace_file(path: str | Path, text: str, mode: int = 0o600) -> None:
    """Write ``path`` in one step: a reader sees the old file or the new one. Raises OSError, and leaves no draft then.

    ``mode`` is that of a new file, less the umask. By default only the owner may read it.
    """
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{os.getpid()}")  # noqa: PTH118
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)  # noqa: PTH108
        raise
