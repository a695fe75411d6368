"""Compares ranks' notes on their first optimizer steps with the plan, and returns the differences as findings.

``agent/rank_site/ddplaunch_observer.py`` writes the notes. Only certain differences are reported: not a learning rate
that the script's own schedule may have changed, or a batch that may be from another DataLoader.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ddplaunch.explain.diagnosis import LogSource
from ddplaunch.machine.files import read_end
from ddplaunch.records.directory import note_path
from ddplaunch.records.find import read_run
from ddplaunch.records.json_files import objects, read_object
from ddplaunch.records.log_files import LOSS
from ddplaunch.values.finding import Finding, warning
from ddplaunch.values.variable_names import PLAN
from ddplaunch.values.words import count, ranks_text
from ddplaunch.watch.phases import read_phases
from ddplaunch.watch.sharing import (
    Note,
    Plan,
    apart,
    group,
    on_cpu,
    rates_apart,
    replicas,
    same_gpu,
    same_order,
    unaveraged,
    undivided,
)

#: A rule: takes the notes of a node, its number of ranks, and the plan; yields findings.
Family = Callable[[Sequence[Note], int, Plan], Iterator[Finding]]

_CLOSE = 1e-4  # relative, for rates: scripts may compute them in another order
_BATCHES = ("batch_size", "node_batch_size", "total_batch_size", "step_batch_size", "global_batch_size")
_OF = {"total": ", the world size", "node": ", the processes per node"}  # how the reason of such a batch ends
_WARMUPS = ("warmup_steps", "warmup_epochs", "warmup_ratio")
_FEW_STEPS = 2
_FEW_RATES = 4
_FEW_PASSES = 4  # a loop may call backward() for two or three losses


def read_notes(attempt: Path, ranks: Sequence[int]) -> list[Note]:
    """Return the notes of those ``ranks`` that wrote one, ordered by rank."""
    notes: list[Note] = []
    for rank in sorted(ranks):
        with suppress(OSError, ValueError):
            value = read_object(note_path(attempt, rank))
            if value.get("rank") == rank:
                notes.append(value)
    return notes


class Observed(NamedTuple):
    """The findings from an attempt's notes so far; ``over`` if the ranks will write no more notes."""

    findings: tuple[Finding, ...]
    over: bool


def look(attempt: str, ranks: Sequence[int], environ: Mapping[str, str], ignored: Collection[str] = ()) -> Observed:
    """Compare the notes of ``ranks`` in the folder ``attempt`` with the plan in the launch's ``environ``."""
    notes = read_notes(Path(attempt), ranks)
    if not notes:
        return Observed((), False)
    node = Path(attempt).parent
    run = read_run(node.parent, int(node.name.removeprefix("node-")))
    findings = differences(notes, len(ranks), {**plan_of(environ), **_ways(run)})
    # findings that the script's source gave already are in the record
    known_codes = {*ignored, *(finding.get("code") for finding in objects(run.get("findings")))}
    new = tuple(finding for finding in findings if finding.code not in known_codes)
    return Observed(new, len(notes) == len(ranks) and all(note.get("over") is True for note in notes))


def losses(attempt: str) -> Iterator[Finding]:
    """Yield a warning if the last losses of rank 0 in the folder ``attempt`` are not finite.

    With ``--phases`` it names the ranks whose gradients were the first.
    """
    from ddplaunch.explain.explain_logs import explain_texts

    for path in Path(attempt).glob("rank-0.???"):
        printed = LOSS.findall(read_end(path, 16_384))
        if printed and not math.isfinite(float(printed[-1])):  # only then all of it is read
            since = {
                rank: file.facts.get("not_finite_since") or math.inf
                for rank, file in read_phases(Path(attempt)).items()
            }
            first = min(since.values(), default=0)
            ranks = [rank for rank, step in since.items() if step == first]
            named = f"{ranks_text(ranks)} had the first gradients that are no numbers, in step {first}; "
            if len(ranks) == len(since):  # later all have them, by the weights that they share
                named = ""
            for finding in explain_texts([LogSource(path.name, path)]).warnings:
                yield replace(finding, why=named + finding.why)


def _ways(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return how each number reached the script: ``passed`` with its ``option``, or ``missing`` if it could not."""
    plan = run.get("plan", {})
    passed = {
        str(number.get("number")): {**number, "option": str(number["arguments"][0]).partition("=")[0]}
        for number in objects(plan.get("passed"))
        if isinstance(number.get("arguments"), list) and number["arguments"]
    }
    return {
        "device": plan.get("device"),
        "passed": passed,
        "missing": {str(number.get("number")): number for number in objects(plan.get("missing"))},
    }


def _read(plan: Plan, numbers: Collection[str]) -> tuple[str, str, tuple[str, ...]]:
    """Return the option passed for one of ``numbers``, a clause on how it was understood, and the line that says so."""
    passed = next((entry for number, entry in plan.get("passed", {}).items() if number in numbers), None)
    if passed is None:
        return "", "", ()
    note, at = str(passed.get("note") or ""), passed.get("at") or {}
    line = re.match(r"(?:.*: )?(\S+:\d+) ", note)
    place = line[1] if line else f"{at['file']}:{at['line']}" if at.get("line") else ""
    understood = f"; `{' '.join(passed['arguments'])}` was passed ({note})" if note else ""
    return passed["option"], understood, (place,) if place else ()


def _not_passed(number: str, what: str, own_option: str, plan: Plan) -> Finding | None:
    """Return the finding ``what`` with the reason why the script did not get the number; None if it did."""
    missing = plan.get("missing", {}).get(number)
    if missing is None:
        return None
    own_is_meant = f"if its own is meant, `{own_option}` says so to the plan"
    why = f"it was not passed: {missing['reason']}"
    place = re.search(r"\S+:\d+", missing["reason"])
    fix = f"{missing['fix']}; {own_is_meant}" if missing["fix"] else own_is_meant
    return warning("numbers-differ", what, why=why, fix=fix, where=place[0].strip("()") if place else ())


def plan_of(environ: Mapping[str, str]) -> Plan:
    """Return the numbers of the launch as its ranks get them; empty without any."""
    with suppress(ValueError):
        if isinstance(value := json.loads(environ.get(PLAN) or "{}"), dict):
            return value
    return {}


def differences(notes: Sequence[Note], ranks: int, plan: Plan) -> tuple[Finding, ...]:
    """Return the differences to the plan in the ``notes`` of a node with this number of ``ranks``. Never raises."""
    findings = list[Finding]()
    for family in (
        apart,
        unaveraged,
        group,
        on_cpu,
        same_gpu,
        replicas,
        rates_apart,
        _each(_rate, "lr"),
        _each(_batch, "batch_size"),
        _each(_accumulated, "accum"),
        _each(_warmup, "warmup_steps"),
        undivided,
        same_order,
    ):
        # a note may be of another version, or changed by the script
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            findings += family(notes, ranks, plan)
    return tuple(findings)


class _Rate(NamedTuple):
    """A learning rate before any schedule; ``sure`` if a scheduler stored it in the optimizer."""

    value: float
    sure: bool


def _rate(note: Note, plan: Plan) -> Finding | None:
    """Return the finding that the learning rate is not the planned one, or None."""
    planned = float(plan["lr"])
    rates = [
        rate for one in note["optimizers"] for name in ("lr", "initial_lr", "max_lr") for rate in one[name] if rate
    ]
    bases = [base for one in note["optimizers"] for base in _bases(one)]
    if not bases or None in bases or any(_alike(rate, planned) for rate in rates):
        return None
    first = bases[0]
    assert first is not None
    ratio = first.value / planned
    if ratio < 1 and any(map(_may_rise, note["optimizers"])):
        return None
    reason = _reason(ratio, plan)
    if not reason and (first.value == 1 or (ratio < 1 and not first.sure)):
        return None  # a schedule that sets the rate itself, or a warmup written by the script
    what = f"the optimizer runs at lr {_text(first.value)}, the plan says {_text(planned)}"
    if any(one.get("restored") is True for one in note["optimizers"]):
        return warning(
            "numbers-differ",
            f"{what} (the rate of the checkpoint)",
            why="`optimizer.load_state_dict` brings the rate of the run that saved it, whatever the script was given",
            fix='after it, `for group in optimizer.param_groups: group["lr"] = RATE`, and `initial_lr` too if there '
            "is a scheduler",
        )
    if not_passed := _not_passed("lr", what, f"--lr {_text(first.value)}", plan):
        return not_passed
    option, understood, place = _read(plan, ("lr",))
    fix = "put `{lr}` where the script's arguments have its rate; if its own is meant, "
    fix += f"`--lr {_text(first.value)}` says so to the plan"
    if reason:
        fix = f"take the factor out of the script, or `--lr {_text(planned / ratio)}`, of which it makes "
        fix += _text(planned)
    if reason and understood and _sizes(note) == {ratio * plan.get("batch_size", 0)}:
        fix = "put the batch right: the script makes the rate from it"
    elif reason and option and _alike(ratio, float(plan.get("lr_factor") or 1)):
        fix = f"`--lr-option={option}:base`, as the script scales it itself; or take the factor out of it"
    return warning(
        "numbers-differ",
        f"{what} ({reason})" if reason else what,
        why="the script trains with a rate of its own default or scaling, not with the one that belongs to the "
        f"effective batch in the panel{understood}",
        fix=fix,
        where=place,
    )


def _may_rise(optimizer: Note) -> bool:
    """Return whether a scheduler begins at its lowest rate, as CyclicLR does; True too until a second step shows it."""
    scheduled = any(optimizer["initial_lr"]) and not any(optimizer["max_lr"])
    return scheduled and (optimizer.get("rises") is True or optimizer["steps"] == 1)


def _bases(optimizer: Note) -> Iterator[_Rate | None]:
    """Yield the rate of each parameter group before any schedule, None if it cannot be known."""
    for rate, initial, most in zip(optimizer["lr"], optimizer["initial_lr"], optimizer["max_lr"], strict=True):
        if scheduled := most or initial:
            yield _Rate(scheduled, True)
        elif rate and optimizer["steady"] and optimizer["steps"] > 1:
            yield _Rate(rate, False)
        else:
            yield None


def _reason(ratio: float, plan: Plan) -> str:
    """Return the number of the plan that explains ``ratio``, as in "× 4, the world size"; "" if none does."""
    for key, name in (("world_size", "world size"), ("accum", "accumulation"), ("nproc", "processes per node")):
        number = float(plan.get(key) or 1)
        ways = ((number, "×", "the"), (1 / number, "/", "the"), (math.sqrt(number), "× √", "the root of the"))
        for factor, sign, words in ways if number != 1 else ():
            if _alike(ratio, factor):
                return f"{sign}{'' if sign[-1] == '√' else ' '}{_text(number)}, {words} {name}"
    return ""


def _batch(note: Note, plan: Plan) -> Finding | None:
    """Return the finding that a rank's batch is not the planned one, or None."""
    sizes, planned = _sizes(note), int(plan["batch_size"])
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None or size == planned:
        return None
    if size * (_batches_per_step(note) or 1) == planned * int(plan.get("accum") or 1):
        return None  # the script splits each batch
    what = f"each rank loads {count(size, 'sample')} at a time, the plan says {planned}"
    if not_passed := _not_passed("batch_size", what, f"--batch-size {size}", plan):
        return not_passed
    option, understood, place = _read(plan, _BATCHES)
    reason = _reason(size / planned, plan)
    whose = next((owner for owner in ("total", "node") if reason.endswith(_OF[owner])), "")
    fix = "put `{batch_size}` where the script's arguments have its batch; if its own is meant, "
    fix += f"`--batch-size {size}` says so to the plan"
    if whose and size < planned:
        fix = f"give the script what it divides, {planned * planned // size}"
        if option and "batch_size" in plan["passed"]:
            fix = f"`--batch-option={option}:{whose}`, as the script divides it itself"
    elif whose and size > planned:
        fix = f"give the script the batch of one rank, {planned}, where it does not multiply it"
        if whose == "total":
            fix += "; nothing, if each rank takes its part of them"
        if option and "batch_size" not in plan["passed"]:
            fix = f"`--batch-option={option}:rank`, as the script takes it for the batch of one rank"
    return warning(
        "numbers-differ",
        f"{what} ({reason})" if whose else what,
        why=f"the effective batch in the panel, for which the learning rate was scaled, is not what trains{understood}",
        fix=fix,
        where=place,
    )


def _sizes(note: Note) -> set[int | None]:
    """Return the batch sizes of the DataLoaders."""
    return {loader["batch_size"] for loader in note["loaders"]}


def _batches_per_step(note: Note, planned: int = 0) -> int | None:
    """Return how many batches went into each optimizer step, the smallest number seen; None if it cannot be known.

    A number other than ``planned`` needs several steps that agree: a loader that fetches ahead takes more batches in
    the first step, and the last step of an epoch takes the remaining ones.
    """
    batches = [number for loader in note["loaders"] for step, number in loader["batches"] if step > 1]
    least = min(batches, default=None)
    if least is None or not planned or planned in batches:
        return planned if planned in batches else least
    total = max(sum(number for _, number in loader["batches"]) for loader in note["loaders"])
    fetched_ahead = least < planned and (len({*batches}) > 1 or total >= planned * note["steps"])
    return None if len(batches) < _FEW_STEPS or fetched_ahead else least


def _accumulated(note: Note, plan: Plan) -> Finding | None:
    """Return the finding that the accumulation is not the planned one, or None."""
    planned = int(plan["accum"])
    batches, passes = _batches_per_step(note, planned), [number for number in note["passes"] or () if number]
    if batches is not None:
        pace, what = batches, "batch"
    elif len(note["optimizers"]) == 1 and passes:
        pace, what = min(passes), "backward pass"
        if pace > planned and (pace < _FEW_PASSES or len(passes) < _FEW_STEPS):
            return None
    else:
        return None
    if pace == planned or any(size and size * pace == plan["batch_size"] * planned for size in _sizes(note)):
        return None
    moment = f"after every {what}" if pace == 1 else f"after {count(pace, what)}"
    world, (_, understood, place) = int(plan.get("world_size") or 1), _read(plan, ("accum", "total_accum"))
    fix = "put `{accum}` where the script's arguments have its accumulation; if its own is meant, "
    fix += f"`--accum {pace}` says so to the plan"
    if pace * world == planned:
        fix = f"give the script {planned * world}, if it divides that by the world size; else {fix}"
    difference = f"the optimizer steps {moment}, the plan says after {planned} (accumulation)"
    if not_passed := _not_passed("accum", difference, f"--accum {pace}", plan):
        return not_passed
    times = f"{_text(pace / planned)} times" if pace > planned else f"1/{_text(planned / pace)} of"
    return warning(
        "numbers-differ",
        difference,
        why=f"the effective batch is {times} the one in the panel, for which the learning rate was scaled{understood}",
        fix=fix,
        where=place,
    )


def _warmup(note: Note, plan: Plan) -> Finding | None:
    """Return the finding that a passed warmup never begins, or ends at another step than planned, or None.

    The end differs if the schedule is not stepped with the optimizer. Judged only if the first rates are equal, or rise
    by equal amounts, which shows after how many steps the full rate is reached.
    """
    planned, optimizer = int(plan["warmup_steps"]), note["optimizers"][0]
    rates, full = optimizer["rates"], optimizer["initial_lr"][0] or plan.get("lr")
    if len(rates) < _FEW_RATES or planned <= len(rates) or not full or optimizer["restored"]:
        return None
    if "warmup_steps" in plan["missing"] or optimizer["max_lr"][0]:
        return None  # the plan reported it; a cyclic schedule has its own warmup
    option, understood, place = _read(plan, _WARMUPS)
    rises = [after - before for before, after in pairwise(rates)]
    if all(_alike(rate, full) for rate in rates):
        what = f"the learning rate is {_text(full)} from the first step, the plan says {planned} warmup steps"
        why = "the script's schedule has no warmup, or does not read this one"
        fix = "choose a schedule of the script that has one, or leave the warmup out of the command line"
    elif min(rises) > 0 and _alike(min(rises), max(rises)):
        steps = round((full - rates[0]) / rises[0])
        reasons = {number: _reason(number / planned, plan) for number in (steps, steps + 1)}
        steps, reason = next((item for item in reasons.items() if item[1]), (steps, ""))
        if not reason or planned in reasons:
            return None
        what = f"the learning rate rises as in a warmup of {steps} steps, the plan says {planned} ({reason})"
        why = "the script does not step its schedule once with each step of the optimizer"
        fix = f"without a warmup in ddplaunch's options, `{option or 'its option'} {planned * planned // steps}` "
        fix += "after the script's name"
    else:
        return None
    return warning("numbers-differ", what, why=f"{why}{understood}", fix=fix, where=place)


def _each(judge: Callable[[Note, Plan], Finding | None], number: str) -> Family:
    """Return a rule that judges each rank alone if the plan contains ``number``; each finding once, with its ranks."""

    def family(notes: Sequence[Note], _: int, plan: Plan) -> Iterator[Finding]:
        ranks_by_finding: dict[Finding, list[int]] = {}
        for note in notes if plan.get(number) is not None else ():
            if (one := judge(note, plan)) is not None:
                ranks_by_finding.setdefault(one, []).append(note["rank"])
        for one, ranks in ranks_by_finding.items():
            some = () if len(ranks) == len(notes) else tuple(f"rank {rank}" for rank in ranks)
            yield replace(one, where=(*one.where, *some))

    return family


def _alike(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_CLOSE)


def _text(number: float) -> str:
    return f"{number:.6g}"
