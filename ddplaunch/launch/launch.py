"""One launch, fully decided: the value that is checked, shown, recorded and executed."""

from __future__ import annotations

from typing import Literal

from ddplaunch.launch.options import Options
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.report import DeclaredAt
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source

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

    ``arguments`` are what was put in front of the others (empty for a placeholder, which was replaced in place);
    ``at`` is where the script declares the option.
    """

    number: str
    value: str
    arguments: tuple[str, ...]
    at: DeclaredAt | None


@dataclass(frozen=True)
class Launch:
    """Everything that ``run`` executes and ``plan`` shows.

    ``argv`` starts with the interpreter; ``target`` is None in a plan of numbers alone. ``notes`` are clauses on how
    it was decided that a user may not expect.
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
