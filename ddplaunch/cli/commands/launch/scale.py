"""``ddplaunch scale``: short trials of a script with 1, 2, 4 … processes, their speed-up, and what limits it."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from dataclasses import replace

from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.parsing.command import OUTPUT, Command, trial_options
from ddplaunch.cli.parsing.typed_words import TypedLaunch, whole_number
from ddplaunch.cli.prepare import Prepared, prepare
from ddplaunch.cli.streams import answer, answer_json, say, tell
from ddplaunch.cli.target import required
from ddplaunch.cli.trials.trial import Change, Trial, Trials, decided, measure_of
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.options import Options, Said
from ddplaunch.planning.ranks.placement import workers_typed
from ddplaunch.scaling.numbers import format_lr
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
        *trial_options(10),
        Flag("json", "switch", OUTPUT, "Everything as JSON."),
    ),
    more="Each size is a short run of the unchanged script; --timeout limits each trial [10m].",
)

_SIZES = Source("flag", "SIZES")
_PER_CPU = 4  # processes


def scale(typed: TypedLaunch, json: bool | None, steps: int | None, in_place: bool | None) -> int:
    """Measure each size in turn, and print its speed-up and what limits it."""
    words = required(typed.script)
    launch = {name: value for name, value in typed.said.items() if name != "nproc"}
    options = with_configuration(replace(typed, said=launch))
    measure = measure_of(options, steps, usual_s=10.0)
    first = decided(replace(options, nproc=Resolved(1, _SIZES), gpus=None), words)
    sizes = _sizes(typed.nproc, first, _places(options, first))
    measured: list[SizeMeasured] = []
    runs = Trials("scale", first, typed, measure, in_place=bool(in_place))
    interrupted = runs.run_all(_series(sizes, first, launch, options, measured))
    strong = options.global_batch_size is not None
    if json:
        answer_json(scale_json(measured, strong=strong))
    else:
        answer(scale_text(measured, Terminal.of(sys.stdout), strong=strong))
    if interrupted:
        rest = sizes[len(measured) - 1 :]
        say(f"interrupted at size {rest[0]}: `ddplaunch scale {','.join(map(str, rest))} …` measures the rest")
        return ExitStatus.INTERRUPTED
    return ExitStatus.FINDINGS if any(one.problem is not None for one in measured) else ExitStatus.DONE


def _places(options: Options, first: Prepared) -> int:
    """Return for how many processes this machine has GPUs or, for a launch without GPUs, CPUs.

    ``first`` is the launch of one process. Raises UsageError for GPUs that do not fit it.
    """
    launch = first.launch
    if launch.device.value == "cuda":
        every = replace(launch.options, nproc=Resolved("auto", _SIZES), gpus=options.gpus)
        return prepare(every, launch.target).launch.topology.nproc_per_node.value
    if options.gpus is not None:
        prepare(replace(launch.options, gpus=options.gpus), launch.target)  # raises the error
    return _cpus(first)


def _cpus(first: Prepared) -> int:
    return 1 if isinstance(first.facts.cpu, Unavailable) else first.facts.cpu.usable


def _series(
    sizes: Sequence[int], first: Prepared, said: Said, options: Options, measured: list[SizeMeasured]
) -> Generator[Change, Trial, None]:
    """Yield each size to try, on the first GPUs of ``--gpus`` or that many idle ones; print and add each result."""
    for size in sizes:
        typed = dict(said)
        if options.global_batch_size is not None:
            typed.pop("batch_size", None)  # each process gets less of the effective batch
        if first.launch.device.value == "cuda":
            gpus = value_of(options.gpus, "free")
            chosen = f"free:{size}" if gpus.startswith("free") else ",".join(gpus.split(",")[:size])
            typed["gpus"] = Resolved(chosen, _SIZES)
        trial = yield Change(str(size), size, typed)
        one = SizeMeasured(
            processes=size,
            ranks=trial.measured.ranks,
            samples_per_s=trial.samples_per_s,
            effective_batch=trial.effective_batch,
            lr=None if trial.lr is None else format_lr(trial.lr),
            cpus=_cpus(first),
            settled=trial.measured.settled,
            workers=workers_typed(first.script, "{}"),
            record=str(trial.record),
            problem=trial.problem,
            observed=trial.observed,
        )
        measured.append(one)
        tell(progress_text(one, trial.took_s, Terminal.of(sys.stderr)))


def _sizes(text: str | None, first: Prepared, places: int) -> list[int]:
    """Return the sizes, each once. Raises UsageError for an invalid size, and for one too large for this machine."""
    usual = sorted({places, *(1 << power for power in range(places.bit_length()))})
    if text is None:
        return usual
    on_gpus, why = first.launch.device.value == "cuda", "a size is a number of processes on this machine"
    fix = f"`ddplaunch scale {','.join(map(str, usual))} …`"
    sizes = [whole_number("SIZES", word.strip(), "processes", why, fix, least=1) for word in text.split(",")]
    if (size := max(sizes)) > places * (1 if on_gpus else _PER_CPU):
        raise usage(
            f"size {size} is too large for {count(places, 'GPU' if on_gpus else 'CPU')}",
            why=f"each process takes a GPU of its own, at most {_PER_CPU} share a CPU",
            fix=fix,
            where="SIZES",
            code="size-not-here",
        )
    return list(dict.fromkeys(sizes))
