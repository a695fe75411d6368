"""Claims about the samples and random numbers of each rank, its evaluation and its files.

Passes over a DataLoader were cut after a few steps; the remaining indices of its sampler were recorded too. Scripts
without a DataLoader are judged by the inputs of their models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby

from ddplaunch.prove.claims import ROUNDED, Claim, equal, right, still_open, wrong
from ddplaunch.prove.recording import Event, Recorded
from ddplaunch.values.words import count, listed

_SAMPLES = "samples"
_FEW = 8  # fewer equal samples may be chance
_DRAWN_ONCE = 0.9  # with more repetitions in a rank's part, samples are drawn independently


def sample_claims(recorded: Recorded) -> Iterator[Claim]:
    """Yield claims about samples, epochs, random numbers, evaluation and files."""
    trained = [[one for one in events if one["trains"]] for events in recorded.of("pass")]
    firsts = [events[0] for events in trained if events]
    yield _of_samples(recorded, firsts)
    yield from _of_epochs(trained[0])
    yield from _of_random_numbers(firsts)
    yield from _of_evaluation(recorded)
    yield from _of_files(recorded)


def _of_samples(recorded: Recorded, firsts: Sequence[Event]) -> Claim:
    """Return the claim about how ranks divide the samples; ``firsts`` are their first passes over a DataLoader."""
    world = len(recorded.ranks)
    if len(firsts) == world and all(one["indices"] for one in firsts):
        return _of_parts(firsts)
    if (alike := _inputs_alike(recorded)) is None:
        return still_open(_SAMPLES, "none were seen: no DataLoader with indices, and too few different inputs")
    if alike:
        line = recorded.steps()[0][0]["line"]
        return wrong(_SAMPLES, "data-not-divided", line, samples=f"all {world} ranks train on the same samples")
    return right(_SAMPLES, "the models of all ranks get different samples")


def _inputs_alike(recorded: Recorded) -> bool | None:
    """Return whether the models of all ranks get the same samples at every step; None if that cannot be told."""
    steps = [[tuple(chain(*event["inputs"])) for event in step] for step in recorded.steps()]
    varied = [step for step in steps if all(len({*samples}) > 1 for samples in step)]
    if sum(len(step[0]) for step in varied) < _FEW:
        return None
    return all(len({*step}) == 1 for step in varied)


def _have_one_dataset(firsts: Sequence[Event]) -> bool | None:
    """Return whether ranks have the same samples at the same indices; None if that cannot be told."""
    contents = [one.get("contents") or {} for one in firsts]
    if common := {*contents[0]}.intersection(*contents):
        return all(one[index] == contents[0][index] for one in contents for index in common)
    return None


def _of_parts(firsts: Sequence[Event]) -> Claim:
    """Return the claim about how ranks divide the samples of a pass over a DataLoader."""
    is_one, whole, line, world = _have_one_dataset(firsts), firsts[0].get("samples"), firsts[0]["line"], len(firsts)
    is_complete = bool(whole) and all(one["complete"] for one in firsts)
    parts = [[*one["indices"], *(one["rest"] if is_complete else ())] for one in firsts]
    if is_one is None and len(set(map(tuple, parts))) == 1:
        return still_open(_SAMPLES, "ranks load the same indices, but their datasets cannot be compared")
    if is_one is False:  # samples are told apart by what they contain
        parts = [[one["contents"].get(n, -1) for n in part] for one, part in zip(firsts, parts, strict=True)]
        parts = [[content for content in part if content >= 0] for part in parts]
    batch = max(len(firsts[0]["indices"]) // firsts[0]["given"], 1)
    ranks_of = Counter(chain(*map(set, parts)))
    repeated, total = ranks_of.total() - len(ranks_of), len(ranks_of)
    if len(set(map(tuple, parts))) == 1 and len(parts[0]) >= _FEW:
        samples = f"all {world} ranks train on the same {len(parts[0])} samples"
        return wrong(_SAMPLES, "data-not-divided", line, samples=samples)
    if not is_complete or any(len({*part}) < _DRAWN_ONCE * len(part) for part in parts):
        return right(_SAMPLES, f"{total} were loaded, {repeated} of them by several ranks")
    if is_one and all(len({*part}) > whole - batch for part in parts):
        samples = f"each of {world} ranks trains on all {whole} samples: its DataLoader has a {firsts[0]['sampler']}"
        return wrong(_SAMPLES, "data-not-divided", line, samples=samples)
    if repeated > world * batch:
        samples = f"{repeated} of {total} samples go to several ranks in one epoch"
        return wrong(_SAMPLES, "data-not-divided", line, is_sure=False, samples=samples)
    padded = f", {repeated} of them twice, as padding" if repeated else ""
    of_all = f" of {whole}" if is_one is not False else ""
    return right(_SAMPLES, f"an epoch gives {total}{of_all} samples to {world} ranks{padded}")


def _of_epochs(trained: Sequence[Event]) -> Iterator[Claim]:
    """Yield a claim about the order of the second epoch, if there was one that shuffles."""
    passes = [one["indices"] for one in trained if one["loader"] == trained[0]["loader"]][:2]
    length = min(map(len, passes), default=0)
    if len(passes) < 2 or not trained[0]["shuffle"] or length < _FEW:
        return
    if passes[0][:length] != passes[1][:length]:
        yield right("epochs", "the second one has another order than the first")
    elif trained[0]["sampler"] == "DistributedSampler":
        yield wrong("epochs", "sampler-epoch-not-set", trained[0]["line"])


def _of_random_numbers(firsts: Sequence[Event]) -> Iterator[Claim]:
    """Yield a claim if a sample is random, and ranks draw the same numbers for it."""
    drawn = {tuple(one.get("drawn", ())) for one in firsts}
    if len(drawn) == 1 and len({*drawn.pop()}) > 1:
        yield wrong("random numbers", "random-numbers-alike", firsts[0]["line"])


def _of_evaluation(recorded: Recorded) -> Iterator[Claim]:
    """Yield claims if all ranks evaluate: are their models the same, and their results combined?"""
    for events in zip(*recorded.of("statistics"), strict=False):
        if not equal([event["values"] for event in events], ROUNDED):
            yield wrong("evaluation", "statistics-differ", events[0]["line"])
            break
    evaluated = [[one for one in events if not one["trains"] and one["given"]] for events in recorded.of("pass")]
    firsts = [passes[0] for passes in evaluated if passes]
    parts = [{*one["indices"], *one["rest"]} for one in firsts]
    if len(firsts) < len(evaluated) or not all(parts) or len({one.get("samples") for one in firsts}) > 1:
        return
    if all(part == parts[0] for part in parts):
        yield right("evaluation", f"each rank evaluates the same {len(parts[0])} samples")
        return
    between = [[*group] for _, group in groupby(recorded.ranks[0], lambda event: event["event"] == "step")]
    kinds = {event["event"] for group in between if firsts[0] in group for event in group}
    if "call" in kinds:
        yield right("evaluation", f"each of {count(len(parts), 'rank')} evaluates a part, and the results are combined")
    elif "end" not in kinds:  # else the recorder ended the script there
        yield wrong("evaluation", "evaluation-not-reduced", firsts[0]["line"])


def _of_files(recorded: Recorded) -> Iterator[Claim]:
    """Yield a claim if several ranks write the same file."""
    written = [{event["path"]: event["line"] for event in events} for events in recorded.of("file")]
    ranks_of = Counter(chain(*written))
    if shared := [path for path, ranks in ranks_of.items() if ranks > 1]:
        line = next(lines[shared[0]] for lines in written if shared[0] in lines)
        yield wrong("files", "file-of-all-ranks", line, files=listed(shared))
    elif ranks_of:
        yield right("files", f"{count(len(ranks_of), 'file')}, each written by one rank")
