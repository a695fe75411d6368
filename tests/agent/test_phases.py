"""What ranks measure of their steps: how a timeline is told; real ones are in test_families.py and test_observer.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddplaunch.agent.rank_site import ddplaunch_timeline
from ddplaunch.agent.rank_site.ddplaunch_timeline import (
    BACKWARD,
    COMM,
    DATA,
    FORWARD,
    MAYBE_FORWARD,
    OPTIMIZER,
    REST,
    Clock,
    Communication,
    Events,
    StepFile,
    Timeline,
)
from ddplaunch.watch.phases import read_phases


class Counted(Clock):
    """Every stamp is one microsecond later."""

    def __init__(self) -> None:
        self.now = 0

    def stamp(self) -> int:
        self.now += 1000
        return self.now


def may_be_forward(line: Timeline) -> None:
    line.settle(REST)
    line.turn(MAYBE_FORWARD)


#: By the words of a story: what the patches of a rank tell its timeline.
HAPPENS: dict[str, Callable[[Timeline], object]] = {
    "data": lambda line: line.turn(DATA),
    "forward": may_be_forward,
    "fetch": lambda line: line.fetch(1, 8),
    "other": lambda line: line.fetch(2, 4),
    "backward": Timeline.backward,
    "back": Timeline.back,
    "optimizer": lambda line: line.optimizer(True),
    "updated": lambda line: line.optimizer(False),
}


@pytest.mark.parametrize(
    ("story", "samples", "spent_us", "next_story"),
    [
        (  # the second forward pass is a validation: nothing comes of it
            "data forward fetch backward back forward data back optimizer updated",
            8,
            {DATA: 2, FORWARD: 1, BACKWARD: 1, COMM: None, OPTIMIZER: 1},
            "",
        ),
        ("fetch other backward back", None, {}, "fetch backward"),  # of two loaders nobody knows the samples
        (  # batches that are fetched ahead are of the passes that follow; the third is of the next step
            "data forward fetch " * 3 + "backward back " * 2 + "optimizer updated",
            16,
            {BACKWARD: 2, FORWARD: 2},
            "backward",
        ),
        (  # a closure has its forward pass within the optimizer; LBFGS has a second, on the same batch
            "fetch optimizer backward back backward back updated",
            8,
            {FORWARD: 1, BACKWARD: 2, OPTIMIZER: 2},
            "",
        ),
    ],
)
def test_a_timeline_tells_forward_passes_and_samples_by_what_follows(
    story: str, samples: int | None, spent_us: dict[int, float | None], next_story: str
) -> None:
    line = Timeline(Counted())
    line.step()
    for word in story.split():
        HAPPENS[word](line)
    marks, end, known = line.step()
    times = line.times_us(marks, end)
    assert known == samples and {part: times[part] for part in spent_us} == spent_us
    assert sum(each or 0 for each in times) == (end - marks[0][1]) / 1000
    for word in next_story.split():
        HAPPENS[word](line)
    assert not next_story or line.step()[2] == 8


class Event:
    """An event of a stream that has come as far as ``reached``."""

    reached = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.reached += 1
        self.at = Event.reached

    def query(self) -> bool:
        return self.at <= 3

    def elapsed_time(self, other: Event) -> float:
        return float(other.at - self.at)


def test_events_are_read_when_they_are_over() -> None:
    class Cuda:
        capturing = False
        Event = Event

        def is_current_stream_capturing(self) -> bool:
            return self.capturing

    cuda = Cuda()
    events = Events(cuda)
    first, second = events.stamp(), events.stamp()
    assert events.over(first) and events.between_us(first, second) == 1000
    events.stamp()
    assert not events.over(events.stamp())
    cuda.capturing = True
    with pytest.raises(RuntimeError, match="captured"):
        events.stamp()


def test_lines_are_sums_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddplaunch_timeline, "_SINGLY", 3)
    lines = StepFile(str(tmp_path / "rank-0.phases.jsonl"))
    for step in range(1, 14):
        lines.step([step, 1.0, 1, 300_000.0, 100_000.0, None, 1.0, 0.0, 2.0, 4, 10, None])
    lines.close()
    read = read_phases(tmp_path, [0, 1])[0].lines
    assert [(line.step, line.steps) for line in read] == [(1, 1), (2, 1), (3, 1), (7, 4), (11, 4), (13, 2)]
    assert read[3].wall_s == pytest.approx(1.2) and read[3].samples == 16 and read[3].forward_s is None
    with pytest.raises(FileExistsError):
        StepFile(str(tmp_path / "rank-0.phases.jsonl")).flush()


class Module:
    """A DistributedDataParallel, as far as it is asked what it measured."""

    logger = object()

    def __init__(self) -> None:
        self.data: dict[str, int] = {"iteration": 0}  # passes
        self.rate = 100

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.rate = rate

    def _get_ddp_logging_data(self) -> dict[str, int]:
        return self.data

    def passes(self, *waited_us: int) -> None:
        """Make passes, each measured as it is when the next one begins; the rate is 1, or ten and each hundredth."""
        for each in waited_us:
            at = int(self.data["iteration"]) + 1
            if at <= 10 or at % self.rate == 0:
                self.data |= {"backward_comm_time": each * 1000 + 2000, "backward_compute_comm_overlap_time": 2000}
            self.data |= {"iteration": at, "total_parameter_size_bytes": 64}


def test_communication_is_what_the_backward_pass_does_not_hide() -> None:
    module = Module()
    comm = Communication([lambda: module])
    assert comm.of_step_us(comm.of_passes_us(), 0.0) is None and module.rate == 1
    for waited_us in (7, 90, 10):  # each step has what its own passes waited
        module.passes(waited_us)
        assert comm.of_passes_us() == waited_us
    module.passes(20, 20)  # twice in a step
    passes_us = comm.of_passes_us()
    assert comm.of_step_us(passes_us, 1.0) == 41.0 and comm.bytes == 64
    assert comm.of_passes_us() == 0, "a step without a pass"


def test_on_a_gpu_few_passes_are_measured_and_each_counts_until_the_next() -> None:
    module = Module()
    comm = Communication([lambda: module])
    comm.on_gpu = True
    module.passes(500, 500)  # NCCL connects
    assert comm.of_passes_us() is None
    module.passes(500, 7)
    assert comm.of_passes_us() == 7.0 and module.rate == 100, "each measurement waits for the GPU"
    module.passes(*[8] * 50)
    assert [comm.of_passes_us() for _ in range(3)] == [8.0] * 3
