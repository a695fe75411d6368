"""The mistakes that guides to distributed training warn of, found in a script's source: all rules, as they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ddplaunch.script.flow import Flow
from ddplaunch.script.mistakes import loading, one_rank, places
from ddplaunch.script.mistakes.training import Training
from ddplaunch.script.program import Program
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import Mistake

_RULES: tuple[Callable[[Training], Iterator[Mistake]], ...] = (
    places.meeting_place_written_down,
    places.gpu_written_down,
    places.gpu_not_chosen,
    places.threads_of_one_process,
    loading.shuffled_beside_sampler,
    loading.undivided,
    loading.same_order,
    places.unaveraged,
    one_rank.collectives_of_some,
    one_rank.evaluated_on_one,
    one_rank.changed_on_one,
    one_rank.written_by_all,
    loading.prefixed,
    loading.loaded_unprefixed,
    loading.loaded_to_first_gpu,
    loading.same_seeds,
    places.norm_of_one_rank,
    places.unused_searched,
    places.group_left,
)


def mistakes_of(program: Program, parts: Sequence[ReachablePart], flow: Flow) -> tuple[Mistake, ...]:
    """Return the mistakes of a program, each place once."""
    if not any("torch" in part.source.text for part in parts):
        return ()
    training = Training(program, parts, flow)
    return tuple(dict.fromkeys(found for rule in _RULES for found in rule(training)))
