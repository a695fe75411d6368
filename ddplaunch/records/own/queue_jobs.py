"""Launches that wait for their turn: one JSON file for each below ``BASE/queue``, and who works them off.

Folder and files are opened as those of a record: this user's, no links, for nobody else to read, because a command line
may hold a secret that has to be passed on. Changes are made under a lock.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from ddplaunch.records.directory import not_yours, path_text
from ddplaunch.records.json_files import as_number, as_text, as_whole, read_object, replace_file
from ddplaunch.records.own.own_files import (
    LOCK_ALONE,
    LOCK_SHARED,
    NotOursError,
    closing,
    foreign,
    open_to_write,
    read_file,
    try_lock,
)
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import RefusedError, error
from ddplaunch.values.frozen import dataclass

JobWord = Literal["waiting", "starting", "running", "done", "failed", "refused", "interrupted"]
_LOCK_S = 10.0
_PAUSE_S = 0.02
_ELSEWHERE = "`--run-dir DIR`, or for every command `export DDPLAUNCH_DIR=DIR`, names another place"


@dataclass(frozen=True)
class QueuedJob:
    """One launch: ``words`` are those of ``run``, ``script`` what follows ``--``, ``cwd`` where it starts.

    "starting" is one that was taken up and is not launched yet: GPUs may be missing. Times are in seconds since the
    epoch. ``why`` says what it waits for, or why it ended as it did.
    """

    number: int
    words: tuple[str, ...]
    script: tuple[str, ...]
    cwd: str
    added_s: float
    state: JobWord = "waiting"
    started_s: float | None = None
    ended_s: float | None = None
    run_id: str | None = None
    exit_status: int | None = None
    why: str = ""

    @property
    def wants_free_gpus(self) -> bool:
        """Whether it starts only when enough GPUs are idle, which ``run`` itself sees to."""
        return any(word.startswith("free") for word in self._gpus)

    @property
    def _gpus(self) -> list[str]:
        pairs = zip(("", *self.words), self.words, strict=False)
        return [word.removeprefix("--gpus=") for before, word in pairs if before == "--gpus" or "--gpus=" in word[:7]]


def queue_folder(base: Path) -> Path:
    """Return where the jobs are."""
    return base / "queue"


def log_path(base: Path, number: int) -> Path:
    """Return where a job's launcher prints: what `ddplaunch run` would show."""
    return queue_folder(base) / f"{number:06}.log"


def read_jobs(base: Path) -> list[QueuedJob]:
    """Return all jobs in their order; a file that is broken or somebody else's is none.

    Raises RefusedError where the folder is somebody else's.
    """
    found = []
    folder = queue_folder(base)
    if folder.exists() and (reason := foreign(folder)) is not None:
        raise RefusedError(not_yours(NotOursError(reason, str(folder)), _ELSEWHERE))
    for name in sorted(each.name for each in folder.glob("*.json")) if folder.is_dir() else ():
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.append(_read(folder / name))
    return found


def _read(path: Path) -> QueuedJob:
    data = read_object(path, 1 << 20)
    state: JobWord = data["state"]
    if path.name != f"{data['number']:06}.json" or state not in get_args(JobWord):
        raise ValueError(f"{path.name} is not a job")
    return QueuedJob(
        *(data["number"], tuple(map(str, data["words"])), tuple(map(str, data["script"])), str(data["cwd"])),
        added_s=as_number(data.get("added_s")) or 0.0,
        state=state,
        started_s=as_number(data.get("started_s")),
        ended_s=as_number(data.get("ended_s")),
        run_id=as_text(data.get("run_id")),
        exit_status=as_whole(data.get("exit_status")),
        why=as_text(data.get("why")) or "",
    )


def write_job(base: Path, job: QueuedJob) -> None:
    """Write a job in one step. Raises OSError."""
    text = json.dumps({"schema": 1, **plain(job)}) + "\n"
    replace_file(queue_folder(base) / f"{job.number:06}.json", text, errors="surrogateescape")


def remove_job(base: Path, number: int) -> None:
    """Remove a job and what its launcher printed. Raises OSError."""
    (queue_folder(base) / f"{number:06}.json").unlink()
    log_path(base, number).unlink(missing_ok=True)


@contextmanager
def refusing(base: Path) -> Iterator[None]:
    """Turn what the queue's folder does not allow into RefusedError."""
    try:
        yield
    except NotOursError as problem:
        raise RefusedError(not_yours(problem, _ELSEWHERE)) from problem
    except OSError as problem:
        place = path_text(queue_folder(base))
        raise RefusedError(
            error(
                "record-not-writable",
                f"the queue in {place} cannot be changed: {problem.strerror or problem}",
                why="each launch that waits is a file there",
                fix=_ELSEWHERE,
                where=place,
            )
        ) from problem


@contextmanager
def changing(base: Path) -> Iterator[list[QueuedJob]]:
    """Yield the jobs while nobody else changes them. Raises RefusedError where that cannot be had, or written."""
    with refusing(base), closing(open_to_write(queue_folder(base) / "lock", os.O_RDWR)) as descriptor:
        until_s = time.monotonic() + _LOCK_S
        while not try_lock(descriptor, LOCK_ALONE):
            if time.monotonic() > until_s:
                raise TimeoutError(110, "another command changes it and does not end", str(queue_folder(base)))
            time.sleep(_PAUSE_S)
        yield read_jobs(base)


@contextmanager
def running_queue(base: Path) -> Iterator[bool]:
    """Be the one who works the queue off, until the end; yield False where somebody else does. Raises RefusedError."""
    with refusing(base):
        descriptor = open_to_write(queue_folder(base) / "runner", os.O_RDWR)
    with closing(descriptor):
        with refusing(base):
            if taken := try_lock(descriptor, LOCK_ALONE):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield taken


def runner_of(base: Path) -> int | None:
    """Return the process that works the queue off, None where there is none. It holds a lock as long as it lives."""
    path = queue_folder(base) / "runner"
    with suppress(OSError, ValueError):
        if path.exists():
            with closing(open_to_write(path, os.O_RDWR)) as descriptor:
                return None if try_lock(descriptor, LOCK_SHARED) else int(read_file(path, 64))
    return None
