"""One launch, fully decided: the value that is checked, shown, recorded and executed."""

from __future__ import annotations

from typing import Literal

from ddplaunch.planning.options import Options
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.script_report import DeclaredAt
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import DEFAULT, Resolved, Source

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class Target:
    """What every rank runs: ``kind`` decides how; ``name`` is a path, a dotted module or an executable."""

    kind: Literal["script", "module", "executable"]
    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """How many ranks where. ``min_nodes`` < ``nnodes`` is an elastic launch."""

    nnodes: Resolved[int]
    nproc_per_node: Resolved[int]
    min_nodes: int
    node_rank: Resolved[int] | None = None
    master_addr: Resolved[str] | None = None
    master_port: Resolved[int] | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks in the whole job."""
        return self.nnodes.value * self.nproc_per_node.value


@dataclass(frozen=True)
class Variable:
    """One environment variable of the launch, with its reason in a clause. ``value`` None removes it."""

    name: str
    value: str | None
    source: Source
    reason: str


@dataclass(frozen=True)
class Passed:
    """A number that was put into the script's arguments.

    ``number`` is a placeholder's name or what the option stands for. ``arguments`` are what was put in front of the
    others: nothing for a placeholder, which was replaced in place, and for a ``variable`` that the script reads. ``at``
    is where the script declares the option, and ``note`` what was understood of it, as a clause.
    """

    number: str
    value: str
    arguments: tuple[str, ...]
    at: DeclaredAt | None
    note: str = ""
    variable: str = ""


@dataclass(frozen=True)
class Missing:
    """A number that was given and reaches the script in no way: why, as a clause, and what helps.

    ``asked`` is one that is held back on purpose.
    """

    number: str
    value: str
    reason: str
    fix: str = ""
    asked: bool = False


@dataclass(frozen=True)
class Placement:
    """On which CPUs this node's ranks run, ``text`` in a line; ``shown`` is whether a user should read it unasked.

    ``cpus`` are those of each local rank ("0-15,64-79"), none where ranks are not bound. ``apart`` ranks have cores
    that no other rank has, ``cores`` is how many are for each at least. ``threads`` is with how many each computes, 0
    if nobody could count, and ``reason`` how it was done.
    """

    cpus: tuple[str, ...] = ()
    apart: bool = False
    cores: int = 0
    text: str = ""
    source: Source = DEFAULT
    shown: bool = False
    threads: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Launch:
    """Everything that ``run`` executes and ``plan`` shows.

    ``argv`` starts with the interpreter; ``target`` is None in a plan of numbers alone. ``notes`` are clauses on how
    it was decided that a user may not expect. ``receives`` are the numbers that reach the script if they are given.
    ``doubts`` are the numbers that may not be what trains, each with what decides it instead, as a clause.
    """

    run_id: str
    target: Target | None
    topology: Topology
    device: Resolved[Device]
    gpus: tuple[str, ...] | None
    numbers: Numbers
    passed: tuple[Passed, ...]
    environment: tuple[Variable, ...]
    argv: tuple[str, ...]
    options: Options
    notes: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    receives: tuple[str, ...] = ()
    doubts: tuple[tuple[str, str], ...] = ()
    placement: Placement = Placement()
