"""Fixes that are whole commands, made from the command line and the plan of the run."""

from __future__ import annotations

from typing import Any

from ddplaunch.explain.diagnosis import RunFacts
from tests.explain.logs import diagnosed, raised

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.42 GiB. GPU 1 has a total capacity of 39.38 GiB "
    "of which 411.56 MiB is free."
)


def plan(**numbers: int) -> dict[str, Any]:
    return {"numbers": {name: {"value": value, "source": {"kind": "flag"}} for name, value in numbers.items()}}


def first_fix(argv: str, error: str, **numbers: int) -> str:
    facts = RunFacts(state="failed", argv=tuple(argv.split()), plan=plan(**numbers))
    return diagnosed(raised(1, error), facts).fixes[0]


def test_out_of_memory_gets_the_whole_command_with_the_same_effective_batch() -> None:
    fix = first_fix(
        "/opt/bin/ddplaunch run 4 --batch-size 8 -- train.py --epochs 20",
        OOM,
        batch_size=8,
        world_size=4,
        global_batch_size=32,
    )
    assert (
        "`ddplaunch run 4 --batch-size 4 --accum 2 -- train.py --epochs 20`" in fix and "effective batch of 32" in fix
    )
    odd = first_fix("ddplaunch run 2 --accum=3 -- t.py --batch-size 6", OOM, batch_size=6, accum=3, world_size=2)
    assert "`ddplaunch run 2 --accum 6 --batch-size 3 -- t.py --batch-size 6`" in odd
    prime = first_fix("ddplaunch run 2 --batch-size 7 -- t.py", OOM, batch_size=7, world_size=2)
    assert "--batch-size 1 --accum 7" in prime


def test_no_command_is_made_up() -> None:
    assert "ddplaunch run" not in first_fix("ddplaunch run 2 -- t.py", OOM, world_size=2)
    assert "ddplaunch run" not in first_fix("ddplaunch run 2 --batch-size 1 -- t.py", OOM, batch_size=1, world_size=2)


def test_other_whole_commands() -> None:
    files = first_fix("ddplaunch run 2 -- t.py", "OSError: [Errno 24] Too many open files")
    assert files == "`ulimit -n 65535 && ddplaunch run 2 -- t.py`"
    taken = "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
    assert "`ddplaunch run 2 -- t.py`" in first_fix("ddplaunch run 2 --master-port 29500 -- t.py", taken)
