"""JSON files of a record: read with a size limit, values accepted only with the right type, written atomically.

The guard, whose interpreter must stay light, imports this module: no dataclasses and no pathlib here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import TYPE_CHECKING, Any

from ddplaunch.records.own.own_files import closing, open_file, open_place, read_file

if TYPE_CHECKING:
    from pathlib import Path

NEWEST_SCHEMA = 1
LARGEST = 1 << 28  # bytes; the outcome of 10,000 ranks with 20 long lines each takes 100 MB


def read_object(path: Path, most_bytes: int = LARGEST >> 3) -> dict[str, Any]:
    """Return the JSON object in ``path``, of any schema up to ours; it may lack keys.

    Raises OSError if it cannot be read or is not this user's; ValueError with a clause if it is not an object, its
    schema is newer, or it is larger than any that ddplaunch writes.
    """
    text = read_file(path, most_bytes)
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
    """Return ``value`` if it is an integer of 64 bits, else None."""
    return value if type(value) is int and abs(value) < 1 << 63 else None


def as_number(value: Any) -> float | None:
    """Return ``value`` if it is a finite number, else None."""
    return value if type(value) in (int, float) and math.isfinite(value) else None


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; an empty list if ``value`` is not a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def replace_file(path: str | Path, text: str, errors: str = "strict") -> None:
    """Write ``path`` atomically: a reader sees the old file or the new one. Raises OSError and then removes the draft.

    Missing folders are created. Folders and file are accessible to their owner only.
    """
    folder, name = os.path.split(path)
    draft = f".{name}.{os.getpid()}"
    with closing(open_place(folder, create=True)) as parent:
        try:
            descriptor = open_file(parent, draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with open(descriptor, "w", encoding="utf-8", errors=errors) as file:
                file.write(text)
            os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=parent)
            raise
