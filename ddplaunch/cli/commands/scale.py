"""``ddplaunch scale``: short trials of a script with 1, 2, 4 … processes, their speed-up, and what limits it."""

from __future__ import annotations

import json as json_text
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.cli.configuration import with_configuration, working_directory
from ddplaunch.cli.parsing.command import HOSTS, OUTPUT, PROFILE, TRIALS, Command, trial_options
from ddplaunch.cli.parsing.typed_words import launch_words
from ddplaunch.cli.prepare import Prepared, script_report
from ddplaunch.cli.streams import answer, answer_json, say, tell
from ddplaunch.cli.target import required
from ddplaunch.cli.trials.trial_machines import Size, TrialMachines
from ddplaunch.cli.trials.trial_runs import TrialResult
from ddplaunch.cli.trials.trial_series import TrialSeries, measuring_of, problem_of, refuse_too_many
from ddplaunch.machine.facts import NvmlFacts
from ddplaunch.machine.nvml import gpu_links
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.options import Said
from ddplaunch.planning.ranks.placement import workers_typed
from ddplaunch.planning.settings import OBSERVED
from ddplaunch.records.directory import path_text
from ddplaunch.records.find import run_directories
from ddplaunch.records.json_files import read_object, replace_file
from ddplaunch.records.user_key import Fingerprints
from ddplaunch.scaling.numbers import Numbers, format_lr
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.codec import from_plain, plain
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of
from ddplaunch.values.secrets import hide_words
from ddplaunch.values.words import count, listed
from ddplaunch.watch.phases import PHASES, RankPhases
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
        Flag("resume", "switch", TRIALS, "Take what the same command has measured before, and do the rest."),
        *HOSTS,
        Flag("json", "switch", OUTPUT, "Everything as JSON."),
    ),
    more="Each size is a short run of the unchanged script; --timeout limits each trial [10m].",
)

_SIZE = re.compile(r"(?:([1-9][0-9]{0,4})x)?([1-9][0-9]{0,5})\Z")
_SECONDS = 10.0
_SAVED = "size.json"
_LARGEST = 1 << 62
_MOST_OF_A_STEP = 100  # phases overlap, but not in so many threads


def scale(
    said: Said,
    script: list[str] | None,
    profile: str | None,
    strong: bool | None,
    warmup_steps: int | None,
    steps: int | None,
    seconds: float | None,
    keep: bool | None,
    resume: bool | None,
    json: bool | None,
    **hosts: Any,
) -> int:
    """Measure each size in turn, say what its speed-up is and what holds it back. ``hosts`` are flags of its own."""
    words = required(script, "scale")
    asked = said.get("nproc")
    launch = {name: value for name, value in said.items() if name != "nproc"}
    options = with_configuration(launch, profile, working_directory())
    measuring = measuring_of(options, warmup_steps, steps, seconds, _SECONDS)
    series = TrialSeries("scale", options, words, profile, measuring, keep=bool(keep))
    machines = TrialMachines(series, hosts)
    trials = _Trials(series, machines, launch, bool(strong))
    sizes = _sizes(None if asked is None else str(asked.value), machines)
    dataset_size = value_of(options.dataset_size, None)
    found, interrupted = trials.run(sizes, resume=bool(resume))
    if json:
        answer_json(scale_json(found, strong=trials.strong, dataset_size=dataset_size))
    else:
        answer(scale_text(found, Terminal.of(sys.stdout), strong=trials.strong, dataset_size=dataset_size))
    if interrupted:
        return ExitStatus.INTERRUPTED
    return ExitStatus.FINDINGS if any(one.problem is not None for one in found) else ExitStatus.DONE


class _Trials:
    """The trials of one command."""

    def __init__(self, series: TrialSeries, machines: TrialMachines, said: Said, strong: bool) -> None:
        self._series, self._machines, self._said, self._options = series, machines, said, series.options
        self._prints = Fingerprints(os.environ)
        self._width = Terminal.of(sys.stderr).width
        self.first = machines.first
        self.strong = strong or self._options.global_batch_size is not None
        self._whole = self._effective() if self.strong else None
        report = script_report(self._options, series.target, Path.cwd(), self.first.facts)
        self._workers = workers_typed(report, "{}")

    def _effective(self) -> int:
        """Return the effective batch that every size keeps. Raises UsageError where nobody says it."""
        if self._options.global_batch_size is not None:
            return self._options.global_batch_size.value
        if (known := self.first.launch.numbers.global_batch_size) is not None:
            return known.value
        raise usage(
            "`--strong` without a batch",
            why="the effective batch is to stay the same, and neither an option nor the script says what it is",
            fix="`--strong --global-batch-size 64`",
            where="flag: --strong",
        )

    def said_for(self, size: Size) -> dict[str, Any]:
        """Return the flags of the trial of a size."""
        said = dict(self._said)
        if self._whole is not None:
            said.pop("batch_size", None)
            said["global_batch_size"] = Resolved(self._whole, Source("flag", "--strong"))
        if self.first.launch.device.value == "cuda" and self._machines.here:
            said["gpus"] = Resolved(self._gpus(size), Source("flag", "SIZES"))
        return said

    def _gpus(self, size: Size) -> str:
        """Return the first GPUs that ``--gpus`` lists, else as many idle ones, which the trial holds."""
        listed = value_of(self._options.gpus, "free")
        if listed.startswith("free"):
            return f"free:{size.each}"
        return ",".join(listed.split(",")[: size.each])

    def prepared(self, size: Size) -> Prepared:
        """Return a launch with the numbers of a size, decided on this machine. Raises UsageError."""
        options = size.of(self._options)
        if not self._machines.here:  # the numbers do not depend on where the others are
            source = Source("flag", "SIZES")
            options = replace(
                options,
                device=Resolved("cpu", source),
                node_rank=Resolved(0, source) if size.nodes > 1 else None,
                master_addr=Resolved("localhost", source) if size.nodes > 1 else None,
            )
        if self._whole is not None:
            whole = Resolved(self._whole, Source("flag", "--strong"))
            options = replace(options, batch_size=None, global_batch_size=whole)
        return self._series.prepared(options)

    def run(self, sizes: Sequence[Size], *, resume: bool) -> tuple[list[SizeMeasured], bool]:
        """Run the trials in turn; return what was found, and whether Ctrl-C came before they were over."""
        found: list[SizeMeasured] = []
        before = {size: saved(self.first.base, self._key(size)) for size in sizes} if resume else {}
        if resume and not any(before.values()):
            place = path_text(self.first.base / "runs")
            say(f"--resume: `{place}` has no size of this script with these options, so that all of them are measured")
        for size in sizes:
            key = self._key(size)
            if (known := before.get(size)) is not None:
                tell(progress_text(known, 0.0, self._width))
                found.append(known)
                continue
            result = self._series.run(
                str(size),
                str(size),
                self._machines.typed(size),
                self.said_for(size),
                self.first,
                tuple(self._machines.words(size)),
                elsewhere=not self._machines.here,
            )
            one = self._measured(size, result)
            tell(progress_text(one, result.took_s, self._width))
            found.append(one)
            if result.status == "interrupted":  # what there is of this one is shown, and measured anew later
                left = listed([str(each) for each in sizes[sizes.index(size) :] if before.get(each) is None])
                say(f"interrupted at size {size}: the same command with `--resume` measures {left}")
                return found, True
            if one.ranks and one.problem is None:
                _save(result.record, key, one)
        return found, False

    def _measured(self, size: Size, result: TrialResult) -> SizeMeasured:
        numbers: Numbers | None = None
        with suppress(Exception):
            numbers = self.prepared(size).launch.numbers
        batch = None if numbers is None or numbers.global_batch_size is None else numbers.global_batch_size.value
        rates = [] if numbers is None else [rate for rate in (numbers.lr, *(each.lr for each in numbers.rates)) if rate]
        cpu = self.first.facts.cpu
        one = SizeMeasured(
            size=str(size),
            processes=size.processes,
            nodes=size.nodes,
            ranks=result.ranks,
            samples_per_s=result.samples_per_s,
            effective_batch=batch,
            lr=", ".join(format_lr(rate.value) for rate in rates) or None,
            cpus=1 if isinstance(cpu, Unavailable) else cpu.usable,
            gpu_bytes=self._gpu_bytes(),
            links=self._links(size),
            busy_cpus=result.busy_cpus,
            settled=result.settled,
            outside=result.outside,
            unwatched=result.unwatched,
            waiting_threads=result.waiting_threads,
            workers=self._workers,
            record=str(result.record),
            problem=problem_of(result),
            observed=result.observed,
        )
        if one.samples_per_s is None and one.mean_s and batch:
            one = replace(one, samples_per_s=batch / one.mean_s)
        return one

    def _gpu_bytes(self) -> int | None:
        nvml = self.first.facts.nvml
        if self.first.launch.device.value != "cuda" or not isinstance(nvml, NvmlFacts):
            return None
        sizes = [gpu.memory_total_bytes for gpu in nvml.gpus]
        return min((size for size in sizes if isinstance(size, int)), default=None)

    def _links(self, size: Size) -> str:
        """Return what connects the GPUs of this machine; "" of one rank, and where other machines train."""
        several = size.each > 1 and self.first.launch.device.value == "cuda" and self._machines.here
        return gpu_links() if several else ""

    def _key(self, size: Size) -> str:
        """Return what two trials have in common of which one can stand for the other."""
        secrets: list[str] = []
        said = launch_words(self.said_for(size), ("run_id", "run_dir", "timeout"))
        every = (said, self._series.words, self._machines.words(size), self._series.script)
        words = [hide_words(each, secrets.append) for each in every]
        prints = [self._prints.of(secret) for secret in secrets]
        return json_text.dumps([str(size), *words, list(plain(self._series.measuring).values())[:3], prints])


def _sizes(text: str | None, machines: TrialMachines) -> list[Size]:
    """Return the sizes, each once. Raises UsageError for what is none, or does not exist here."""
    most = machines.most
    sizes = [Size(1, each) for each in _powers(most)] + [Size(nodes, most) for nodes in _powers(machines.nodes)[1:]]
    if text is None:
        return sizes
    possible = ",".join(map(str, sizes))
    found = []
    for word in text.split(","):
        match = _SIZE.match(word.strip())
        if match is None:
            raise usage(
                f"`{word.strip()}` is not a size" if word.strip() else f"`{text}` names an empty size",
                why="a size is a number of processes, or nodes times processes of each, as in 2x4",
                fix="`ddplaunch scale 1,2,4 -- train.py`",
                where="SIZES",
            )
        size = Size(int(match[1] or 1), int(match[2]))
        if machines.first.launch.device.value == "cuda" and size.each > most:
            raise usage(
                f"there is no place for size {size}: {count(most, 'GPU')} on each machine",
                why="each process takes a GPU of its own",
                fix=f"`ddplaunch scale {possible} …`",
                where="SIZES",
                code="size-not-here",
            )
        refuse_too_many(size.each, most, f"size {size}", f"ddplaunch scale {possible} …", "SIZES")
        if size.nodes > machines.nodes:
            there = "is one" if machines.nodes == 1 else f"are {machines.nodes}"
            raise usage(
                f"size {size} takes {count(size.nodes, 'machine')}, and there {there}",
                why=machines.why_not(),
                fix=f"`ddplaunch scale {possible} …`",
                where="SIZES",
                code="size-not-here",
            )
        found.append(size)
    return list(dict.fromkeys(found))


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4 … up to ``most``, which is the last one."""
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found if found[-1] == most else [*found, most]


def _save(record: Path, key: str, one: SizeMeasured) -> None:
    """Keep what was measured in the trial's record, for ``--resume``; without a disk it is not kept."""
    with suppress(OSError):
        replace_file(record / _SAVED, json_text.dumps({"schema": 1, "key": key, "size": plain(one)}) + "\n")


def saved(base: Path, key: str) -> SizeMeasured | None:
    """Return the newest size under ``base`` that was measured with the same words; None where there is none."""
    for directory in run_directories(base):
        with suppress(OSError, ValueError):
            data = read_object(directory / _SAVED)
            if data.get("key") == key:
                return _size_of(data.get("size"))
    return None


def _size_of(data: Any) -> SizeMeasured:
    """Return the size in a record. Raises ValueError for what no trial wrote."""
    one = from_plain(data, SizeMeasured)
    if not one.ranks or one.problem is not None or not all(map(_is_measured, one.ranks)):
        raise ValueError("no ranks")
    if any(each.code not in OBSERVED for each in one.observed):
        raise ValueError("no finding of a trial's ranks")
    counts = (one.samples_per_s, one.effective_batch, one.gpu_bytes, one.busy_cpus, one.waiting_threads)
    sizes = (one.processes, one.nodes, one.cpus)
    if _SIZE.match(one.size) is None or not all(0 < each < _LARGEST for each in sizes):
        raise ValueError("no size")
    if not all(0 <= (each or 0) < _LARGEST for each in counts):
        raise ValueError("no numbers")
    return one


def _is_measured(rank: RankPhases) -> bool:
    """Whether these are times and shares of steps, and no numbers that cannot be reckoned with."""
    times = rank.step_s, rank.fastest_s, rank.slowest_s, rank.mean_s
    shares = [share for share in rank.shares.values() if share is not None]
    counts = rank.rank, rank.steps, rank.samples_per_s or 0, rank.peak_bytes or 0, rank.waits or 0
    return (
        all(0 < each < _LARGEST for each in times)
        and rank.shares.keys() == {*PHASES, "rest"}
        and all(0 <= share < _MOST_OF_A_STEP for share in shares)
        and all(0 <= each < _LARGEST for each in counts)
    )
