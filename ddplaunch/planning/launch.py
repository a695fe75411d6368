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
    """What every rank runs: ``kind`` decides how; ``name`` is a path, a dotted module or an executable.

    ``before`` are the words that start a script or module where torchrun does not: ``uv run``, ``numactl -N 0 python``.
    """

    kind: Literal["script", "module", "executable"]
    name: str
    args: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """How many ranks run on how many nodes, and where they meet. An elastic launch has ``min_nodes`` < ``nnodes``."""

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
    """One environment variable of the launch; ``reason`` is a clause. A ``value`` of None removes it."""

    name: str
    value: str | None
    source: Source
    reason: str


@dataclass(frozen=True)
class Passed:
    """A number that reaches the script.

    ``number`` is the placeholder's name or the option's meaning. ``arguments`` are the words added to the user's: none
    for a placeholder, which is replaced in place, or for a ``variable`` that the script reads. ``at`` is where the
    script declares the option; ``note`` is a clause on how the option was understood.
    """

    number: str
    value: str
    arguments: tuple[str, ...]
    at: DeclaredAt | None
    note: str = ""
    variable: str = ""


@dataclass(frozen=True)
class Missing:
    """A given number that does not reach the script: ``reason`` is a clause, ``fix`` is what helps.

    ``asked``: the number is held back on purpose.
    """

    number: str
    value: str
    reason: str
    fix: str = ""
    asked: bool = False


@dataclass(frozen=True)
class Placement:
    """The CPUs on which this node's ranks run, described by ``text``; ``shown``: the user should see it unasked.

    ``cpus`` are the CPUs of each local rank ("0-15,64-79"), empty if ranks are not bound. ``apart``: no two ranks share
    a core. ``cores`` is the smallest number of cores, or share of them, that a rank has. ``threads`` is the number of
    threads with which each rank computes, 0 if CPUs could not be counted; ``reason`` explains it.
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
class Needs:
    """What the script needs for certain: modules that ``lacks`` has with the line of the import, and ``cuda`` there."""

    lacks: tuple[tuple[str, DeclaredAt], ...] = ()
    cuda: DeclaredAt | None = None


@dataclass(frozen=True)
class Launch:
    """Everything that ``run`` executes and ``plan`` shows.

    ``argv`` starts with the interpreter; ``target`` is None in a plan without a script. ``notes`` are clauses on
    decisions that a user may not expect. ``receives`` are the numbers that would reach the script if they were given.
    ``doubts`` are the numbers that training might not use, each with a clause on what decides it instead.
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
    needs: Needs = Needs()

    @property
    def not_received(self) -> dict[str, Missing]:
        """The numbers of which a finding says that they do not arrive, so that nothing else has to say it."""
        return {missing.number: missing for missing in self.missing if not missing.asked}
