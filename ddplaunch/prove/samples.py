"""Claims about the samples and random numbers of each rank, its evaluation and its files.

Passes over a DataLoader were cut after a few steps; the remaining indices of its sampler were recorded too. Scripts
without a DataLoader are judged by the inputs of their models.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby

from ddplaunch.prove.claims import ROUNDED, Claim, equal, wrong
from ddplaunch.prove.recording import Event, Recorded
from ddplaunch.values.words import listed

_SAMPLES = "samples"
_FEW = 8  # fewer equal samples may be chance
#: The least part of all samples that ranks without division have in common, but for the rest of a batch; and of a
#: rank's samples that are different, unless it draws them independently.
_MOST = 0.9


def sample_claims(recorded: Recorded) -> Iterator[Claim]:
    """Yield claims about samples, epochs, random numbers, evaluation and files."""
    trained = [[one for one in events if one["trains"]] for events in recorded.of("pass")]
    firsts = [events[0] for events in trained if events]
    yield _of_samples(recorded, firsts)
    yield from _of_epochs(trained[0])
    joins, step = recorded.of("join"), recorded.steps()[0][0]
    batches = [one["batches"] for one in firsts if "batches" in one] or [
        events[0]["made"] if events else "more" for events in joins
    ]
    if len({*batches}) > 1 and (step["stateful"] or not any(joins)):
        yield wrong("epochs", "ranks-run-out", (*firsts, step)[0]["line"], numbers=listed(map(str, batches)))
    made = [*map(len, recorded.of("step"))]
    if max(made) > min(made) + 1 and not any(joins):  # backward passes keep ranks together
        yield wrong("steps", "steps-differ", step["line"], made=made)
    yield from _of_random_numbers(recorded, firsts)
    yield from _of_evaluation(recorded)
    yield from _of_files(recorded)


def _of_samples(recorded: Recorded, firsts: Sequence[Event]) -> Claim:
    """Return the claim about how ranks divide the samples; ``firsts`` are their first passes over a DataLoader."""
    world, line, whole, is_one, spare = len(recorded.ranks), recorded.steps()[0][0]["line"], 0, None, _FEW
    if len(firsts) == world and all(one["indices"] for one in firsts):
        line, contents = firsts[0]["line"], [one.get("contents") or {} for one in firsts]
        if common := {*contents[0]}.intersection(*contents):  # do ranks have the same samples at the same indices?
            is_one = all(one[index] == contents[0][index] for one in contents for index in common)
        whole = min(one.get("samples", 0) if "batches" in one else 0 for one in firsts)
        parts = [[*one["indices"], *(one["rest"] if whole else ())] for one in firsts]
        if is_one is None and len(set(map(tuple, parts))) == 1:
            return Claim(_SAMPLES, "ranks load the same indices, but their datasets cannot be compared")
        used = max(len({*part}) for part in parts) / (whole or 1)
        if is_one is False:  # samples are told apart by what they contain
            parts = [[one[n] for n in part if n in one] for one, part in zip(contents, parts, strict=True)]
            if used < 0.67:  # the sampler divides a rank's own dataset again
                samples = f"ranks have datasets of their own, each trains on {used:.0%} of its own: divided twice"
                return wrong(_SAMPLES, "data-overlaps", line, samples=samples)
        spare = world * (len(firsts[0]["indices"]) // firsts[0]["given"])  # for padding
    else:
        # the epoch of a DataLoader ends after half of the steps
        most = (len(recorded.steps()) + 1) // 2 if firsts else None
        parts = [[*chain(*chain(*(event["inputs"] for event in events[:most])))] for events in recorded.of("step")]
    ranks_of = Counter(chain(*map(set, parts)))
    repeated, total = ranks_of.total() - len(ranks_of), len(ranks_of)
    if total < _FEW:
        return Claim(_SAMPLES, "too few different samples were seen")
    if repeated > _MOST * (world - 1) * total:
        samples = f"all {world} ranks train on the same {total} samples"
        return wrong(_SAMPLES, "data-not-divided", line, samples=samples)
    # else they are drawn independently
    if repeated > spare and all(len({*part}) >= _MOST * len(part) for part in parts):
        samples = f"{repeated} of {total} samples go to several ranks, though hardly any twice to one"
        return wrong(_SAMPLES, "data-overlaps", line, samples=samples)
    return Claim(
        _SAMPLES, f"{world} ranks have {total} different samples, {repeated or 'none'} on several ranks", "right"
    )


def _of_epochs(trained: Sequence[Event]) -> Iterator[Claim]:
    """Yield a claim about the order of the second epoch, if there was one that shuffles."""
    passes = [[*one["indices"], *one["rest"]] for one in trained if one["loader"] == trained[0]["loader"]][:2]
    pairs = [*zip(*passes, strict=False)]
    if len(passes) < 2 or not trained[0]["shuffle"] or len(pairs) < _FEW:
        return
    if all(first == second for first, second in pairs):
        yield wrong("epochs", "sampler-epoch-not-set", trained[0]["line"])
    else:
        yield Claim("epochs", "the second one has another order than the first", "right")


def _of_random_numbers(recorded: Recorded, firsts: Sequence[Event]) -> Iterator[Claim]:
    """Yield a claim if a sample is random, or noise is drawn for each sample of a step, and alike on all ranks."""
    drawn = {tuple(one.get("drawn", ())) for one in firsts}
    if len(drawn) == 1 and len({*drawn.pop()}) > 1:
        yield wrong("random numbers", "random-numbers-alike", firsts[0]["line"])
        return
    for step in recorded.steps():
        # noise for the samples of all ranks, of which each takes a part, has more rows than an input
        sizes = [len(samples) for samples in step[0]["inputs"] if samples]
        if not any(len(one) in sizes and all(one in event["noise"] for event in step) for one in step[0]["noise"]):
            return
    yield wrong("random numbers", "random-numbers-alike", step[0]["line"])


def _of_evaluation(recorded: Recorded) -> Iterator[Claim]:
    """Yield claims if all ranks evaluate: are their models the same, and their results combined?"""
    states = [{event["where"]: event for event in events} for events in recorded.of("state")]
    for where in states[0]:
        if all(where in one for one in states) and not equal([one[where]["values"] for one in states], ROUNDED):
            yield wrong("evaluation", "models-differ", states[0][where]["line"])
            break
    evaluated = [[one for one in events if one["evaluates"] and not one["trains"]] for events in recorded.of("pass")]
    firsts = [passes[0] for passes in evaluated if passes]
    parts = [{*one["indices"], *one["rest"]} for one in firsts]
    if all(part == parts[0] for part in parts):
        return
    between = [[*group] for _, group in groupby(recorded.ranks[0], lambda event: event["event"] == "step")]
    kinds = {event["event"] for group in between if firsts[0] in group for event in group}
    if not kinds & {"call", "end"}:  # neither combined, nor ended there by the recorder
        yield wrong("evaluation", "evaluation-not-reduced", firsts[0]["line"])


def _of_files(recorded: Recorded) -> Iterator[Claim]:
    """Yield a claim if several ranks write the same file."""
    written = [{event["path"]: event["line"] for event in events} for events in recorded.of("file")]
    ranks_of = Counter(chain(*written))
    if shared := [path for path, ranks in ranks_of.items() if ranks > 1]:
        yield wrong("files", "file-of-all-ranks", ChainMap(*written)[shared[0]], files=listed(shared))
