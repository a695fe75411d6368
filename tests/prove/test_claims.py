"""Claims from recordings: sketches tell how gradients relate, and indices how samples are divided."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ddplaunch.prove.answer import proof_json, proof_text
from ddplaunch.prove.claims import Claim, ProofAnswer, fit, mean, right, still_open, wrong
from ddplaunch.prove.gradients import gradient_claims
from ddplaunch.prove.in_rank.batches import KeptBatches
from ddplaunch.prove.in_rank.sketch import fingerprints, sketch
from ddplaunch.prove.recording import Recorded, read_recording
from ddplaunch.prove.samples import sample_claims
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Severity

OWN = ([1.0, -2.0, 3.0], [5.0, 0.5, -1.0])
MEAN = mean(OWN)


def step(rank: int, taken: Sequence[float], after: Sequence[float] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the event of a step of one parameter, right but for ``changes``."""
    parameter = {"name": "w", "whole": True, "own": OWN[rank], "stale": None, "value": [1.0, 2.0, 3.0]}
    parameter |= {"backward": taken if after is None else after, "step": taken}
    made = {"event": "step", "optimizer": 0, "kind": "SGD", "line": "train.py:9"}
    made |= {"rates": [0.1], "closure": False, "scale": 1.0, "passes": ["train.py:8"], "forwards": 1}
    made |= {"inputs": [[float(rank), 7.0]], "ratios": [1.0], "discarded": [], "parameters": [parameter]}
    return {**made, **changes}


def recorded(*ranks: Sequence[dict[str, Any]]) -> Recorded:
    return Recorded(tuple(tuple(events) for events in ranks))


def codes(claims: Sequence[Claim]) -> set[str]:
    return {claim.finding.code for claim in claims if claim.finding is not None}


def times(factor: float) -> list[float]:
    return [factor * value for value in MEAN]


@pytest.mark.parametrize(
    ("taken", "code"),
    [
        ((MEAN, MEAN), None),
        ((times(2), times(2)), "gradients-summed"),
        ((times(0.5), times(0.5)), "gradients-divided-twice"),
        (OWN, "gradients-not-averaged"),
        (([0.0] * 3, [0.0] * 3), "gradients-cleared-early"),
    ],
)
def test_the_factor_of_the_mean_says_what_is_wrong(taken: Any, code: str | None) -> None:
    claims = list(gradient_claims(recorded(*([step(rank, taken[rank])] for rank in (0, 1)))))
    assert codes(claims) == ({code} if code else set())
    assert code or [claim.verdict for claim in claims] == ["right", "right"]


def test_gradients_that_are_no_multiple_of_the_mean_are_open() -> None:
    claims = list(gradient_claims(recorded(*([step(rank, [9.0, 9.0, 9.0])] for rank in (0, 1)))))
    assert claims[0].verdict == "open" and codes(claims) == set()


def test_a_division_after_the_average_is_found_unless_it_is_that_of_accumulation() -> None:
    once = recorded(*([step(rank, times(0.5), MEAN)] for rank in (0, 1)))
    assert codes(list(gradient_claims(once))) == {"gradients-divided-twice"}
    twice: dict[str, Any] = {"passes": ["train.py:8"] * 2, "forwards": 2, "ratios": [1.0, 1.0]}
    accumulated = recorded(*([step(rank, times(0.5), MEAN, **twice)] for rank in (0, 1)))
    assert codes(list(gradient_claims(accumulated))) == set()


def test_a_loss_that_is_not_divided_by_its_passes_is_a_warning() -> None:
    three: dict[str, Any] = {"passes": ["train.py:8"] * 3, "forwards": 3}
    undivided = recorded(*([step(rank, MEAN, **three, ratios=[1.0] * 3)] for rank in (0, 1)))
    (finding,) = [claim.finding for claim in gradient_claims(undivided) if claim.finding]
    assert (finding.code, finding.severity) == ("gradients-not-divided", Severity.WARNING)
    divided = recorded(*([step(rank, MEAN, **three, ratios=[1 / 3] * 3)] for rank in (0, 1)))
    assert codes(list(gradient_claims(divided))) == set()
    unknown = recorded(*([step(rank, MEAN, **three, ratios=[None] * 3)] for rank in (0, 1)))
    assert codes(list(gradient_claims(unknown))) == set()


def test_gradients_cleared_by_another_line_than_the_steps_own_are_meant() -> None:
    lost = recorded(*([step(rank, MEAN, discarded=["train.py:8"])] for rank in (0, 1)))
    assert codes(list(gradient_claims(lost))) == {"gradients-cleared-early"}
    meant = recorded(*([step(rank, MEAN, discarded=["train.py:30"])] for rank in (0, 1)))
    assert codes(list(gradient_claims(meant))) == set()


def test_rates_and_replicas() -> None:
    rates = recorded(*([step(rank, MEAN, rates=[0.1 + rank])] for rank in (0, 1)))
    assert codes(list(gradient_claims(rates))) == {"numbers-differ"}
    events = [step(rank, MEAN) for rank in (0, 1)]
    events[1]["parameters"][0]["value"] = [1.0, 2.0, 3.001]
    assert codes(list(gradient_claims(recorded(*([event] for event in events))))) == {"replicas-differ"}


def given(indices: list[int], number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the event of a pass over a DataLoader of 16 samples in batches of 2."""
    made = {"event": "pass", "loader": 0, "number": number, "line": "train.py:4", "sampler": "DistributedSampler"}
    made |= {"shuffle": True, "indices": indices[:4], "rest": indices[4:], "given": 2, "drawn": [], "samples": 16}
    return {**made, "trains": True, "complete": True, **changes}


EVEN, ODD = list(range(0, 16, 2)), list(range(1, 16, 2))


@pytest.mark.parametrize(
    ("parts", "changes", "expected"),
    [
        ((EVEN, ODD), {}, set()),
        ((list(range(16)), list(range(16))[::-1]), {"sampler": "RandomSampler"}, {"data-not-divided"}),
        ((EVEN, [*EVEN[:6], 1, 3]), {}, {"data-not-divided"}),
        ((EVEN, EVEN), {}, set()),  # the models get different values: each rank may have a dataset of its own
    ],
)
def test_how_samples_are_divided(parts: Any, changes: Any, expected: set[str]) -> None:
    steps = [[step(rank, MEAN, inputs=[[rank + n / 10 for n in range(8)]])] for rank in (0, 1)]
    ranks = [[given(part, **changes), *events] for part, events in zip(parts, steps, strict=True)]
    assert codes(list(sample_claims(recorded(*ranks)))) == expected


def test_the_same_values_on_all_ranks_are_the_same_samples() -> None:
    inputs = [[n / 10 for n in range(8)]]
    alike = recorded(*([given(EVEN), step(rank, MEAN, inputs=inputs)] for rank in (0, 1)))
    assert codes(list(sample_claims(alike))) == {"data-not-divided"}
    without_loader = recorded(*([step(rank, MEAN, inputs=inputs)] for rank in (0, 1)))
    assert codes(list(sample_claims(without_loader))) == {"data-not-divided"}


def test_epochs_of_one_order_files_and_random_numbers_of_all_ranks() -> None:
    orders = list(range(16))
    epochs = [{**given(orders, n), "indices": orders[:8], "rest": []} for n in (1, 2)]
    assert codes(list(sample_claims(recorded(epochs, epochs)))) == {"sampler-epoch-not-set"}
    file = {"event": "file", "path": "model.pt", "line": "train.py:20"}
    assert codes(list(sample_claims(recorded([file, given(EVEN)], [file, given(ODD)])))) == {"file-of-all-ranks"}
    drawn = [given(part, drawn=[[], [11], [12]]) for part in (EVEN, ODD)]
    assert codes(list(sample_claims(recorded(*([one] for one in drawn))))) == {"random-numbers-alike"}


@pytest.mark.parametrize("shape", [(), (3,), (64,), (65,), (4093,), (70, 4093), (300, 4096), (0,)])
def test_a_sketch_of_a_mean_is_the_mean_of_sketches(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    combined = fit(sketch((one + other) / 2), mean([sketch(one), sketch(other)]))
    assert combined.residual < 1e-12 or one.numel() == 0
    assert one.numel() <= 1 or fit(sketch(one + 0.01 * other), sketch(one)).residual > 1e-3


def test_samples_are_told_apart() -> None:
    values = torch.randn(4, 3)
    assert len({*fingerprints(["text", {"x": values}])}) == 4
    assert fingerprints(["text", torch.tensor(1.0)]) == []


def _batch(rank: int) -> dict[str, Any]:
    return {"x": torch.full((2, 3), rank), "names": [f"a{rank}", f"b{rank}"]}


def test_one_process_gets_the_batches_of_all_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        kept = KeptBatches(tmp_path, rank, replayed=False, seed=None)
        kept.next(0, 1, 0, partial(_batch, rank))
    replayed = KeptBatches(tmp_path, 0, replayed=True, seed=None)
    batch = replayed.next(0, 1, 0, lambda: pytest.fail("it has batches of its own"))
    assert batch["x"][:, 0].tolist() == [0, 0, 1, 1] and batch["names"] == ["a0", "b0", "a1", "b1"]
    with pytest.raises(StopIteration):
        replayed.next(0, 1, 1, lambda: None)


def test_batches_that_cannot_be_joined_are_refused(tmp_path: Path) -> None:
    for rank in (0, 1):
        KeptBatches(tmp_path, rank, replayed=False, seed=None).next(0, 1, 0, partial(torch.ones, 2, 3 + rank))
    with pytest.raises(ValueError, match="batches of 2 ranks cannot be joined: Tensor"):
        KeptBatches(tmp_path, 0, replayed=True, seed=None).next(0, 1, 0, lambda: None)


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank-10.jsonl").write_text('{"event": "end"}\n{"eve')
    (tmp_path / "rank-9.jsonl").write_text("")
    assert read_recording(tmp_path).ranks == ((), ({"event": "end"},))


def test_the_answer_fits_80_columns_and_says_everything() -> None:
    claims = (
        right("gradients", "the mean over 2 ranks at 6 steps, each summed over 3 backward passes, up to 4e-08"),
        still_open("one process", "its gradients cannot be compared with those of the ranks"),
        wrong("files", "file-of-all-ranks", "train.py:20", files="model.pt"),
    )
    text = proof_text(ProofAnswer(claims, (), 2, 6, 14.2), Terminal())
    assert max(map(len, text.splitlines())) <= 80
    assert text == (
        "right gradients: the mean over 2 ranks at 6 steps, each summed over 3 backward\n"
        "      passes, up to 4e-08\n"
        "open  one process: its gradients cannot be compared with those of the ranks\n"
        "\n"
        "warning[file-of-all-ranks]: several ranks write the same file: model.pt\n"
        "  --> train.py:20\n"
        "  why: they overwrite each other, and the file may end up corrupt\n"
        "  fix: write it on rank 0 only: `if dist.get_rank() == 0:`\n"
        "\n"
        "1 right, 1 open, 1 warning (6 steps of 2 ranks in 14 s)\n"
    )
    answer = json.loads(json.dumps(proof_json(ProofAnswer(claims, (), 2, 6, 14.2))))
    assert (answer["schema"], answer["wrong"], len(answer["claims"])) == (1, False, 3)
