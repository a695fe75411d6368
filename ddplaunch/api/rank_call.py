"""``python -m ddplaunch.api.rank_call FOLDER NAME``: one rank of a function that ``ddplaunch.launch`` runs.

NAME is the function's name, shown in panels. ``call.pickle`` in FOLDER contains two pickles: ``sys.path`` of the
launching program, then function, arguments and keyword arguments, by cloudpickle. Each rank writes ``rank-N.pickle``:
``(True, result)`` or ``(False, exception)``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_CALL = "call.pickle"


def write_call(
    folder: Path, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Write the call for the ranks. Raises TypeError or pickle.PicklingError for objects that cannot be pickled."""
    import cloudpickle  # type: ignore[import-untyped]

    with open(folder / _CALL, "wb") as file:
        pickle.dump(list(sys.path), file)
        cloudpickle.dump((function, tuple(args), dict(kwargs)), file)


def read_result(folder: Path, rank: int) -> tuple[bool, Any] | None:
    """Return whether ``rank`` returned, and its result or exception; None if it left neither."""
    try:
        with open(folder / f"rank-{rank}.pickle", "rb") as file:
            returned, value = pickle.load(file)
    except FileNotFoundError:
        return None
    return bool(returned), value


def main(folder: Path) -> None:
    """Call the function on this rank, and write its result or exception."""
    with open(folder / _CALL, "rb") as file:
        sys.path.extend(entry for entry in pickle.load(file) if entry not in sys.path)
        function, args, kwargs = pickle.load(file)
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        with contextlib.suppress(Exception):  # the exception may not be picklable; its traceback is printed
            _keep(folder, (False, error))
        raise
    _keep(folder, (True, result))
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        # a function seldom ends its group; left to the interpreter's end, NCCL warns of it and threads may abort it
        distributed.destroy_process_group()


def _keep(folder: Path, value: tuple[bool, object]) -> None:
    """Write ``value`` to this rank's file. Raises TypeError or pickle.PicklingError if it cannot be pickled."""
    import cloudpickle

    data = cloudpickle.dumps(value)
    path = folder / f"rank-{os.environ['RANK']}.pickle"
    draft = path.with_suffix(".draft")
    draft.write_bytes(data)
    draft.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
