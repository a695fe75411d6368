"""Starts one trial as a run of its own, measures its steps from outside, ends it, and says what was seen.

For `scale` and `fit` alike. A caller makes a ``TrialOrder``, calls ``run_trial`` and reads the ``TrialResult``::

    order = TrialOrder(new_group("fit"), "batch-16", "2", {**said, "batch_size": …}, ("train.py",))
    result = run_trial(order, report_of_the_script)
    result.status, result.ranks[0].step_s, result.peak_bytes, result.diagnosis

Nothing is left running when it returns or raises. A trial that dies takes nothing with it, so it may run out of memory.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Literal

from ddplaunch.cli.streams import asked, read_told
from ddplaunch.cli.trials.trial_orders import (
    Measuring,
    TrialOrder,
    TrialPlaces,
    WrittenOutside,
    command_of,
    make_folders,
    places_of,
    remove_folders,
)
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.hosts.local.stop_run import stop_run
from ddplaunch.hosts.slurm.programs import end_step
from ddplaunch.machine.files import boot_id
from ddplaunch.machine.hardware import busy_cpus
from ddplaunch.machine.processes.run_processes import RunProcesses
from ddplaunch.planning.settings import OBSERVED
from ddplaunch.records.find import numbered, read_outcomes
from ddplaunch.records.json_files import read_object
from ddplaunch.records.launchers import NodeProcesses, read_processes
from ddplaunch.records.outcome import RunOutcome, read_findings, read_outcome
from ddplaunch.records.run_states import live_run
from ddplaunch.script.script_report import ScriptReport
from ddplaunch.values.finding import ExitStatus, Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable
from ddplaunch.watch.phases import RankPhases, StepLine, phases_path, phases_ranks, settled, summed
from ddplaunch.watch.sampler import waited_s
from ddplaunch.watch.step_rate import FollowedFile

#: "measured"; "ended": the script came to its end before enough was measured; "failed": it failed; "refused": the
#: launch was refused; "no-steps" and "too-slow": no optimizer step, or too few, in the time that there is;
#: "unseen": what ranks of other machines wrote had no such steps when it came; "interrupted": by Ctrl-C.
TrialStatus = Literal["measured", "ended", "failed", "refused", "no-steps", "too-slow", "unseen", "interrupted"]
_LOOK_S, _LOOK_AT_RANKS_S = 0.2, 1.0
_LEAST = 5  # steps without which nothing is said
_UNSETTLED = 60, 20.0  # steps and seconds after which it is measured although step times have not settled
_UNSEEN_S, _UNSEEN_MEASURED_S = 45.0, 10.0  # for ranks to start and settle that nobody sees; and to measure
_EMPTY = 16  # epochs without a batch after which none is waited for
_GRACE_S = 30.0
_LONGER_S = 15.0  # torchrun kills ranks after the grace itself
_OUTCOME_S = 20.0  # the guard explains a failure after torchrun has gone


@dataclass(frozen=True)
class TrialResult:
    """What became of a trial.

    ``ranks`` are what the measured steps took in each rank that this host can read, in order; they are empty unless
    something was measured. ``world_size`` is what the ranks say. ``steps_seen`` counts all steps since the start,
    ``settled`` is False where step times still moved. ``exit_status`` is the launcher's where it ended by itself,
    ``findings`` are what it said before the launch. ``outside`` are files that were written elsewhere than in the
    trial's folder, ``kept`` is that folder if it is still there. ``took_s`` is the whole trial, ``busy_cpus`` how many
    CPUs others kept busy just before it. ``empty_epochs`` counts epochs that had no batch, of a rank without a step.
    ``unwatched`` says that ranks' steps came with the records at the end, so that time alone ended it.
    ``waiting_threads`` is how many threads of ranks waited for a CPU at a time, None where nobody looked.
    ``observed`` is what was found of how its ranks train while it ran.
    """

    order: TrialOrder
    status: TrialStatus
    record: Path
    ranks: tuple[RankPhases, ...] = ()
    world_size: int | None = None
    steps_seen: int = 0
    settled: bool = True
    empty_epochs: int = 0
    diagnosis: Diagnosis | None = None
    exit_status: int | None = None
    findings: tuple[Finding, ...] = ()
    outside: tuple[str, ...] = ()
    kept: Path | None = None
    took_s: float = 0.0
    busy_cpus: float = 0.0
    unwatched: bool = False
    waiting_threads: float | None = None
    observed: tuple[Finding, ...] = ()

    @property
    def step_s(self) -> float | None:
        """The median step of the slowest rank, in seconds."""
        return max((rank.step_s for rank in self.ranks), default=None)

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all ranks in a second, as they counted them; None where one cannot tell, or is not read here."""
        each = [rank.samples_per_s for rank in self.ranks]
        if not each or (self.world_size or 0) > len(each) or any(rate is None for rate in each):
            return None
        return sum(rate or 0.0 for rate in each)

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that one rank took: of its GPU as torch allocates it, on the CPU of its process."""
        return max((rank.peak_bytes for rank in self.ranks if rank.peak_bytes), default=None)


def run_trial(
    order: TrialOrder,
    report: ScriptReport | Unavailable,
    progress: Callable[[int, float], None] = lambda steps, seconds: None,
) -> TrialResult:
    """Run a trial to its end. ``report`` is of its script; ``progress`` is called with steps and seconds so far.

    Ctrl-C ends the trial, and the result says "interrupted". Raises OSError where its folder cannot be made.
    """
    places = places_of(order, os.environ, Path.cwd())
    words = command_of(order, places, report)
    make_folders(words, places)
    busy, outside = busy_cpus(), WrittenOutside(order, places)
    began = time.monotonic()
    running = _Running(words, order, places, outside)
    found: dict[str, Any] = {}
    try:
        found = running.measure(progress)
    except KeyboardInterrupt:
        found = {"status": "interrupted", **running.measured(force=True)}
        if found["ranks"]:
            found["status"] = "measured" if running.enough() else "interrupted"
    finally:
        running.end()
        if order.elsewhere and found.get("status") == "measured":
            found = running.refreshed(found)
        written = outside.found()
        if not order.keep:
            remove_folders(places)
    return TrialResult(
        order=order,
        record=places.record,
        findings=running.findings,
        observed=running.observed,
        outside=written,
        kept=places.folder if order.keep else None,
        took_s=round(time.monotonic() - began, 2),
        busy_cpus=round(busy, 1),
        **found,
    )


class _Running:
    """The launcher of a trial as a child of this process, and what its ranks write."""

    def __init__(self, words: Sequence[str], order: TrialOrder, places: TrialPlaces, outside: WrittenOutside) -> None:
        self._order, self._places, self._outside = order, places, outside
        self._began, self._began_wall_s = time.monotonic(), time.time()
        self._files: dict[int, FollowedFile] = {}
        self._lines: dict[int, list[StepLine]] = {}
        self.findings: tuple[Finding, ...] = ()
        self.observed: tuple[Finding, ...] = ()
        self._looked_s = self._recorded = 0.0
        self._waited: tuple[float, float] | None = None
        self._waits: list[tuple[float, float]] = []  # since when, and how many threads
        self._launch = ""  # the token of the launch, once its launcher was seen
        self._child = subprocess.Popen(
            words,
            env={**os.environ, **asked(places.told)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which ends the trial
        )

    def measure(self, progress: Callable[[int, float], None]) -> dict[str, Any]:
        """Wait until enough is measured or the run has ended; return the fields of the result."""
        limit_s = self._order.measuring.timeout_s
        while self._child.poll() is None:
            time.sleep(_LOOK_S)
            self._look()
            progress(self._steps(), time.monotonic() - self._began)
            if self.enough():
                return {"status": "measured", **self.measured()}
            if not self._steps() and self._empty_epochs() >= _EMPTY:
                return {"status": "no-steps", **self.measured()}
            if self._is_unseen():
                self.end()
                self._look()
                found = self.measured(force=True)
                return {"status": "measured" if found["ranks"] else "unseen", "unwatched": True, **found}
            if time.monotonic() - self._began >= limit_s:
                found = self.measured(force=True)
                status = "measured" if found["ranks"] else "too-slow" if self._steps() else "no-steps"
                return {"status": status, **found}
        return self._after_its_end(self._child.returncode)

    def _after_its_end(self, exit_status: int) -> dict[str, Any]:
        outcome = self._outcome()
        self._look()
        found = {**self.measured(force=exit_status == 0), "exit_status": exit_status}
        if outcome is not None:
            found["diagnosis"] = outcome.diagnosis
        if exit_status == 0:
            return {"status": "measured" if found["ranks"] else "ended", **found}
        refused = outcome is None and exit_status in (ExitStatus.REFUSED, ExitStatus.USAGE)
        return {"status": "refused" if refused else "failed", **found}

    def _outcome(self) -> RunOutcome | None:
        """Return how the run ended, which its guard writes a moment after torchrun has gone."""
        end = time.monotonic() + _OUTCOME_S
        while self._is_recorded():
            over = time.monotonic() >= end or not self._alive()
            if (outcome := read_outcomes(self._places.record).get(0)) is not None:
                return outcome
            if over:
                break
            time.sleep(_LOOK_S)
        return None

    def _is_recorded(self) -> bool:
        """Whether the record is of this run: one of the same id may lie there until it has begun."""
        with suppress(OSError):
            return (self._places.record / "run.json").stat().st_mtime >= self._began_wall_s - 0.1
        return False

    def _look(self) -> None:
        """Read what the ranks have written since."""
        for _, node in numbered(self._places.record, "node") if self._is_recorded() else ():
            for _, attempt in numbered(node, "attempt"):
                for rank in phases_ranks(attempt):
                    if rank not in self._files:
                        self._files[rank] = FollowedFile(phases_path(attempt, rank))
        for rank, file in self._files.items():
            self._lines.setdefault(rank, []).extend(file.new())
        if time.monotonic() - self._looked_s > _LOOK_AT_RANKS_S:
            self._looked_s = time.monotonic()
            boot = boot_id()
            here = [node for node in read_processes(self._places.record) if node.boot_id == boot]
            self._outside.look(each.pid for node in here for each in node.ranks)
            self._look_at_waits(here)

    def _look_at_waits(self, here: Sequence[NodeProcesses]) -> None:
        """Note how many threads of ranks have waited for a CPU since the last time."""
        now = time.time(), sum(waited_s(each.pid) for node in here for each in node.ranks)
        if self._waited is not None and now[1] >= self._waited[1]:  # else a thread has ended with what it had
            self._waits.append((*self._waited[:1], (now[1] - self._waited[1]) / (now[0] - self._waited[0])))
        self._waited = now

    def _is_unseen(self) -> bool:
        """Whether ranks on other machines, whose records come at the end, have trained for as long as is wanted."""
        if not self._order.elsewhere or self._lines or not self._is_recorded():
            return False
        self._recorded = self._recorded or time.monotonic()
        wanted_s = self._order.measuring.seconds or _UNSEEN_MEASURED_S
        return time.monotonic() - self._recorded >= _UNSEEN_S + wanted_s

    def refreshed(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a measured trial with the ranks whose records have come at its end."""
        self._look()
        again = self.measured(force=True)
        return {**found, **again} if len(again["ranks"]) > len(found["ranks"]) else found

    def _empty_epochs(self) -> int:
        return max((file.facts.get("empty_epochs", 0) for file in self._files.values()), default=0)

    def _steps(self) -> int:
        """Return how many steps all ranks have made; of more than a few the last one may be missing."""
        told = {rank: file.facts.get("steps") for rank, file in self._files.items()}
        each = ((sum(line.steps for line in lines), told.get(rank)) for rank, lines in self._lines.items())
        return min((max(lines, few) if isinstance(few, int) else lines for lines, few in each), default=0)

    def _began_at(self, *, force: bool) -> int | None:
        """Return from which step on is measured, None before that is known; with ``force`` step times may move."""
        measuring, firsts = self._order.measuring, []
        for lines in self._lines.values():
            at = settled(lines, measuring.warmup_steps)
            known = [line for line in lines if line.wall_s]
            walls = sum(line.wall_s or 0.0 for line in known)
            if at is None and not force and (len(known) < _UNSETTLED[0] or walls < _UNSETTLED[1]):
                return None
            if at is None:
                at = min(len(lines), 1 + max(measuring.warmup_steps, len(lines) // 2 if not force else 0))
            firsts.append(lines[at].step if at < len(lines) else 1 << 62)
        return max(firsts, default=None)

    def _world_size(self) -> int | None:
        sizes = [file.facts.get("world_size") for file in self._files.values()]
        return max((size for size in sizes if isinstance(size, int)), default=None)

    def _all_there(self) -> bool:
        expected = sum(len(node.ranks) for node in read_processes(self._places.record)) or self._world_size() or 1
        return len(self._lines) >= expected and all(self._lines.values())

    def enough(self) -> bool:
        """Whether every rank has been measured for long enough."""
        if not self._lines or not self._all_there() or (first := self._began_at(force=False)) is None:
            return False
        measuring = self._order.measuring
        for lines in self._lines.values():
            known = [line for line in lines if line.step >= first and line.wall_s]
            steps, seconds = sum(line.steps for line in known), sum(line.wall_s or 0.0 for line in known)
            if len(known) < _LEAST or not _is_over(measuring, steps, seconds):
                return False
        return True

    def measured(self, *, force: bool = False) -> dict[str, Any]:
        """Return the fields of the result that come from the ranks' files."""
        first = self._began_at(force=force)
        ranks = []
        for rank, lines in sorted(self._lines.items()):
            known = [] if first is None else [line for line in lines if line.step >= first and line.wall_s]
            one = summed(rank, self._files[rank].facts, known) if len(known) >= _LEAST else None
            ranks += [] if one is None else [one]
        still = [settled(lines, self._order.measuring.warmup_steps) is not None for lines in self._lines.values()]
        return {
            "ranks": tuple(ranks) if len(ranks) == len(self._lines) else (),
            "world_size": self._world_size(),
            "steps_seen": self._steps(),
            "settled": all(still),
            "waiting_threads": self._waiting_threads(first),
            "empty_epochs": 0 if self._steps() else self._empty_epochs(),
        }

    def _waiting_threads(self, first: int | None) -> float | None:
        """Return how many threads waited for a CPU at a time since step ``first``; None where nobody looked."""
        lines = [line for each in self._lines.values() for line in each if first is not None and line.step >= first]
        begin_s = min((line.end_s for line in lines), default=float("inf"))
        during = [threads for since_s, threads in self._waits if since_s >= begin_s]
        return round(median(during), 1) if during else None

    def end(self) -> None:
        """End the run with its usual grace, and whatever should be left of it after that; interrupted, at once."""
        said = self._order.said.get("grace")
        grace_s = _GRACE_S if said is None else float(said.value)
        try:
            self._alive()  # to know what is of this launch when the launcher is gone
            if self._child.poll() is None:
                if not end_step(self._of_step(), os.environ):
                    self._child.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(grace_s + _LONGER_S)
            self._stop_rest(grace_s)
        except KeyboardInterrupt:
            self._stop_rest(0.0)
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        with suppress(OSError):  # nothing was told
            self.findings = read_told(self._places.told).findings
        if self._is_recorded():
            outcome = read_outcome(self._places.record)
            at_its_end = outcome.findings if isinstance(outcome, RunOutcome) else ()
            found = at_its_end or read_findings(self._places.record)
            self.observed = tuple(each for each in found if each.code in OBSERVED)

    def _of_step(self) -> dict[str, str]:
        """Return the environment in a job's step that srun has made of the launcher; empty where there is none."""
        with suppress(OSError, ValueError):
            if Path(f"/proc/{self._child.pid}/comm").read_text() == "srun\n" and self._is_recorded():
                known = read_object(self._places.record / "run.json")["environment"]
                return {str(name): str(value) for name, value in known.items()}
        return {}

    def _stop_rest(self, grace_s: float) -> None:
        end = time.monotonic() + _OUTCOME_S
        while (run := self._alive()) is not None:
            if run.launchers or run.ranks or run.children or time.monotonic() >= end:
                stop_run(run, grace_s)
                return
            time.sleep(_LOOK_S)  # the guard writes how it ended

    def _alive(self) -> RunProcesses | None:
        found = live_run(self._places.record, self._child.pid, self._launch)
        self._launch = self._launch if found is None else found.launch
        return found


def _is_over(measuring: Measuring, steps: int, seconds: float) -> bool:
    most = measuring.steps, measuring.seconds
    return any(limit is not None and done >= limit for done, limit in zip((steps, seconds), most, strict=True))
