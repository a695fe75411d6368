"""Notes when a rank had Python, torch, and its first collective, for `--trace`.

Like ``sitecustomize`` beside it, it is run by whatever Python a rank is, so it imports nothing of ddplaunch. A rank
that ends without its ``atexit`` handlers, killed or by ``os._exit``, leaves no notes.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

TYPE_CHECKING = False  # `typing` is not imported at the start of an interpreter
if TYPE_CHECKING:
    from typing import Any

#: Where the rank is to write its notes.
PATH = "DDPLAUNCH_MARKS"


class _Torch:
    """Finds torch as ever, once, and notes when its code has run."""

    def __init__(self, marks: dict[str, float]) -> None:
        self._marks = marks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return what the finders behind this one find; nothing for any other module."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec: Any = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_note(module: Any) -> None:
                run(module)
                self._marks["torch_s"] = time.time()

            spec.loader.exec_module = run_and_note
        return spec


def begin(path: str) -> None:
    """Note that Python is there, and write all notes to ``path`` after the last ``atexit`` handler."""
    marks = {"python_s": time.time()}
    if "torch" in sys.modules:
        marks["torch_s"] = marks["python_s"]
    else:
        sys.meta_path.insert(0, _Torch(marks))
    owner = os.getpid()

    def write() -> None:
        if os.getpid() != owner:
            return
        import json

        first = _first_collective_s()
        if first is not None:
            marks["collective_s"] = first
        try:
            with open(path, "w", encoding="ascii") as file:
                json.dump(marks, file)
        except OSError:
            return

    atexit.register(write)


def _first_collective_s() -> float | None:
    """Return when the first collective was called, from torch's flight recorder; None if that is not known any more.

    The recorder keeps the last 2000 (TORCH_FR_BUFFER_SIZE), and numbers them from 0:
    torch/csrc/distributed/c10d/FlightRecorder.hpp.
    """
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    try:
        import json

        entry = json.loads(c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=False))["entries"][0]
        return None if entry["record_id"] else float(entry["time_created_ns"]) / 1e9
    except Exception:  # an older torch, or no collective: notes are a convenience, the training is not
        return None
