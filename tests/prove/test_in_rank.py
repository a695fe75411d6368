"""What ranks record of gradients and samples with torch, whose import takes as long as a hundred quick tests."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddplaunch.prove.claims import fit, mean

if TYPE_CHECKING:
    import torch

    from ddplaunch.prove.in_rank.batches import KeptBatches
    from ddplaunch.prove.in_rank.sketch import checksum, fingerprints, probed, sketch
    from ddplaunch.prove.in_rank.stand_in import Unsaid

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Only the worker that runs these tests imports it; all of them import this file."""
    global torch, KeptBatches, Unsaid, checksum, fingerprints, probed, sketch
    import torch

    from ddplaunch.prove.in_rank.batches import KeptBatches
    from ddplaunch.prove.in_rank.sketch import checksum, fingerprints, probed, sketch
    from ddplaunch.prove.in_rank.stand_in import Unsaid


@pytest.mark.parametrize("shape", [(), (3,), (64,), (65,), (4093,), (70, 4093), (300, 4096), (0,)])
def test_a_sketch_of_a_mean_is_the_mean_of_sketches(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    combined = fit(sketch((one + other) / 2), mean([sketch(one), sketch(other)]))
    assert combined.residual < 1e-12 or one.numel() == 0
    assert one.numel() <= 1 or fit(sketch(one + 0.01 * other), sketch(one)).residual > 1e-3


#: One process of a run: it never uses its first optimizer, frees its model, and then fails.
RUN = """
import os, weakref
import torch
import ddplaunch.prove.in_rank
ddplaunch.prove.in_rank.begin()
model = torch.nn.Linear(2, 1)
unused, used = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
for _ in range(60):
    used.zero_grad()
    model(torch.ones(4, 2)).mean().backward()
    used.step()
freed = weakref.ref(model.weight)
assert not freed()._backward_hooks
del model, unused, used
assert freed() is None
torch.zeros(3, requires_grad=True).backward()
"""


def test_a_run_is_observed_for_a_while_and_then_left_alone(tmp_path: Path) -> None:
    environ = {**os.environ, "DDPLAUNCH_PROVE": f"3::{tmp_path}", "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run([sys.executable, "-c", RUN], env=environ, capture_output=True, text=True, timeout=300)
    assert done.stderr.rstrip().endswith("grad can be implicitly created only for scalar outputs"), done.stderr
    assert "recorder.py" not in done.stderr, "its line would be named as the cause"
    (path,) = tmp_path.glob("*")
    assert path.name == "rank-000000.proof" and path.stat().st_mode & 0o777 == 0o600
    events = [*map(json.loads, path.read_text().splitlines())]
    assert [event["optimizer"] for event in events] == [1] * 48


def test_samples_are_told_apart() -> None:
    values = torch.randn(4, 3).bfloat16()
    assert len({*fingerprints(["text", {"x": values}])}) == 4
    assert fingerprints(["text", torch.tensor(1.0)]) == []
    assert checksum({"x": values, "name": ["a"]}) == checksum({"x": values.clone(), "name": ["a"]})
    assert checksum((values, "a")) != checksum((values, "b"))


def test_probes_leave_random_numbers_as_they_were() -> None:
    class Noisy(list[int]):
        def __getitem__(self, index: Any) -> Any:
            return index + random.random() + torch.rand(())

    before = torch.get_rng_state(), random.getstate()
    first, again = (probed(Noisy(range(3)), [2, 1], live=live) for live in (True, False))
    assert first["contents"] == again["contents"] and [*first["contents"]] == ["0", "1", "2"]
    assert first["drawn"][0] != first["drawn"][1] and "drawn" not in again
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert probed(iter([1]), [0], live=True) == {}


def _kept(folder: Path, *batches: Any) -> KeptBatches:
    """Return what gives one process the first batch of each rank."""
    for rank, batch in enumerate(batches):
        KeptBatches(folder, rank, replayed=False).keep("0-1-0.pt", batch, [[rank, rank + 10]])
    return KeptBatches(folder, 0, replayed=True)


def test_one_process_gets_the_batches_of_all_ranks(tmp_path: Path) -> None:
    kept = _kept(tmp_path, *({"x": torch.full((2, 3), rank), "pad": 0} for rank in (0, 1)))
    batch = kept.joined("0-1-0.pt", lambda _: None)
    assert batch["x"][:, 0].tolist() == [0, 0, 1, 1] and batch["pad"] == 0
    with pytest.raises(StopIteration):
        kept.joined("0-1-1.pt", list)
    # those that cannot be joined are made again from their indices
    for batches in ([torch.ones(2, 3), torch.ones(2, 4)], [["a"], ["b"]]):
        assert _kept(tmp_path, *batches).joined("0-1-0.pt", list) == [0, 10, 1, 11]


def test_what_only_a_gpu_could_say_is_printed_and_decides_nothing() -> None:
    memory = Unsaid().get_device_properties(0).total_memory
    assert f"{1000 * memory / 1024:.1f} MiB" == "unknown MiB"
    for decide in (bool, int, iter, min, lambda it: it == 8, lambda it: it > 8, lambda it: it[0]):
        with pytest.raises(TypeError):
            decide(memory)
