"""One proof: its trials, one after the other, and what they ask the recorder in their ranks for.

The first trial is the launch as it is. The second is one process that gets the samples of all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from ddplaunch.planning.launch import Launch
from ddplaunch.planning.options import Said
from ddplaunch.prove.claims import Claim, ProofAnswer
from ddplaunch.prove.gradients import gradient_claims
from ddplaunch.prove.in_rank import RANKS, VARIABLE
from ddplaunch.prove.one_process import one_process_claims
from ddplaunch.prove.recording import Recorded, read_recording
from ddplaunch.prove.samples import sample_claims
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Resolved, Source

ALONE = "one-process"
#: The source of flags that a proof sets.
OWN = Source("flag", "prove")
#: One trial: how its run id ends, the number of its processes, and the flags of its launch.
Part = tuple[str, int, Said]


class Proof:
    """The trials of one proof, and what their ranks recorded."""

    def __init__(self, launch: Launch, said: Said, steps: int | None) -> None:
        """``said`` are the flags of ``launch``; each trial makes ``steps`` steps [6]."""
        self._launch, self._said, self._steps = launch, said, steps or 6
        self._world = launch.topology.world_size
        self._began_s = time.monotonic()
        self._recorded: dict[str, Recorded] = {}

    def parts(self, base: Path) -> Iterator[Part]:
        """Yield each trial; ``ended`` has to be called after it. Ranks write to ``base``. Raises OSError."""
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryDirectory(prefix="prove-", dir=base.absolute(), ignore_cleanup_errors=True) as folder:
            self._folder = Path(folder)
            yield self._part(RANKS, self._world, self._said)
            if self._world == 1 or not self._recorded[RANKS].steps():
                return
            alone = {name: value for name, value in self._said.items() if name != "gpus"}
            if (batch := self._launch.numbers.batch_size) and "batch_size" in alone:
                alone["batch_size"] = Resolved(str(batch.value * self._world), OWN)
            yield self._part(ALONE, 1, alone)

    def _part(self, name: str, ranks: int, said: Said) -> Part:
        self._name = name
        (self._folder / name).mkdir()
        device = self._launch.device
        gpus = self._world * (device.value == "cpu" and device.source.kind == "detected")
        asked = f"{self._steps}:{gpus}:{self._folder / name}"
        variables = (Resolved(f"{VARIABLE}={asked}", OWN), Resolved("TORCHDYNAMO_DISABLE=1", OWN))
        return name, ranks, {**said, "observe": Resolved(True, OWN), "env": (*said.get("env", ()), *variables)}

    def ended(self, problem: Finding | None) -> None:
        """Read what the last trial recorded; keep why it failed: without a step of the ranks there is no other."""
        self._recorded[self._name], self._problem = read_recording(self._folder / self._name), problem

    def judged(self) -> ProofAnswer:
        """Return all claims."""
        steps = len(self._recorded[RANKS].steps())
        if self._problem and not steps and self._problem.code != "trial-ended-early":
            claims = [Claim("the script", self._problem.what, "wrong", self._problem)]
        else:
            claims = [*claims_of(self._recorded)]
        return ProofAnswer(tuple(claims), self._world, steps, time.monotonic() - self._began_s)


def claims_of(recorded: Mapping[str, Recorded]) -> Iterator[Claim]:
    """Yield all claims of a proof; ``recorded`` maps the name of a trial to its recording."""
    ranks, alone = recorded[RANKS], recorded.get(ALONE)
    if alone and ranks.of("cuda")[0]:
        yield Claim("CUDA", "the CPU stands in for GPUs")
    yield from gradient_claims(ranks)
    if alone:
        yield from sample_claims(ranks)
        yield from one_process_claims(ranks, alone)
