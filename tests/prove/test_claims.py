"""Claims from recordings: sketches tell how gradients relate, and indices how samples are divided."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.prove.answer import proof_json, proof_text
from ddplaunch.prove.claims import Claim, ProofAnswer, mean, wrong
from ddplaunch.prove.gradients import gradient_claims
from ddplaunch.prove.one_process import one_process_claims
from ddplaunch.prove.recording import Recorded, read_recording
from ddplaunch.prove.samples import sample_claims
from ddplaunch.ui.terminal import Terminal

OWN = ([1.0, -2.0, 3.0], [5.0, 0.5, -1.0])
MEAN = mean(OWN)


def step(rank: int, taken: Sequence[float], after: Sequence[float] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the event of a step of one parameter, right but for ``changes``."""
    parameter = {"name": "w", "whole": True, "stale": None, "value": [1.0, 2.0, 3.0]}
    parameter["own"] = parameter["first"] = OWN[rank] if changes.get("passes", True) else None
    parameter |= {"backward": taken if after is None else after, "step": taken}
    made = {"event": "step", "optimizer": 0, "kind": "SGD", "line": "train.py:9", "stateful": False}
    made |= {"settings": [{"lr": 0.1}], "closure": False, "passes": ["train.py:8"], "losses": [[rank, "Loss"]] * 2}
    made |= {"inputs": [[rank, 7]], "noise": [], "weighed": False, "discarded": [], "parameters": [parameter]}
    return {**made, **changes}


def recorded(*ranks: Sequence[dict[str, Any]]) -> Recorded:
    return Recorded(tuple(tuple(events) for events in ranks))


def codes(claims: Sequence[Claim]) -> set[str]:
    return {claim.finding.code for claim in claims if claim.finding is not None}


def times(factor: float) -> list[float]:
    return [factor * value for value in MEAN]


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ((MEAN, MEAN), "right"),
        (OWN, "gradients-not-averaged"),
        ([times(2)] * 2, "open"),
        ([[9.0] * 3] * 2, "open"),
        ([[float("nan")] * 3] * 2, "open"),
    ],
)
def test_the_factor_of_the_mean_says_what_is_wrong(taken: Any, expected: str) -> None:
    claim, *others = gradient_claims(recorded(*([step(rank, taken[rank])] for rank in (0, 1))))
    assert expected == (claim.finding.code if claim.finding else claim.verdict)
    assert [other.verdict for other in others] == ["right"] * (claim.verdict != "wrong")


def test_a_division_after_the_average_is_found_unless_it_is_that_of_accumulation() -> None:
    once = recorded(*([step(rank, times(0.5), MEAN)] for rank in (0, 1)))
    assert codes(list(gradient_claims(once))) == {"gradients-divided-twice"}
    accumulated = recorded(*([step(rank, times(0.5), MEAN, passes=["train.py:8"] * 2)] for rank in (0, 1)))
    assert codes(list(gradient_claims(accumulated))) == set()
    for changes, expected in (({}, {"passes-summed"}), ({"kind": "AdamW"}, set()), ({"losses": [[1.0, "Div"]]}, set())):
        summed = recorded(*([step(rank, MEAN, passes=["train.py:8"] * 2, **changes)] for rank in (0, 1)))
        assert codes(list(gradient_claims(summed))) == expected


def test_gradients_cleared_by_another_line_than_the_steps_own_are_meant() -> None:
    lost = recorded(*([step(rank, MEAN, discarded=["train.py:8"])] for rank in (0, 1)))
    assert codes(list(gradient_claims(lost))) == {"gradients-cleared-early"}
    nothing = recorded(*([step(rank, MEAN, discarded=["train.py:8"], passes=[])] for rank in (0, 1)))
    assert codes(list(gradient_claims(nothing))) == {"gradients-cleared-early"}
    later = recorded(*([step(rank, MEAN), step(rank, MEAN, discarded=["train.py:8"])] for rank in (0, 1)))
    assert codes(list(gradient_claims(later))) == {"gradients-cleared-early"}, "`if step % accum == 0`"
    meant = recorded(*([step(rank, MEAN, discarded=["train.py:30"])] for rank in (0, 1)))
    assert codes(list(gradient_claims(meant))) == set()


def test_ranks_that_step_with_different_numbers_and_replicas_that_differ() -> None:
    for settings in ({"lr": 0.2}, {"lr": 0.1, "weight_decay": "0.1"}):
        steps = [step(0, MEAN, settings=[{"weight_decay": "0", "lr": 0.1}]), step(1, MEAN, settings=[settings])]
        assert codes(list(gradient_claims(recorded(*([one] for one in steps))))) == {"numbers-differ"}
    events = [step(rank, MEAN) for rank in (0, 1)]
    events[1]["parameters"][0]["value"] = [1.0, 2.0, 3.001]
    assert codes(list(gradient_claims(recorded(*([event] for event in events))))) == {"replicas-differ"}
    # parameters that are averaged after each step make up for gradients
    ranks = [[step(rank, OWN[rank]) for _ in range(2)] for rank in (0, 1)]
    assert [claim.verdict for claim in gradient_claims(recorded(*ranks))] == ["open", "right"]


@pytest.mark.parametrize(
    ("own", "changes", "code"),
    [
        (MEAN, {}, None),
        (times(0.5), {}, "differs-from-one-process"),
        ([0.7 * a + 0.3 * b for a, b in zip(*OWN, strict=True)], {}, "ranks-count-alike"),
        ([0.7 * a + 0.3 * b for a, b in zip(*OWN, strict=True)], {"weighed": True}, None),
        (OWN[0], {}, None),  # one process got the samples of rank 0 alone
        (OWN[0], {"loss": 0.5}, "gradient-cut"),  # the mean of the ranks' losses
        (OWN[0], {"taken": times(2)}, "gradients-summed"),
    ],
)
def test_the_gradients_of_one_process(own: list[float], changes: dict[str, Any], code: str | None) -> None:
    single = step(0, own, losses=[[changes.pop("loss", 3.0), ""]] * 2)
    single["parameters"][0] |= {"own": own, "first": own}
    ranks = recorded(*([step(rank, **{"taken": MEAN, **changes})] for rank in (0, 1)))
    assert codes(list(one_process_claims(ranks, recorded([single])))) == ({code} if code else set())


def given(part: list[str], number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the event of a pass over a DataLoader of 16 samples in batches of 2."""
    made = {"event": "pass", "loader": 0, "number": number, "line": "train.py:4"}
    made |= {"shuffle": True, "indices": part[:4], "rest": part[4:], "given": 2, "samples": 16, "batches": 8}
    return {**made, "contents": {"0": 7}, "trains": True, "evaluates": False, **changes}


ALL = [str(number) for number in range(16)]
EVEN, ODD = ALL[::2], ALL[1::2]


@pytest.mark.parametrize(
    ("speed", "scale", "verdict"), [(1, 1, "right"), (1, 2, "right"), (2, 1, "open"), (4, 1, "wrong"), (4, 2, "wrong")]
)
def test_how_fast_a_schedule_goes(speed: int, scale: int, verdict: str) -> None:
    def made(rank: int, number: int, base: float) -> dict[str, Any]:
        return step(rank, MEAN, settings=[{"lr": base * (100 - number), "initial_lr": str(base * 100)}])

    ranks = recorded(*([made(rank, speed * n, scale) for n in range(6)] for rank in (0, 1)))
    *_, rates = one_process_claims(ranks, recorded([made(0, n, 1) for n in range(6)]))
    assert (rates.subject, rates.verdict) == ("rates", verdict)


@pytest.mark.parametrize(
    ("parts", "changes", "expected"),
    [
        ((EVEN, ODD), {}, "right"),
        ((ALL, ALL[::-1]), {"shuffle": False}, "data-not-divided"),
        ((EVEN, [*EVEN[:6], "1", "3"]), {}, "data-overlaps"),
        ((ALL[:10] * 2, ALL[4:14] * 2), {}, "right"),  # drawn with repetition
        ((EVEN[:3], ODD[:3]), {}, "open"),
        ((EVEN, EVEN), {}, "data-not-divided"),
        ((EVEN, EVEN), {"contents": None}, "open"),
    ],
)
def test_how_samples_are_divided(parts: Any, changes: Any, expected: str) -> None:
    claim = next(iter(sample_claims(recorded(*([given(part, **changes), step(0, MEAN)] for part in parts)))))
    assert expected == (claim.verdict if claim.finding is None else claim.finding.code)


@pytest.mark.parametrize(
    ("parts", "first", "expected"),
    [((ALL, ALL), 100, "right"), ((ALL, ALL), 5, "wrong"), ((EVEN, ODD), 100, "wrong")],  # the last divides them again
)
def test_datasets_of_ranks_are_compared_by_what_they_contain(parts: Any, first: int, expected: str) -> None:
    datasets = [{str(n): n + begin for n in range(16)} for begin in (0, first)]
    passes = ([given(part, contents=one), step(0, MEAN)] for part, one in zip(parts, datasets, strict=True))
    assert next(iter(sample_claims(recorded(*passes)))).verdict == expected


@pytest.mark.parametrize(
    ("inputs", "verdict"),
    [
        ((range(8), range(8)), "wrong"),
        ((range(16), range(7, 23)), "wrong"),
        ((range(16), range(14, 30)), "right"),
        (([*range(12)] * 2, [*range(6, 18)] * 2), "right"),  # drawn with repetition
        ((range(4), range(4)), "open"),
    ],
)
def test_samples_without_a_loader_are_compared_by_what_models_get(inputs: Any, verdict: str) -> None:
    ranks = ([step(rank, MEAN, inputs=[[*one]])] for rank, one in enumerate(inputs))
    assert next(iter(sample_claims(recorded(*ranks)))).verdict == verdict


def test_epochs_of_one_order_files_and_random_numbers_of_all_ranks() -> None:
    epochs, others = ([given(part, 1), given(part, 2)] for part in (EVEN, ODD))  # the second ends early
    one = step(0, MEAN)
    assert codes(list(sample_claims(recorded([*epochs, one], [*others, one])))) == {"sampler-epoch-not-set"}
    file = {"event": "file", "path": "model.pt", "line": "train.py:20"}
    shared = recorded([file, given(EVEN), one], [file, given(ODD), one])
    assert codes(list(sample_claims(shared))) == {"file-of-all-ranks"}
    joined, momentum, uneven = [{"event": "join", "made": 1}], step(0, MEAN, stateful=True), {"ranks-run-out"}
    for first, ends, expected in ((one, [], uneven), (one, joined, set()), (momentum, joined, uneven)):
        uneven_ranks = [given(EVEN), first], [given(ODD, batches=7), first, *ends]
        assert codes(list(sample_claims(recorded(*uneven_ranks)))) == expected
        assert codes(list(sample_claims(recorded([first, *ends], [first])))) == (expected if ends else set())
    for drawn, expected in (([11, 12], {"random-numbers-alike"}), ([11, 11], set())):
        ranks = ([given(part, drawn=drawn), one] for part in (EVEN, ODD))
        assert codes(list(sample_claims(recorded(*ranks)))) == expected
    for noise, expected in (([[5, 6]], {"random-numbers-alike"}), ([[5, 6, 7, 8]], set()), ([], set())):
        ranks = ([given(part), step(rank, MEAN, noise=noise)] for rank, part in enumerate((EVEN, ODD)))
        assert codes(list(sample_claims(recorded(*ranks)))) == expected


def test_models_that_evaluate_and_differ() -> None:
    def ranks(where: str, value: float) -> Recorded:
        states = (
            {"event": "state", "line": "", "where": place, "values": [number]}
            for place, number in (("a 1", 1.0), (where, value))
        )
        return recorded(*([given(part), step(0, MEAN), state] for part, state in zip((EVEN, ODD), states, strict=True)))

    assert codes(list(sample_claims(ranks("a 1", 2.0)))) == {"models-differ"}
    assert codes(list(sample_claims(ranks("a 1", 1.0)))) == codes(list(sample_claims(ranks("a 2", 2.0)))) == set()


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank-000010.proof").write_text('{"event": "end"}\n{"eve')
    (tmp_path / "rank-000009.proof").write_text("")
    assert read_recording(tmp_path).ranks == ((), ({"event": "end"},))


def test_the_answer_fits_80_columns_and_says_everything() -> None:
    claims = (
        Claim("gradients", "the mean over 2 ranks at 6 steps, which took a long time to measure, up to 4e-08", "right"),
        Claim("one process", "its gradients cannot be compared with those of the ranks"),
        wrong("files", "file-of-all-ranks", "train.py:20", files="model.pt"),
    )
    text = proof_text(ProofAnswer(claims, 2, 6, 14.2), Terminal())
    assert max(map(len, text.splitlines())) <= 80
    assert text == (
        "right gradients: the mean over 2 ranks at 6 steps, which took a long time to\n"
        "      measure, up to 4e-08\n"
        "open  one process: its gradients cannot be compared with those of the ranks\n"
        "\n"
        "warning[file-of-all-ranks]: several ranks write the same file: model.pt\n"
        "  --> train.py:20\n"
        "  why: they overwrite each other, and the file may end up corrupt\n"
        "  fix: write it on rank 0 only: `if dist.get_rank() == 0:`\n"
        "\n"
        "1 right, 1 open, 1 warning (6 steps of 2 ranks in 14 s)\n"
    )
    answer = json.loads(json.dumps(proof_json(ProofAnswer(claims, 2, 6, 14.2))))
    assert (answer["schema"], answer["wrong"], len(answer["claims"])) == (1, False, 3)
