"""From a stack to the place that a person would name: the user's own line and what it called; refuses to judge it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from ddplaunch.explain.stacks import Frame, RankStack
from ddplaunch.frozen import dataclass

#: What a rank does there. "collective", "meeting" (making or leaving a process group) and "backward" (where DDP
#: reduces gradients) need the other ranks; "gpu" waits for a device that may wait for them.
Kind = Literal["collective", "meeting", "backward", "gpu", "loader", "own", "unknown"]

_NEEDS_OTHERS: frozenset[Kind] = frozenset(("collective", "meeting", "backward", "gpu"))
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3[^/]*/|^<(?!string>|stdin>)|/torch/(?:distributed|nn|utils|autograd|cuda)/"
    r"|/ddplaunch/agent/"
)
_COLLECTIVES = re.compile(
    r"(?:all_reduce|all_gather|all_to_all|broadcast|gather|reduce|reduce_scatter|scatter)(?:_\w+)?"
    r"|(?:monitored_)?barrier|i?send|i?recv|batch_isend_irecv"
)
_MEETING = frozenset(
    ("init_process_group", "destroy_process_group", "new_group", "split_group", "rendezvous", "_store_based_barrier")
)
_DDP = "/torch/nn/parallel/distributed.py"
_WRAPPERS = frozenset(
    ("wrapper", "_wrapped_call_impl", "_call_impl", "decorate_context", "inner", "_fn", "inner_wrapper")
)
_CLASSES = {"dataloader.py": "DataLoader"}


@dataclass(frozen=True)
class Place:
    """Where a rank is. ``text`` reads ``all_reduce at train.py:88`` or ``data.py:41 in load``; ``path`` is the file."""

    text: str
    kind: Kind
    path: str = ""
    line: int = 0

    @property
    def needs_others(self) -> bool:
        """Whether a rank can be there for long because of other ranks."""
        return self.kind in _NEEDS_OTHERS


@dataclass(frozen=True)
class Group:
    """Ranks that are at the same place."""

    place: Place
    stacks: tuple[RankStack, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their numbers, in order."""
        return tuple(stack.rank for stack in self.stacks)


def place_of(stack: RankStack) -> Place:
    """Return where the main thread of ``stack`` is."""
    frames = stack.main
    if not frames and stack.state in ("T", "t"):
        return Place("stopped by a signal", "own")
    if not frames and stack.state == "D":
        return Place(f"in the kernel ({stack.kernel or 'uninterruptible'})", "own")
    if not frames:
        return Place(stack.problem or "no Python frame", "unknown")
    own = next((position for position, frame in enumerate(frames) if not _LIBRARY.search(frame.file)), None)
    if own is None:  # a program that is a library itself, as with `-m`
        return Place(_plain(frames[0]), _kind(frames), frames[0].file, frames[0].line)
    frame, inner = frames[own], frames[:own]
    kind = _kind(inner) if inner else "own"
    call = _call(inner, kind)
    text = f"{call} at {short(frame.file)}:{frame.line}" if call else _plain(frame)
    return Place(text, kind, frame.file, frame.line)


def groups(stacks: Iterable[RankStack]) -> tuple[Group, ...]:
    """Return the ranks by place, the odd ones out first.

    Those that wait for others come last, then those whose place is not known; among the rest the smaller group leads.
    """
    by_place: dict[tuple[str, Kind], tuple[Place, list[RankStack]]] = {}
    for stack in stacks:
        place = place_of(stack)
        by_place.setdefault((place.text, place.kind), (place, []))[1].append(stack)
    found = [Group(place, tuple(sorted(members, key=lambda each: each.rank))) for place, members in by_place.values()]
    return tuple(
        sorted(
            found,
            key=lambda group: (group.place.kind == "unknown", group.place.needs_others, len(group.ranks), group.ranks),
        )
    )


def short(path: str) -> str:
    """Return the file's name, with its folder where the name alone says nothing."""
    parts = path.rsplit("/", 2)
    return "/".join(parts[-2:]) if parts[-1] in ("__init__.py", "__main__.py") else parts[-1]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0-2``, ``ranks 0, 2-4``."""
    parts: list[str] = []
    ordered = sorted(ranks)
    start = 0
    for position, rank in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] != rank + 1:
            first = ordered[start]
            together = (
                [str(first)] if first == rank else [f"{first}-{rank}"] if rank - first > 1 else [f"{first}", f"{rank}"]
            )
            parts += together
            start = position + 1
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(parts)}"


def _plain(frame: Frame) -> str:
    name = frame.function.rpartition(".")[2]
    where = f"{short(frame.file)}:{frame.line}"
    return where if name.startswith("<") else f"{where} in {name}"


def _kind(inner: Sequence[Frame]) -> Kind:
    """Return what the library frames do; what is outermost decides, because it is what the user asked for."""
    for frame in reversed(inner):
        name = frame.function.rpartition(".")[2]
        if name in _MEETING:
            return "meeting"
        if "/torch/distributed/" in frame.file and _COLLECTIVES.fullmatch(name):
            return "collective"
        if "/torch/" in frame.file and name in ("backward", "_engine_run_backward"):
            return "backward"
        if frame.file.endswith(_DDP) and (
            name.startswith(("_sync", "_verify")) or any("/torch/distributed/" in each.file for each in inner)
        ):
            return "collective"
        if frame.file.endswith("/torch/utils/data/dataloader.py"):
            return "loader"
        if "/torch/cuda/" in frame.file and name == "synchronize":
            return "gpu"
    return "own"


def _call(inner: Sequence[Frame], kind: Kind) -> str:
    """Return the name of what the user's line called, without decorators; empty where it called no Python."""
    if kind == "collective":
        for frame in reversed(inner):
            name = frame.function.rpartition(".")[2]
            if "/torch/distributed/" in frame.file and _COLLECTIVES.fullmatch(name):
                return name
        return "DDP's forward"
    if inner and inner[-1].file.startswith("<frozen importlib"):
        return "import"
    for frame in reversed(inner):
        name = frame.function.rpartition(".")[2]
        if name in _WRAPPERS or name.startswith("<"):
            continue
        owner = _CLASSES.get(short(frame.file))
        return f"{owner}.{name}" if owner and name.startswith("__") else name
    return ""
