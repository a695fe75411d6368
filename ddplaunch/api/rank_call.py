"""``python -m ddplaunch.api.rank_call FOLDER NAME``: one rank of a function that ``ddplaunch.launch`` runs.

NAME is the function's, which panels show. ``call.pickle`` in the folder has two pickles: ``sys.path`` of the program
that launches, then function, arguments and keyword arguments, by cloudpickle. Each rank leaves ``rank-N.pickle``:
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
    """Write what the ranks call. Raises TypeError or pickle.PicklingError for what no other process can have."""
    import cloudpickle  # type: ignore[import-untyped]

    with open(folder / _CALL, "wb") as file:
        pickle.dump(list(sys.path), file)
        cloudpickle.dump((function, tuple(args), dict(kwargs)), file)


def read_result(folder: Path, rank: int) -> tuple[bool, Any] | None:
    """Return whether ``rank`` returned, and what it returned or raised; None where it did neither."""
    try:
        with open(folder / f"rank-{rank}.pickle", "rb") as file:
            returned, value = pickle.load(file)
    except FileNotFoundError:
        return None
    return bool(returned), value


def main(folder: Path) -> None:
    """Call the function on this rank, and keep what it returns or raises."""
    with open(folder / _CALL, "rb") as file:
        sys.path.extend(entry for entry in pickle.load(file) if entry not in sys.path)
        function, args, kwargs = pickle.load(file)
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        with contextlib.suppress(Exception):  # an exception may hold what cannot be pickled; its traceback is printed
            _keep(folder, (False, error))
        raise
    _keep(folder, (True, result))
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()  # the function may rely on being run again, in another launch


def _keep(folder: Path, value: tuple[bool, object]) -> None:
    """Raises TypeError or pickle.PicklingError where the value cannot be taken to another process."""
    import cloudpickle

    data = cloudpickle.dumps(value)
    path = folder / f"rank-{os.environ['RANK']}.pickle"
    draft = path.with_suffix(".draft")
    draft.write_bytes(data)
    draft.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
