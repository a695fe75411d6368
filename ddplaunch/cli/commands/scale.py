"""``ddplaunch scale``: short trials of a script with 1, 2, 4 … processes, their speed-up, and what limits it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.hosts.plan_hosts import AskedHosts, asked_for, hosts_of, refuse_own_place
from ddplaunch.cli.parsing.command import HOSTS, OUTPUT, PROFILE, TRIALS, Command, trial_options
from ddplaunch.cli.prepare import Prepared, prepare
from ddplaunch.cli.streams import answer, answer_json, say, tell
from ddplaunch.cli.target import parse_target, required
from ddplaunch.cli.trials.trial import Change, Trial, Trials, decided, measure_of
from ddplaunch.hosts.hostlist import Host
from ddplaunch.planning.flag import Flag, NodeRange
from ddplaunch.planning.inside.slurm import read_slurm
from ddplaunch.planning.launch import Target
from ddplaunch.planning.options import Options, Said
from ddplaunch.planning.ranks.placement import workers_typed
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of
from ddplaunch.values.words import count
from ddplaunch.watch.scale_view import progress_text, scale_json, scale_text
from ddplaunch.watch.size_verdicts import SizeMeasured

COMMAND = Command(
    examples=(
        ("ddplaunch scale --batch-size 8 -- train.py", "1, 2, 4 … processes, up to what this machine has"),
        (
            "ddplaunch scale 2 --device cpu --steps 20 -- train.py",
            "20 steps of two processes",
        ),
    ),
    options=(
        PROFILE,
        Flag("strong", "switch", TRIALS, "Keep the effective batch, not that of each process."),
        *trial_options(10),
        *HOSTS,
        Flag("json", "switch", OUTPUT, "Everything as JSON."),
    ),
    more="Each size is a short run of the unchanged script; --timeout limits each trial [10m].",
)

_SIZE = re.compile(r"(?:([1-9][0-9]{0,4})x)?([1-9][0-9]{0,5})\Z")
_SIZES = Source("flag", "SIZES")
_PER_CPU = 4  # processes


def scale(
    said: Said,
    script: list[str] | None,
    profile: str | None,
    strong: bool | None,
    warmup_steps: int | None,
    steps: int | None,
    seconds: float | None,
    keep: bool | None,
    in_place: bool | None,
    json: bool | None,
    **hosts: Any,
) -> int:
    """Measure each size in turn, say what its speed-up is and what holds it back. ``hosts`` are flags of its own."""
    words = required(script, "scale")
    launch = {name: value for name, value in said.items() if name != "nproc"}
    options = with_configuration(launch, profile)
    measure = measure_of(options, warmup_steps, steps, seconds, usual_s=10.0)
    machines = _machines(options, parse_target(words), hosts)
    sizes = _sizes(str(said["nproc"].value) if "nproc" in said else None, machines)
    search = _Sizes(machines, launch, options, bool(strong))
    runs = Trials("scale", machines.first, words, profile, measure, keep=bool(keep), in_place=bool(in_place))
    interrupted = runs.run_all(search.run(sizes))
    shown: Any = {"strong": search.strong, "dataset_size": value_of(options.dataset_size, None)}
    if json:
        answer_json(scale_json(search.measured, **shown))
    else:
        answer(scale_text(search.measured, Terminal.of(sys.stdout), **shown))
    if interrupted:
        rest = sizes[len(search.measured) - 1 :]
        say(f"interrupted at size {rest[0]}: `ddplaunch scale {','.join(map(str, rest))} …` measures the rest")
        return ExitStatus.INTERRUPTED
    return ExitStatus.FINDINGS if any(one.problem is not None for one in search.measured) else ExitStatus.DONE


class Size(NamedTuple):
    """One size: ``nodes`` machines with ``nproc`` processes each."""

    nodes: int
    nproc: int

    @property
    def processes(self) -> int:
        """All of them."""
        return self.nodes * self.nproc

    def __str__(self) -> str:
        return str(self.nproc) if self.nodes == 1 else f"{self.nodes}x{self.nproc}"

    def of(self, options: Options) -> Options:
        """Return the options of a launch of this size."""
        nodes = Resolved(NodeRange(self.nodes, self.nodes), _SIZES)
        return replace(options, nproc=Resolved(self.nproc, _SIZES), nnodes=nodes, gpus=None)


class Machines(NamedTuple):
    """The machines that there are, and ``first``, a launch of one process that was decided here.

    ``places`` is for how many processes each has a GPU, or a CPU without one; None where nobody says. ``here`` says
    whether this process starts the ranks itself.
    """

    first: Prepared
    nodes: int
    places: int | None
    here: bool
    hosts: tuple[Host, ...] = ()
    asked: AskedHosts | None = None

    def words(self, size: Size) -> list[str]:
        """Return the flags by which a trial takes as many hosts, the first of all that there are."""
        if self.asked is None:
            return []
        chosen = self.hosts[: size.nodes]
        names = ",".join(host.name for host in chosen)
        return replace(self.asked, hosts=names, hostfile=None, include=(), exclude=()).words()


def _machines(options: Options, target: Target, flags: Mapping[str, Any]) -> Machines:
    """Return the machines of this launch. Raises UsageError, and RefusedError where nothing can be launched here."""
    asked_hosts, one = asked_for(flags), Size(1, 1).of(options)
    if asked_hosts is not None:
        refuse_own_place(options)
        hosts = hosts_of(asked_hosts)  # each trial asks them for their facts
        slots = [host.slots for host in hosts]
        least = None if None in slots else min(number or 1 for number in slots)
        first = prepare(replace(one, device=Resolved("cpu", _SIZES)), target)
        return Machines(first, len(hosts), least, False, hosts, asked_hosts)
    first = decided(one, target)
    if first.launch.device.value == "cuda":
        every = replace(one, nproc=Resolved("auto", _SIZES), gpus=options.gpus)
        places = prepare(every, target).launch.topology.nproc_per_node.value
    else:
        if options.gpus is not None:
            prepare(replace(one, gpus=options.gpus), target)  # which refuses it
        places = 1 if isinstance(first.facts.cpu, Unavailable) else first.facts.cpu.usable
    slurm = read_slurm(os.environ)
    if slurm is None or slurm.step is not None:
        return Machines(first, 1, places, True)
    on_its_only_node = slurm.on_node and slurm.nodes == 1
    return Machines(first, slurm.nodes, places if slurm.on_node else slurm.gpus_on_node, on_its_only_node)


class _Sizes:
    """The sizes of one command, and what was ``measured`` of them so far."""

    def __init__(self, machines: Machines, said: Said, options: Options, strong: bool) -> None:
        self._machines, self._said, self._options = machines, said, options
        self.measured: list[SizeMeasured] = []
        self.strong = strong or options.global_batch_size is not None
        self._effective = options.global_batch_size or machines.first.launch.numbers.global_batch_size
        if self.strong and self._effective is None:
            raise usage(
                "`--strong` without a batch",
                why="the effective batch is to stay the same, and neither an option nor the script says what it is",
                fix="`--strong --global-batch-size 64`",
                where="flag: --strong",
            )

    def run(self, sizes: Sequence[Size]) -> Generator[Change, Trial, None]:
        """Have the sizes tried in turn, and say what was measured of each."""
        for size in sizes:
            trial = yield self._change(size)
            self.measured.append(self._measured(size, trial))
            tell(progress_text(self.measured[-1], trial.took_s, Terminal.of(sys.stderr)))

    def _change(self, size: Size) -> Change:
        """Return the trial of a size, on the first GPUs of ``--gpus``, or as many idle ones, which it holds."""
        typed = dict(self._said)
        if self.strong and self._effective is not None:
            typed.pop("batch_size", None)
            typed["global_batch_size"] = Resolved(self._effective.value, Source("flag", "--strong"))
        if self._machines.first.launch.device.value == "cuda" and self._machines.here:
            gpus = value_of(self._options.gpus, "free")
            chosen = f"free:{size.nproc}" if gpus.startswith("free") else ",".join(gpus.split(",")[: size.nproc])
            typed["gpus"] = Resolved(chosen, _SIZES)
        # in an allocation, one node has to be said: else all of them are meant
        nproc = str(size) if self._machines.here else f"{size.nodes}x{size.nproc}"
        words = self._machines.words(size)
        return Change(str(size), nproc, size.processes, typed, tuple(words), elsewhere=not self._machines.here)

    def _measured(self, size: Size, trial: Trial) -> SizeMeasured:
        measured, recorded = trial.measured, trial.recorded
        return SizeMeasured(
            size=str(size),
            processes=size.processes,
            nodes=size.nodes,
            ranks=measured.ranks,
            samples_per_s=trial.samples_per_s,
            effective_batch=recorded.effective_batch,
            lr=recorded.lr,
            cpus=recorded.cpus,
            settled=measured.settled,
            unwatched=trial.unwatched,
            workers=workers_typed(self._machines.first.script, "{}"),
            record=str(trial.record),
            problem=trial.problem,
            observed=trial.observed,
        )


def _sizes(text: str | None, machines: Machines) -> list[Size]:
    """Return the sizes, each once. Raises UsageError for what is none, or does not exist here."""
    places, nodes = machines.places, machines.nodes
    usual = [] if places is None else [Size(1, number) for number in _powers(places)]
    usual += [] if places is None else [Size(number, places) for number in _powers(nodes)[1:]]
    possible = f"`ddplaunch scale {','.join(map(str, usual)) or f'1,{nodes}x1'} …`"
    if text is None and not usual:
        raise usage(
            "no SIZES",
            why="how many processes each machine has a place for is known once they are asked, which a trial does",
            fix=f"{possible}, or `--hosts gpu-a:8,gpu-b:8`",
            where="SIZES",
        )
    sizes = usual if text is None else [_size(word.strip()) for word in text.split(",")]
    on_gpus = machines.first.launch.device.value == "cuda"
    for size in sizes:
        if size.nodes > nodes or (places is not None and size.nproc > places * (1 if on_gpus else _PER_CPU)):
            places_text = "" if places is None else f" with {count(places, 'GPU' if on_gpus else 'CPU')} each"
            raise usage(
                f"size {size} is too large for {count(nodes, 'machine')}{places_text}",
                why=f"each process takes a GPU of its own, at most {_PER_CPU} share a CPU; machines are those of "
                "`--hosts a,b`, or of a Slurm allocation",
                fix=possible,
                where="SIZES",
                code="size-not-here",
            )
    return list(dict.fromkeys(sizes))


def _size(word: str) -> Size:
    match = _SIZE.match(word)
    if match is None:
        raise usage(
            f"`{word}` is not a size",
            why="a size is a number of processes, or nodes times processes of each, as in 2x4",
            fix="`ddplaunch scale 1,2,4 -- train.py`",
            where="SIZES",
        )
    return Size(int(match[1] or 1), int(match[2]))


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4 … up to ``most``, which is the last one."""
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == most else [*sizes, most]
