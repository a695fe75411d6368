"""Samples of a run on disk, ``node-K/metrics.jsonl``: the file, the process that writes it, the words at the end.

The file's first line is ``{"schema": 1}``; later ones are ``Sample`` as JSON, without values that are the default.
Readers leave out a line that is half written.

`run --record-metrics` starts the recorder as a process of its own, because NVML may block for seconds where a driver is
ill, and nothing that ranks print may wait for that. It lives as long as its stdin has a writer, the guard, and as its
ranks do; a new guard starts a new recorder.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import ddplaunch
from ddplaunch.machine.files import open_plain
from ddplaunch.planning.settings import Settings
from ddplaunch.records.find import numbered
from ddplaunch.records.json_files import NEWEST_SCHEMA
from ddplaunch.records.own.own_files import open_to_write
from ddplaunch.values.codec import plain
from ddplaunch.values.variable_names import LAUNCH, RUN_ID, SETTINGS
from ddplaunch.values.words import count
from ddplaunch.watch.samples import GpuSample, HostSample, RankSample, Sample

NAME = "metrics.jsonl"
_SCHEMA = 1
_MAX_INTERVAL_S = 60.0
_PER_INTERVAL = 3600
T = TypeVar("T", RankSample, GpuSample, HostSample)


def interval_s(taken: int, first_s: float) -> float:
    """Return the pause after ``taken`` samples: twice as long after each 3600 of them, at most a minute.

    A week of one-second samples would fill a disk; this way the first hour is told by the second, and a day of eight
    ranks takes some tens of MB.
    """
    doubled = 2.0 ** min(taken // _PER_INTERVAL, 10)
    return max(first_s, min(first_s * doubled, _MAX_INTERVAL_S))


@contextlib.contextmanager
def metrics_file(node_directory: Path) -> Iterator[BinaryIO]:
    """Open a node's file to append to it, each line as one write(2); a new one gets the schema's line.

    Raises OSError.
    """
    descriptor = open_to_write(node_directory / NAME, os.O_WRONLY | os.O_APPEND)
    with open(descriptor, "wb", buffering=0) as file:
        if os.fstat(descriptor).st_size == 0:
            file.write(line_of({"schema": _SCHEMA}))
        yield file


def line_of(value: Mapping[str, Any]) -> bytes:
    """Return a line of the file."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def sample_json(sample: Sample) -> dict[str, Any]:
    """Return a sample without what is not known, and without what is 0 where that is its default."""
    value = plain(sample)
    value["host"] = _without_defaults(value["host"], HostSample)
    value["ranks"] = [_without_defaults(each, RankSample) for each in value["ranks"]]
    value["gpus"] = [_without_defaults(each, GpuSample) for each in value["gpus"]]
    return {name: each for name, each in value.items() if each is not None}


def _without_defaults(value: dict[str, Any], kind: type) -> dict[str, Any]:
    defaults = {field.name: plain(field.default) for field in fields(kind)}
    return {name: each for name, each in value.items() if name not in defaults or each != defaults[name]}


def read_metrics(directory: Path) -> dict[int, list[Sample]]:
    """Return the samples of each node of a run that has some; empty where nothing was recorded."""
    found = {}
    for node, folder in numbered(directory, "node"):
        samples = list(_samples(folder / NAME))
        if samples:
            found[node] = samples
    return found


_LONGEST_LINE = 1 << 22


def _samples(path: Path) -> Iterator[Sample]:
    with contextlib.suppress(OSError), open(open_plain(path), "rb") as file:
        while 0 < len(line := file.readline(_LONGEST_LINE)) < _LONGEST_LINE:
            try:
                value = json.loads(line, parse_constant=lambda _: None)
            except (ValueError, RecursionError):
                continue
            schema = value.get("schema") if isinstance(value, dict) else None
            if isinstance(schema, int) and schema > NEWEST_SCHEMA:  # of a newer ddplaunch
                return
            if (sample := sample_of(value)) is not None:
                yield sample


def sample_of(value: Mapping[str, Any]) -> Sample | None:
    """Return the sample that ``sample_json`` wrote, None if it is none; fields of later versions are left out.

    ``values.codec`` would take five times as long, 1.8 ms a sample of four ranks; a day has some 20,000 samples.
    """
    try:
        return Sample(
            at_s=float(value["at_s"]),
            name=str(value["name"]),
            attempt=int(value["attempt"]),
            host=_built(HostSample, value["host"]),
            ranks=tuple(_built(RankSample, each) for each in value.get("ranks", ())),
            gpus=tuple(_built(GpuSample, each) for each in value.get("gpus", ())),
            no_gpus=value.get("no_gpus"),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _built(kind: Callable[..., T], value: Mapping[str, Any]) -> T:
    known = getattr(kind, "__dataclass_fields__", {})
    lists = {name: tuple(each) if isinstance(each, list) else each for name, each in value.items() if name in known}
    return kind(**lists)


_EVERY_S = 1.0
_CODE = "import sys; sys.path.append({root!r}); from ddplaunch.watch.recording import main; main(sys.argv[1])"
_LEFT_OUT = (RUN_ID, LAUNCH, SETTINGS)  # or it would be taken for a part of the run, and waited for
_PATIENCE_S = 1.0


class Recorder:
    """The guard's side: one recorder at a time."""

    def __init__(self) -> None:
        """Nothing records yet."""
        self._pid = 0
        self._hold = -1

    def start(self, node_directory: str, table: Mapping[str, Any]) -> None:
        """Record the ranks of ``table`` (processes.json) from now on, instead of those before. Never raises."""
        self.end()
        wanted = json.dumps({"directory": node_directory, **{key: table[key] for key in ("host", "attempt", "ranks")}})
        with contextlib.suppress(OSError):
            reader, self._hold = os.pipe()
            actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
                (os.POSIX_SPAWN_DUP2, reader, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ]
            environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
            try:
                self._pid = os.posix_spawn(sys.executable, _recorder_argv(wanted), environment, file_actions=actions)
            finally:
                os.close(reader)

    def end(self) -> None:
        """Let it end, and wait a moment until it has: each line is whole, whenever that is."""
        if self._hold >= 0:
            os.close(self._hold)
        pid, self._pid, self._hold = self._pid, 0, -1
        until_s = time.monotonic() + _PATIENCE_S
        with contextlib.suppress(OSError):
            while pid and os.waitpid(pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > until_s:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.002)


def _recorder_argv(wanted: str) -> list[str]:
    """Return its command line: with site-packages, unlike the guard, because nvidia-ml-py is there."""
    root = str(Path(ddplaunch.__file__).resolve().parents[1])
    cache = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-I", *cache, "-c", _CODE.format(root=root), wanted]


def main(wanted: str) -> None:
    """Record until stdin ends or no rank runs any more; ``wanted`` is JSON: directory, host, attempt, ranks."""
    os.closerange(3, 4096)  # what the guard reads from is not for us to hold open
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("ddplaunch-top")
    record(json.loads(wanted), 0)


def record(wanted: Mapping[str, Any], descriptor: int, every_s: float = _EVERY_S) -> None:
    """Write samples of ``wanted`` until ``descriptor`` is at its end or no rank runs any more."""
    from ddplaunch.watch.gpu_usage import GpuUsage
    from ddplaunch.watch.sampler import Sampler
    from ddplaunch.watch.samples import Progress, RankIdentity
    from ddplaunch.watch.step_rate import FollowedPhases, Steps

    directory = Path(wanted["directory"])
    ranks = [
        RankIdentity(each["rank"], each["local_rank"], each["pid"], each["start_time"])
        for each in wanted["ranks"]
        if each["pid"] is not None and each["start_time"] is not None
    ]
    attempt, numbers = directory / f"attempt-{wanted['attempt']}", [rank.rank for rank in ranks]
    steps, phases = Steps(attempt, numbers), FollowedPhases(attempt, numbers)

    def progress() -> dict[int, Progress]:
        return {**steps.progress(time.time()), **phases.progress(time.time())}

    sampler = Sampler(ranks, wanted["attempt"], wanted["host"], progress, GpuUsage(), pss=False)
    sampler.sample()  # rates begin with the second
    taken, next_s = 0, time.monotonic()
    with contextlib.suppress(OSError), metrics_file(directory) as file:  # after the first failure nothing is written
        while True:
            next_s = max(next_s + interval_s(taken, every_s), time.monotonic())
            if select.select([descriptor], [], [], next_s - time.monotonic())[0]:
                return
            sample = sampler.sample()
            if not sample.ranks:
                return
            file.write(line_of(sample_json(sample)))
            taken += 1


def straggler_words(settings: Settings) -> str:
    """Return the findings about this node's ranks for stderr, and where all of it can be seen; "" if not asked for."""
    if not settings.record_metrics or not settings.directory:
        return ""
    from ddplaunch.ui.speech import findings_text
    from ddplaunch.ui.terminal import Terminal
    from ddplaunch.watch.stragglers import stragglers

    directory = Path(settings.directory)
    try:
        samples = read_metrics(directory).get(settings.node, [])
        found = stragglers(samples)
    except Exception as error:  # what was measured is worth less than how the run ended
        return f"ddplaunch: the recorded metrics could not be read: {error!r}\n"
    if not samples:
        return "metrics: the run was too short for a sample\n"
    told = findings_text(found, Terminal.of(sys.stderr)) + "\n" if found else ""
    number = count(len(samples), "sample")
    return f"{told}metrics: {number}; `ddplaunch top {directory.name} --replay`, or `--plot metrics.svg`\n"
