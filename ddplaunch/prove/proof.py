"""One proof: its trials, one after the other, and the recorder that is put into their ranks.

The first trial is the launch as it is. The second is one process that gets the samples of all ranks. If its gradients
differ from those of the first, a third one repeats it with other random numbers.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ddplaunch.machine.scratch_tree import remove
from ddplaunch.planning.launch import Launch
from ddplaunch.planning.options import Said
from ddplaunch.prove.claims import Claim, ProofAnswer, still_open
from ddplaunch.prove.gradients import gradient_claims
from ddplaunch.prove.in_rank.recorder import VARIABLE
from ddplaunch.prove.one_process import differs, one_process_claims
from ddplaunch.prove.recording import Recorded, read_recording
from ddplaunch.prove.samples import sample_claims
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source

RANKS, ALONE, RESEEDED = "ranks", "one-process", "other-seed"
_OWN = Source("flag", "prove")
#: Flags of numbers that depend on the number of ranks.
_NUMBERS = (
    *("batch_size", "global_batch_size", "base_batch_size"),
    *("lr", "base_lr", "lr_scaling", "lr_max_factor", "warmup", "base_warmup"),
)
#: Starts the recorder in a rank, and then imports the sitecustomize that this file hides, if there is one.
_SITE = """
import sys
sys.path[:] = [entry for entry in sys.path if entry != {folder!r}]
own = sys.modules.pop("sitecustomize")
from ddplaunch.prove.in_rank.recorder import begin
begin()
try:
    import sitecustomize
except ImportError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", own)
"""


@dataclass(frozen=True)
class Part:
    """One trial: ``name`` ends its run id, ``ranks`` counts its processes, ``said`` are the flags of its launch."""

    name: str
    ranks: int
    said: Said


def with_ranks(said: Said) -> Said:
    """Return the flags of a launch, with two ranks if they give no number."""
    return said if "nproc" in said else {**said, "nproc": Resolved("2", _OWN)}


class Proof:
    """The trials of one proof, and what their ranks recorded, in a folder that is removed at the end."""

    def __init__(self, base: Path, launch: Launch, said: Said, steps: int | None) -> None:
        """``base`` contains the records, ``said`` are the flags of ``launch``; each trial makes ``steps`` steps [6]."""
        self._launch, self._said, self._steps = launch, said, steps or 6
        self._world = launch.topology.world_size
        self._began_s = time.monotonic()
        self._base, self._folder = base, Path()
        self._recorded: dict[str, Recorded] = {}
        self._problems: dict[str, Finding | None] = {}
        self._observed: Sequence[Finding] = ()

    def __enter__(self) -> Proof:
        """Make the folder. Raises OSError."""
        self._base.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = Path(tempfile.mkdtemp(prefix="prove-", dir=self._base)).absolute()
        site = self._folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE.format(folder=str(site)))
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the folder."""
        remove(self._folder)

    def parts(self) -> Iterator[Part]:
        """Yield each trial; ``ended`` has to be called after it."""
        yield self._part(RANKS, self._world, self._said)
        if self._world == 1 or not self._recorded[RANKS].steps():
            return
        alone = {name: value for name, value in self._said.items() if name not in (*_NUMBERS, "gpus")}
        numbers = self._launch.numbers
        if any(name in self._said for name in _NUMBERS):
            batch = numbers.batch_size and Resolved(numbers.batch_size.value * self._world, _OWN)
            kept = {"batch_size": batch, "lr": numbers.lr, "warmup": numbers.warmup_steps}
            alone |= {name: Resolved(str(value.value), _OWN) for name, value in kept.items() if value is not None}
        yield self._part(ALONE, 1, alone)
        if differs(self._recorded[RANKS], self._recorded[ALONE]):
            yield self._part(RESEEDED, 1, alone)

    def _part(self, name: str, ranks: int, said: Said) -> Part:
        self._name = name
        (self._folder / name).mkdir()
        seed = 20_011 if name == RESEEDED else None
        wanted = {"folder": str(self._folder), "name": name, "batches": RANKS, "steps": self._steps, "seed": seed}
        path = ":".join(filter(None, (str(self._folder / "site"), os.environ.get("PYTHONPATH"))))
        values = {VARIABLE: json.dumps(wanted), "PYTHONPATH": path, "TORCHDYNAMO_DISABLE": "1"}
        variables = tuple(Resolved(f"{name}={value}", _OWN) for name, value in values.items())
        return Part(name, ranks, {**said, "env": (*said.get("env", ()), *variables)})

    def ended(self, ending: str, problem: Finding | None, observed: Sequence[Finding]) -> None:
        """Read what the last trial recorded; ``problem`` is kept only if the trial failed before its first step."""
        recorded = self._recorded[self._name] = read_recording(self._folder / self._name)
        self._problems[self._name] = problem if ending in ("failed", "refused") and not recorded.steps() else None
        self._observed = observed if self._name == RANKS else self._observed

    def judged(self) -> ProofAnswer:
        """Return all claims, and the findings of the first trial whose codes no claim has."""
        problem = self._problems[RANKS]
        claims = (
            [Claim("the script", "wrong", problem.what, problem)]
            if problem is not None
            else claims_of(self._recorded, self._world)
        )
        codes = {claim.finding.code for claim in claims if claim.finding is not None}
        more = [finding for finding in self._observed if finding.code not in codes]
        steps = len(self._recorded[RANKS].steps())
        return ProofAnswer(tuple(claims), tuple(more), self._world, steps, time.monotonic() - self._began_s)


def claims_of(recorded: Mapping[str, Recorded], world: int) -> list[Claim]:
    """Return all claims of a proof; ``recorded`` maps the name of a trial to its recording."""
    if world == 1 or not recorded[RANKS].steps():
        return [still_open("gradients", "there is only one rank, or no step of an optimizer of torch")]
    ranks, alone = recorded[RANKS], recorded[ALONE]
    others = one_process_claims(ranks, alone, recorded.get(RESEEDED))
    return [*gradient_claims(ranks), *sample_claims(ranks), *others]
