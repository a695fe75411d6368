"""Samples of a run on disk, ``node-K/metrics.jsonl``, a line for each; refuses to take any.

The first line is ``{"schema": 1}``; later ones are ``Sample`` as JSON, without what is as by default. A line that is
half written is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from ddplaunch.probes.samples import GpuSample, HostSample, RankSample, Sample
from ddplaunch.records.find import NEWEST_SCHEMA, node_directories
from ddplaunch.records.plain import plain

NAME = "metrics.jsonl"
SCHEMA = 1
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


class MetricsFile:
    """Appends samples to a node's file. Writing never raises: after the first failure nothing is written any more."""

    def __init__(self, node_directory: Path) -> None:
        """Open, or create with the schema's line."""
        self._descriptor = -1
        try:
            node_directory.mkdir(parents=True, exist_ok=True)
            path = node_directory / NAME
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if os.fstat(self._descriptor).st_size == 0:
                self._put({"schema": SCHEMA})
        except OSError:
            self.close()

    @property
    def open(self) -> bool:
        """Whether samples still go anywhere."""
        return self._descriptor >= 0

    def add(self, sample: Sample) -> None:
        """Write one sample, as one write(2)."""
        if self.open:
            self._put(sample_json(sample))

    def _put(self, value: Mapping[str, Any]) -> None:
        try:
            os.write(self._descriptor, json.dumps(value, separators=(",", ":")).encode() + b"\n")
        except OSError:
            self.close()

    def close(self) -> None:
        """Write no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


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
    for node, folder in node_directories(directory):
        samples = list(_samples(folder / NAME))
        if samples:
            found[node] = samples
    return found


def _samples(path: Path) -> Iterator[Sample]:
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(value, dict):
                    continue
                schema = value.get("schema")
                if isinstance(schema, int) and schema > NEWEST_SCHEMA:  # of a newer ddplaunch
                    return
                sample = sample_of(value)
                if sample is not None:
                    yield sample
    except OSError:
        return


def sample_of(value: Mapping[str, Any]) -> Sample | None:
    """Return the sample that ``sample_json`` wrote, None if it is none; fields of later versions are left out."""
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
