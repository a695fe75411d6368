"""Claims about the samples and random numbers of each rank, its evaluation and its files.

Passes over a DataLoader were cut after a few steps; the remaining indices of its sampler were recorded too. Scripts
without a DataLoader are judged by the inputs of their models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from ddplaunch.prove.claims import Claim, right, still_open, wrong
from ddplaunch.prove.recording import Event, Recorded
from ddplaunch.values.words import count, listed

_SAMPLES = "samples"
_FEW = 8  # fewer equal samples may be chance


def sample_claims(recorded: Recorded) -> Iterator[Claim]:
    """Yield claims about samples, epochs, random numbers, evaluation and files."""
    trained = [[one for one in events if one["trains"]] for events in recorded.of("pass")]
    yield _of_samples(recorded, [events[0] for events in trained if events])
    yield from _of_epochs(trained[0])
    yield from _of_random_numbers(trained)
    yield from _of_evaluation(recorded)
    yield from _of_files(recorded)


def _of_samples(recorded: Recorded, firsts: Sequence[Event]) -> Claim:
    """Return the claim about how ranks divide the samples; ``firsts`` are their first passes over a DataLoader."""
    alike, world = _inputs_alike(recorded), len(recorded.ranks)
    if len(firsts) == world and all(one["indices"] for one in firsts):
        return _of_indices(firsts, alike)
    if alike is None:
        return still_open(_SAMPLES, "none were seen: no DataLoader with indices, and too few different inputs")
    if alike:
        line = recorded.first("step")["line"]
        return wrong(_SAMPLES, "data-not-divided", line, samples=f"all {world} ranks train on the same samples")
    return right(_SAMPLES, "the models of all ranks get different samples")


def _inputs_alike(recorded: Recorded) -> bool | None:
    """Return whether the models of all ranks get the same samples at every step; None if that cannot be told."""
    steps = [[tuple(chain(*event["inputs"])) for event in step] for step in recorded.steps()]
    varied = [step for step in steps if all(len({*samples}) > 1 for samples in step)]
    if sum(len(step[0]) for step in varied) < _FEW:
        return None
    return all(len({*step}) == 1 for step in varied)


def _of_indices(firsts: Sequence[Event], alike: bool | None) -> Claim:
    """Return the claim about how ranks divide the samples of a pass over a DataLoader."""
    whole, line, world = firsts[0].get("samples"), firsts[0]["line"], len(firsts)
    is_complete = all(one["complete"] and one.get("samples") == whole for one in firsts) and bool(whole)
    parts = [[*one["indices"], *(one["rest"] if is_complete else ())] for one in firsts]
    if len({tuple(part) for part in parts}) == 1 and len(parts[0]) >= _FEW:
        if alike:
            samples = f"all {world} ranks train on the same {len(parts[0])} samples"
            return wrong(_SAMPLES, "data-not-divided", line, samples=samples)
        return still_open(
            _SAMPLES,
            "ranks load the same indices, but no equal inputs were seen: each rank may have a "
            "dataset of its own, or augment the same samples in its own way",
        )
    ranks_of = Counter(chain(*map(set, parts)))
    repeated, batch = sum(ranks_of.values()) - len(ranks_of), max(len(firsts[0]["indices"]) // firsts[0]["given"], 1)
    if not is_complete:
        return right(
            _SAMPLES, f"{len(ranks_of)} were loaded, {sum(n > 1 for n in ranks_of.values())} of them by several ranks"
        )
    if all(len({*part}) > whole - batch for part in parts) and alike is not None:
        samples = f"each of {world} ranks trains on all {whole} samples: its DataLoader has a {firsts[0]['sampler']}"
        return wrong(_SAMPLES, "data-not-divided", line, samples=samples)
    if repeated > world * batch:
        samples = f"{repeated} of {whole} samples go to several ranks in one epoch"
        return wrong(_SAMPLES, "data-not-divided", line, is_sure=False, samples=samples)
    padded = f", {repeated} of them twice, as padding" if repeated else ""
    return right(_SAMPLES, f"an epoch gives {len(ranks_of)} of {whole} samples to {world} ranks{padded}")


def _of_epochs(trained: Sequence[Event]) -> Iterator[Claim]:
    """Yield a claim about the order of the second epoch, if there was one that shuffles."""
    passes = [one for one in trained if one["loader"] == trained[0]["loader"]][:2]
    length = min((len(one["indices"]) for one in passes), default=0)
    if len(passes) < 2 or not passes[0]["shuffle"] or length < _FEW:
        return
    if passes[0]["indices"][:length] != passes[1]["indices"][:length]:
        yield right("epochs", "the second one has another order than the first")
    elif passes[0]["sampler"] == "DistributedSampler":
        yield wrong("epochs", "sampler-epoch-not-set", passes[0]["line"])
    else:
        yield still_open("epochs", "the second one has the same order as the first")


def _of_random_numbers(trained: Sequence[Sequence[Event]]) -> Iterator[Claim]:
    """Yield a claim if datasets draw the same random numbers on all ranks."""
    drawn = [list(chain(*(one["drawn"] for one in events))) for events in trained]
    batches = [states for states in zip(*drawn, strict=False) if all(states)]
    if len(batches) > 1 and all(states[0] == state for states in batches for state in states):
        yield wrong("random numbers", "random-numbers-alike", trained[0][0]["line"])


def _of_evaluation(recorded: Recorded) -> Iterator[Claim]:
    """Yield a claim about who evaluates, and whether the results of the ranks' parts are combined."""
    evaluated = [[one for one in events if not one["trains"] and one["given"]] for events in recorded.of("pass")]
    alone = [rank for rank, passes in enumerate(evaluated) if passes]
    if len(alone) < len(evaluated):
        if alone:
            yield right("evaluation", f"only rank {listed(alone)} evaluates")
        return
    firsts = [passes[0] for passes in evaluated]
    parts = [{*one["indices"], *one["rest"]} for one in firsts]
    if not all(parts) or len({one.get("samples") for one in firsts}) > 1:
        return
    if all(part == parts[0] for part in parts):
        yield right("evaluation", f"each rank evaluates the same {len(parts[0])} samples")
        return
    events = recorded.ranks[0]
    at, kinds = events.index(firsts[0]), [event["event"] for event in events]
    before = next((n for n in range(at, -1, -1) if kinds[n] == "step"), 0)
    after = next((n for n in range(at, len(events)) if kinds[n] == "step"), len(events))
    if "call" in kinds[before:after]:
        yield right("evaluation", f"each of {count(len(parts), 'rank')} evaluates a part, and the results are combined")
    elif "end" not in kinds[at:after]:  # else the recorder ended the script there
        yield wrong("evaluation", "evaluation-not-reduced", firsts[0]["line"])


def _of_files(recorded: Recorded) -> Iterator[Claim]:
    """Yield a claim if several ranks write the same file."""
    written = [{event["path"]: event["line"] for event in events} for events in recorded.of("file")]
    ranks_of = Counter(chain(*written))
    shared = [path for path, ranks in ranks_of.items() if ranks > 1]
    if shared:
        line = next(lines[shared[0]] for lines in written if shared[0] in lines)
        yield wrong("files", "file-of-all-ranks", line, files=listed(shared))
    elif ranks_of:
        yield right("files", f"{count(len(ranks_of), 'file')}, each written by one rank")
