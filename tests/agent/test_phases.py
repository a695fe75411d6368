"""What ranks measure of their steps: how a timeline is told; real ones are in test_families.py and test_observer.py."""

from __future__ import annotations

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


def test_a_timeline_tells_a_forward_pass_by_what_follows() -> None:
    line = Timeline(Counted())
    line.step()
    line.turn(DATA)
    may_be_forward(line)
    line.fetch(1, 8)
    line.backward()
    line.back()
    may_be_forward(line)  # a validation: nothing comes of it
    line.turn(DATA)
    line.back()
    line.optimizer(True)
    line.optimizer(False)
    marks, end, samples = line.step()
    times = line.times_us(marks, end)
    assert samples == 8 and sum(each or 0 for each in times) == (end - marks[0][1]) / 1000
    assert [times[each] for each in (DATA, FORWARD, BACKWARD, COMM, OPTIMIZER)] == [2, 1, 1, None, 1]


def test_of_two_loaders_nobody_knows_the_samples() -> None:
    line = Timeline(Counted())
    line.step()
    line.fetch(1, 8)
    line.fetch(2, 4)
    line.backward()
    line.back()
    assert line.step()[2] is None
    line.fetch(1, 8)
    line.backward()
    assert line.step()[2] == 8


def test_batches_that_are_fetched_ahead_are_of_the_passes_that_follow() -> None:
    line = Timeline(Counted())
    line.step()
    for _ in range(3):
        line.turn(DATA)
        may_be_forward(line)
        line.fetch(1, 8)
    for _ in range(2):  # the third is of the next step
        line.backward()
        line.back()
    line.optimizer(True)
    line.optimizer(False)
    marks, end, samples = line.step()
    times = line.times_us(marks, end)
    assert samples == 16 and times[BACKWARD] == 2 and times[FORWARD] == 2, times
    line.backward()
    assert line.step()[2] == 8


def test_a_closure_has_its_forward_pass_within_the_optimizer() -> None:
    line = Timeline(Counted())
    line.step()
    line.fetch(1, 8)
    line.optimizer(True)
    line.backward()
    line.back()
    line.backward()  # of LBFGS, on the same batch
    line.back()
    line.optimizer(False)
    marks, end, samples = line.step()
    times = line.times_us(marks, end)
    assert samples == 8 and [times[each] for each in (FORWARD, BACKWARD, OPTIMIZER)] == [1, 2, 2]


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
