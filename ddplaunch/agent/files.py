"""The files of a run's record, written as bytes while the run goes on; refuses to let a disk stop a training."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any


class RecordFile:
    """One file that grows. After the first error it takes nothing more, and ``problem`` says why.

    It is opened to append, so that a second guard goes on where the first one died.
    """

    def __init__(self, path: str) -> None:
        """Remember the path; ``open`` does the work, in the thread that writes."""
        self.path = path
        self.problem: str | None = None
        self._file = -1

    def open(self, _: bytes = b"") -> None:
        """Create the file, and its directory. Never raises."""
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib costs the guard 5 ms
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._stop(error)

    def write(self, data: bytes) -> None:
        """Append ``data``, all of it. Never raises: a full disk ends the recording of this file, and nothing else."""
        view = memoryview(data)
        while view and self._file >= 0:
            try:
                view = view[os.write(self._file, view) :]
            except OSError as error:
                self._stop(error)

    def close(self, _: bytes = b"") -> None:
        """Close the file; what comes later is dropped."""
        if self._file >= 0:
            try:
                os.close(self._file)
            except OSError as error:  # a disk quota over the network may be told only here
                self.problem = self.problem or error.strerror
            self._file = -1

    def _stop(self, error: OSError) -> None:
        self.problem = self.problem or error.strerror or str(error)
        self.close()


def replace_json(path: str, value: dict[str, Any]) -> None:
    """Write ``value`` to ``path`` so that a reader sees the old file or the new one. Never raises."""
    temporary = f"{path}.{os.getpid()}.new"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
