"""The answer of `ddplaunch fit`: a line for each trial, the table, the memory model, the command, and JSON."""

from __future__ import annotations

import math
import shlex
from typing import Any

from ddplaunch.scaling.largest_batch import FitCommand, Fitted, FitTrial, Tried
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.table import panel, table
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.words import count, duration_text, listed, size_text
from ddplaunch.watch.step_rate import rate_text

_SCHEMA = 2
_NEAR = 0.96  # batches are rounded


def trial_text(trial: FitTrial, headroom: float) -> str:
    """Return the line of one finished trial."""
    tried, rate = trial.tried, rate_text(trial.tried.samples_per_s)
    parts = [_verdict(trial, headroom), _memory(tried), rate and f"{rate} samples/s"]
    return f"batch {tried.batch}: {', '.join(filter(None, parts))} ({duration_text(trial.took_s)})\n"


def fit_text(fitted: Fitted, terminal: Terminal) -> str:
    """Return the table of all trials, the answer, and the command."""
    order = sorted(fitted.trials, key=lambda trial: trial.tried.batch)
    rows = [
        {
            "batch": str(trial.tried.batch),
            "accum": "" if trial.accum is None else str(trial.accum),
            "memory": size_text(trial.tried.peak_bytes),
            "samples/s": rate_text(trial.tried.samples_per_s),
            "fits": _verdict(trial, fitted.headroom),
        }
        for trial in order
    ]
    right = {"batch", "accum", "memory", "samples/s"}
    lines = [*table(rows, terminal, right), "", *panel(_answer(fitted), terminal)]
    for finding in {one.code: one for trial in reversed(order) for one in trial.observed}.values():  # smallest batch's
        lines += ["", *finding_text(finding, terminal).splitlines()]
    if fitted.command is not None:
        lines += ["", *terminal.lines(_title(fitted.command)), f"  {shlex.join(fitted.command.words)}"]
    lines += [] if fitted.problem is None else ["", *finding_text(fitted.problem, terminal).splitlines()]
    return terminal.page(lines).lstrip("\n")


def _answer(fitted: Fitted) -> list[tuple[str, str]]:
    lines, best, fastest = [], fitted.best, fitted.fastest
    if best is not None:
        free = f"; at least {_percent(fitted.headroom)} stays free" if fitted.headroom and best.limit_bytes else ""
        ends = f"; each has {fitted.most} samples" if fitted.most and best.batch > fitted.most * _NEAR else ""
        lines.append(("largest", f"{best.batch} per process, tried: {_memory(best) or 'memory unknown'}{free}{ends}"))
    if fastest is not None:
        text, most = f"{fastest.batch} per process: {rate_text(fastest.samples_per_s)} samples/s", fastest.samples_per_s
        fits = [trial.tried for trial in fitted.trials if trial.tried.within(fitted.headroom)]
        few = [one.batch for one in fits if one.batch > fastest.batch and (one.samples_per_s or math.inf) > (most or 0)]
        text += f"; too few steps to compare: {listed(sorted(few))}" if few else ""
        lines.append(("rate" if few and len(few) + 1 == len(fits) else "fastest", text))
    elif fitted.most and any(trial.tried.samples_per_s for trial in fitted.trials):
        lines.append(("fastest", "unknown: each batch that was tried leaves fewer than 10 steps in an epoch"))
    model = fitted.model
    if model is not None and model.sample_bytes > 0:
        fixed = size_text(max(0, round(model.fixed_bytes)))
        sure = "" if model.off is None else f"; trials differ from this by {_percent(model.off)} at most"
        lines.append(("memory", f"{fixed} and {size_text(round(model.sample_bytes))} for each sample{sure}"))
    return lines


def _title(command: FitCommand) -> str:
    effective = "" if command.effective is None else f" of {command.effective}"
    return f"{'the same' if command.same else 'an'} effective batch{effective}, {command.batch} per process:"


def _verdict(trial: FitTrial, headroom: float) -> str:
    if trial.tried.ran and trial.tried.within(headroom):
        return f"yes{f', {trial.note}' if trial.note else ''}"
    return f"no: {trial.note or f'less than {_percent(headroom)} free'}"


def _memory(tried: Tried) -> str:
    if tried.peak_bytes is None:
        return ""
    return size_text(tried.peak_bytes) + (f" of {size_text(tried.limit_bytes)}" if tried.limit_bytes else "")


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %" if 0 < part < 0.0995 and round(100 * part, 1) % 1 else f"{100 * part:.0f} %"


def fit_json(fitted: Fitted) -> dict[str, Any]:
    """Return everything as JSON values, schema 2; memory in bytes, ``headroom`` as a fraction."""
    trials = [{**plain(trial), "fits": trial.tried.within(fitted.headroom)} for trial in fitted.trials]
    return {"schema": _SCHEMA, **plain(fitted), "trials": trials}


def never_fits(trial: FitTrial, headroom: float, *, whole: bool) -> Finding:
    """Return the finding that even the smallest batch does not fit; ``whole``: the only one without accumulation."""
    tried = trial.tried
    took = "memory ran out" if not tried.ran else f"it took {_memory(tried)}, and {_percent(headroom)} are to stay free"
    smaller = "smaller inputs or a smaller model, activation checkpointing, or FSDP, which shards weights and optimizer"
    return error(
        "batch-never-fits",
        f"no batch fits: with {count(tried.batch, 'sample')} per process {took}",
        why="the script takes no accumulation, so that this is the only batch for the effective one"
        if whole
        else "this is the smallest batch there is; weights, gradients and optimizer state need the rest",
        fix="a smaller `--global-batch-size`, or more processes" if whole else smaller,
        where=f"trial {trial.run_id}",
    )
