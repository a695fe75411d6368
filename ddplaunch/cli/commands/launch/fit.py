"""``ddplaunch fit``: finds the batch per process that fits into memory, and the fastest, by trials with all ranks."""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator, Mapping
from dataclasses import replace
from typing import Any

from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.parsing.command import OUTPUT, TRIALS, Command, trial_options
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.cli.streams import answer, answer_json, tell
from ddplaunch.cli.target import required
from ddplaunch.cli.trials.trial import Change, Trial, Trials, decided, measure_of
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.options import Options
from ddplaunch.scaling.largest_batch import (
    Batches,
    FitCommand,
    Fitted,
    FitTrial,
    Tried,
    budget,
    fastest,
    largest,
    modelled,
    next_batch,
)
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, error, usage
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of
from ddplaunch.values.words import count
from ddplaunch.watch.fit_view import fit_json, fit_text, never_fits, trial_text

COMMAND = Command(
    examples=(
        ("ddplaunch fit 4 --global-batch-size 512 -- train.py", "batch and accumulation for exactly 512 samples"),
        ("ddplaunch fit 2 --device cpu --memory 4GiB -- train.py", "4 GiB for each process, which none exceeds"),
    ),
    options=(
        Flag(
            "headroom",
            "number",
            TRIALS,
            "Percentage of the memory that stays free, up to 90 [10].",
            "PERCENT",
            example="10",
        ),
        *trial_options(5),
        Flag("json", "switch", OUTPUT, "Everything as JSON."),
    ),
    more="Each batch is a short run of the unchanged script; --timeout limits each trial [10m].",
)

_HEADROOM = 0.1
_MOST_TRIALS = 8
_FIRST = 8  # samples in the first trial, where neither an option nor the script sets them
_FIT = Source("flag", "fit")
#: Diagnoses of too little memory; "process-limit" (no thread can be started) counts only where memory is limited.
_MEMORY = frozenset({"cuda-out-of-memory", "host-out-of-memory", "process-limit"})
#: Flags that the answer sets anew, or that were meant for the trials.
_DECIDED = "batch_size accum global_batch_size run_id timeout"


def fit(
    typed: TypedLaunch,
    headroom: float | None,
    json: bool | None,
    steps: int | None,
    in_place: bool | None,
) -> int:
    """Try batches until the largest that fits is known, and print the command."""
    options = with_configuration(typed)
    measure = measure_of(options, steps, usual_s=5.0)
    percent = 100 * _HEADROOM if headroom is None else headroom
    if not 0 <= percent <= 90:
        raise usage(f"`--headroom {percent:g}`", why="it is a percentage from 0 to 90", fix="`--headroom 10`")
    search = _Search(options, typed, percent / 100)
    runs = Trials("fit", search.first, typed, measure, in_place=bool(in_place))
    interrupted = runs.run_all(search.run())
    fitted = search.fitted()
    if json:
        answer_json(fit_json(fitted))
    else:
        answer(fit_text(fitted, Terminal.of(sys.stdout)))
    if interrupted:
        return ExitStatus.INTERRUPTED
    return ExitStatus.DONE if fitted.problem is None else ExitStatus.FINDINGS


class _Search:
    """The trials of one command, and their results so far."""

    def __init__(self, options: Options, typed: TypedLaunch, headroom: float) -> None:
        if options.nnodes is not None and options.nnodes.value.most > 1:
            raise usage(
                "`fit` tries batches on one machine, and this launch has several",
                why="what the ranks of other machines took is not read here",
                fix="try one of them: the same command with its number of processes alone",
            )
        self._options, self._typed, self._said, self._headroom = options, typed, typed.said, headroom
        self._script = required(typed.script)
        self.first = decided(options, self._script)
        launch = self.first.launch
        self._world, self._accumulates = launch.topology.world_size, "accum" in launch.receives
        if "batch_size" not in launch.receives:
            raise RefusedError(
                error(
                    "batch-not-taken",
                    "the script takes no batch size from outside, so that none can be tried",
                    why="no option of it was found that takes one",
                    fix="`ddplaunch plan --batch-size 8 -- …` says how it can take one",
                    where=self._script[0],
                )
            )
        self._memory = self._limit()
        self._batches = self._candidates()
        self._trials: list[FitTrial] = []
        self._problem: Finding | None = None

    def _limit(self) -> Resolved[str] | None:
        """Return a rank's memory limit on the CPU, as for `--memory`: the given one, or its share of free memory."""
        if self.first.launch.device.value != "cpu":
            return None
        if "memory" in self._said or self._options.memory_bytes is not None:
            return self._said.get("memory")
        memory = self.first.facts.memory
        if isinstance(memory, Unavailable):
            return None
        return Resolved(f"{max(64, memory.available_bytes // self._world >> 20)}M", Source("detected"))

    def _candidates(self) -> Batches:
        effective, size = self._options.global_batch_size, self._options.dataset_size
        first = value_of(self._options.batch_size, None)
        if effective is not None:
            return Batches(first or _FIRST, total=effective.value // self._world, whole=not self._accumulates)
        most = Batches.most if size is None else max(1, size.value // self._world)
        return Batches(first or value_of(self.first.launch.numbers.batch_size, _FIRST), most)

    # Trials

    def run(self) -> Generator[Change, Trial, None]:
        """Yield batches to try, until the largest that fits is known, and whether a smaller one is faster."""
        while len(self._trials) < _MOST_TRIALS and self._problem is None:
            batch = next_batch(self._tried(), self._batches, self._headroom)
            if batch is None:
                break
            yield from self._try(batch)
        if self._problem is not None or not self._trials:
            return
        best = largest(self._tried(), self._headroom)
        if best is None:
            smallest = min(self._trials, key=lambda trial: trial.tried.batch)
            self._problem = never_fits(smallest, self._headroom, whole=self._batches.whole)
        elif len(self._trials) < _MOST_TRIALS and best.samples_per_s:
            half = self._batches.at_most(best.batch / 2)
            near = [one.batch for one in self._tried() if one.ran and one.batch < best.batch]
            if 1 < half < best.batch and not any(batch > best.batch / 3 for batch in near):
                yield from self._try(half)

    def _try(self, batch: int) -> Generator[Change, Trial, None]:
        """Yield one batch to try, and note the result of its trial."""
        typed = {name: value for name, value in self._said.items() if name != "batch_size"}
        if self._options.global_batch_size is not None:
            typed.pop("accum", None)
        typed["batch_size"] = Resolved(batch, _FIT)
        if self._memory is not None:
            typed["memory"] = self._memory
        trial = yield Change(f"batch-{batch}", self._world, typed)
        if trial.ending == "interrupted":
            return
        tried, note = self._judged(batch, trial)
        if tried is not None:
            self._trials.append(
                FitTrial(
                    tried,
                    self._accum(batch),
                    trial.measured.steps,
                    note,
                    trial.run_id,
                    trial.took_s,
                    trial.observed,
                )
            )
            tell(trial_text(self._trials[-1], self._headroom))

    def _accum(self, batch: int) -> int | None:
        total = self._batches.total
        return total // batch if total is not None else value_of(self.first.launch.numbers.accum, None)

    def _tried(self) -> list[Tried]:
        return [trial.tried for trial in self._trials]

    def _judged(self, batch: int, trial: Trial) -> tuple[Tried | None, str]:
        """Return a trial's result for its batch and a note on how it ended; None where it has none, and note why."""
        measured = trial.measured
        limits = [limit for facts in measured.facts if isinstance(limit := facts.get("memory_limit_bytes"), int)]
        loaders = [loader for facts in measured.facts if isinstance(loader := facts.get("loader"), dict)]
        peak, limit = measured.peak_bytes, min(limits, default=None)
        self._no_more_than_there_are(batch, trial, loaders)
        loaded = {loader["batch_size"] for loader in loaders} - {None}
        if trial.ending in ("measured", "ended") and loaded and batch not in loaded and not self._trials:
            self._problem = _not_this_batch(batch, loaded, trial)
            return None, ""
        if trial.problem is None:
            return Tried(batch, True, peak, limit, trial.samples_per_s), ""
        ran = Tried(batch, True, peak, limit)
        if trial.ending == "ended" and peak is not None:
            return ran, f"it ended after {count(measured.steps, 'step')}"
        if trial.ending == "failed" and (note := self._out_of_memory(batch, trial, ran)):
            return Tried(batch, False, None, limit), note
        if self._trials and (trial.ending == "ended" or measured.empty_epochs):
            return Tried(batch, False, None, limit), "no step: the data hold no such batch"
        self._problem = trial.problem
        return None, ""

    def _no_more_than_there_are(self, batch: int, trial: Trial, loaders: Collection[Mapping[str, Any]]) -> None:
        """Limit batches to the samples that a rank has in an epoch, as its DataLoader counts them.

        Where none counts them and the script ended by itself, the samples it trained are the limit.
        """
        trained = trial.measured.steps * batch * (self._accum(batch) or 1) if trial.ending == "ended" else 0
        samples = [number for loader in loaders if isinstance(number := loader.get("samples"), int) and number > 0]
        most = min(samples, default=trained)
        if most and self._batches.total is None:
            self._batches = replace(self._batches, most=min(self._batches.most, most))

    def _out_of_memory(self, batch: int, trial: Trial, at_its_end: Tried) -> str:
        """Return how memory ran out in a failed trial, "" where it failed for another reason."""
        code = "" if trial.diagnosis is None else trial.diagnosis.code
        if code in _MEMORY and (code != "process-limit" or self._memory is not None):
            return "out of memory"
        model, limited = modelled(self._tried()), [one for one in self._tried() if one.limit_bytes]
        # a program short of memory may fail with any message, so the prediction from smaller batches counts as well
        predicted = model is not None and limited and model.at(batch) > budget(limited[0], _HEADROOM)
        if predicted or (at_its_end.limit_bytes and not at_its_end.within(_HEADROOM)):
            return f"failed ({code or 'unknown'}) where memory ends"
        return ""

    # The answer

    def fitted(self) -> Fitted:
        """Return everything that was found."""
        tried, most = self._tried(), self._batches.most
        best = largest(tried, self._headroom)
        quickest = fastest(tried, self._headroom, most // value_of(self.first.launch.numbers.accum, 1))
        chosen = quickest or best
        return Fitted(
            trials=tuple(self._trials),
            headroom=self._headroom,
            device=self.first.launch.device.value,
            best=best,
            fastest=quickest,
            model=modelled(tried),
            most=most if most < Batches.most else None,
            command=None if chosen is None else self._command(chosen.batch, self._accum(chosen.batch) or 1),
            problem=self._problem,
        )

    def _command(self, batch: int, accum: int) -> FitCommand:
        """Return the whole command for a batch, with the user's other options; ``run`` scales `--base-lr` for it."""
        numbers, now = self.first.launch.numbers, batch * accum * self._world
        effective = value_of(numbers.global_batch_size, None)
        nproc = [] if self._typed.nproc is None else [self._typed.nproc]
        sizes = ["--batch-size", str(batch), *(["--accum", str(accum)] if self._accumulates or accum > 1 else [])]
        words = ["ddplaunch", "run", *nproc, *self._typed.words(_DECIDED.split()), *sizes]
        base = numbers.base_batch_size
        if base is not None and self._options.base_lr is not None and self._options.base_batch_size is None:
            words += ["--base-batch-size", str(base.value)]
        return FitCommand(batch, now, now == effective, (*words, "--", *self._script))


def _not_this_batch(batch: int, loaded: Collection[object], trial: Trial) -> Finding:
    sizes = " and ".join(str(size) for size in sorted(loaded, key=str))
    return error(
        "batch-not-taken",
        f"the script was given a batch of {batch} for each process, and its DataLoader has one of {sizes}",
        why="trials with other batches would all train the same one, or another one than they are meant to",
        fix="`--batch-option NAME:total` (rank, node, total, step) says whose batch the option is",
        where=f"trial {trial.run_id}",
    )
