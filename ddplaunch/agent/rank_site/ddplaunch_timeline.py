"""The timeline of phases in one thread's steps, the file that steps are written to, and sample counts of loaders.

Like ``sitecustomize`` beside it, it runs in whatever Python a rank is, so it imports nothing of ddplaunch.

The file contains facts, as JSON objects, and steps, as JSON arrays with times in microseconds and null for unknown
values: step, end_s, steps, wall, data, forward, backward, comm, optimizer, samples, peak_bytes, waited. ``steps`` is
the number of steps in the line: with more than 1, times and samples are sums. ``step`` counts optimizer steps from 1,
``end_s`` is seconds since 1970, ``comm`` how long a step waited for communication, ``waited`` the thread's wait for a
CPU.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # `typing` is not imported at the start of an interpreter
if TYPE_CHECKING or __package__:
    from ddplaunch.agent.rank_site.ddplaunch_marks import batch_size
else:  # beside this file
    from ddplaunch_marks import batch_size
if TYPE_CHECKING:
    from typing import Any

REST, DATA, FORWARD, BACKWARD, COMM, OPTIMIZER, MAYBE_FORWARD = range(7)
_AHEAD = 1024  # the most batches that are fetched before they are used
_SINGLY = 5000  # lines with one step each; later lines cover a second or more
_MEMORY_AT_ONCE, _MEMORY_EVERY_S = 16, 1.0
_DDP_FIRST = 3  # passes in which NCCL connects


class Clock:
    """Time on the CPU."""

    stamp = staticmethod(time.perf_counter_ns)

    def over(self, stamp: Any) -> bool:
        """Return whether the time of ``stamp`` is known yet."""
        return True

    def between_us(self, first: Any, second: Any) -> float:
        """Return the microseconds between two moments."""
        return float(second - first) / 1000


class Events(Clock):
    """Time on the current stream of a GPU. An event is recorded without waiting, and read once the GPU reached it."""

    def __init__(self, cuda: Any) -> None:
        """``cuda`` is ``torch.cuda``."""
        self._cuda = cuda

    def stamp(self) -> Any:
        """Record an event. Raises RuntimeError while a CUDA graph is captured, as the event would become part of it."""
        if self._cuda.is_current_stream_capturing():
            raise RuntimeError("a CUDA graph is captured")
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def over(self, stamp: Any) -> bool:
        """Return whether the GPU has reached the event."""
        return bool(stamp.query())

    def between_us(self, first: Any, second: Any) -> float:
        """Return the microseconds between two events."""
        return float(first.elapsed_time(second)) * 1000


class Timeline:
    """The phases of one thread since its last step."""

    def __init__(self, clock: Clock) -> None:
        """Begin in the phase REST."""
        self.clock = clock
        self.now = self._base = self._outer = REST
        self.marks: list[list[Any]] = []  # of this step: [phase, start]
        self.fetched: dict[int, list[int | None]] = {}  # samples of each unused batch, by iterator
        self._samples: int | None = 0
        self.passed = False  # whether there ever was a backward pass

    def turn(self, phase: int) -> None:
        """Begin ``phase``."""
        self.marks.append([phase, self.clock.stamp()])
        self.now = phase

    def settle(self, phase: int) -> None:
        """Change the marks MAYBE_FORWARD to ``phase``."""
        for mark in self.marks:
            if mark[0] == MAYBE_FORWARD:
                mark[0] = phase
        if self.now == MAYBE_FORWARD:
            self.now = phase

    def fetch(self, iterator: int, size: int | None) -> None:
        """Note a fetched batch of ``size`` samples; Hugging Face's Trainer fetches all batches of a step at once."""
        waiting = self.fetched.setdefault(iterator, [])
        waiting.append(size)
        del waiting[:-_AHEAD]

    def backward(self) -> None:
        """Begin a backward pass: the time before was its forward pass, on the batch that was fetched first."""
        self.settle(FORWARD)
        if self.fetched:
            if self.now == OPTIMIZER:  # inside a closure, which Lightning passes to every optimizer
                self.marks[-1][0] = FORWARD
            first, *others = self.fetched.values()
            size = first.pop(0)
            sure = size is not None and not others and self._samples is not None
            self._samples = self._samples + size if sure else None  # type: ignore[operator]
            if others or not first:
                self.fetched.clear()
        self.passed = True
        self.turn(BACKWARD)

    def back(self) -> None:
        """End a phase and return to the enclosing one: a step of LBFGS contains backward passes."""
        self.turn(MAYBE_FORWARD if self.fetched and self._base == REST else self._base)

    def optimizer(self, begins: bool) -> None:
        """Begin or end an optimizer's step, which may be inside a backward pass."""
        self.settle(REST)
        if begins:
            self._outer = BACKWARD if self.now == BACKWARD else REST
        self._base = OPTIMIZER if begins else REST
        self.turn(OPTIMIZER if begins else self._outer)

    def step(self) -> tuple[list[list[Any]], Any, int | None]:
        """End a step; return its marks, its end and its samples."""
        self.settle(REST)
        end, marks, samples = self.clock.stamp(), self.marks, self._samples
        self.marks, self._samples = [[self.now, end]], 0
        return marks, end, samples or None

    def times_us(self, marks: list[list[Any]], end: Any) -> list[float | None]:
        """Return how long each phase took, None for phases that did not occur."""
        found: list[float | None] = [None] * 6
        for (phase, stamp), (_, after) in zip(marks, [*marks[1:], [REST, end]]):  # noqa: B905 - Python 3.9 has none
            found[phase] = (found[phase] or 0.0) + self.clock.between_us(stamp, after)
        return found


class StepFile:
    """The file of a rank: the first steps one by one, later ones as sums over at least a second."""

    def __init__(self, path: str) -> None:
        """``flush`` creates the file at ``path``."""
        self._path, self._file = path, -1
        self._waiting: list[str] = []
        self._written = 0
        self._sums: list[Any] = []

    def fact(self, value: dict[str, Any]) -> None:
        """Write a fact."""
        import json

        self._waiting.append(json.dumps(value))

    def step(self, values: list[Any]) -> None:
        """Add a step, with ``values`` in the order of a line."""
        if self._sums:
            before = self._sums
            summed = [None if a is None or b is None else a + b for a, b in zip(before[2:10], values[2:10])]  # noqa: B905
            values = [*values[:2], *summed, values[10], values[11] or before[11]]
        self._sums = values if self._written >= _SINGLY and (values[3] or 0) < 1e6 else []
        if not self._sums:
            self._put(values)

    def _put(self, values: list[Any]) -> None:
        self._written += 1
        texts = [
            "null" if each is None else f"{each:.3f}" if at == 1 else str(int(each)) for at, each in enumerate(values)
        ]
        self._waiting.append(f"[{','.join(texts)}]")

    def flush(self) -> None:
        """Write the waiting lines. Raises OSError."""
        if self._file < 0:
            new = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | new, 0o600)
        if self._waiting:
            text = "\n".join([*self._waiting, ""])
            self._waiting = []
            os.write(self._file, text.encode("ascii"))

    def close(self) -> None:
        """Write the waiting lines and the unfinished sum."""
        if self._sums:
            self._put(self._sums)
            self._sums = []
        self.flush()


class Communication:
    """The part of backward passes that only waits for gradients, as DistributedDataParallel measures it.

    On the CPU it is set to measure every pass. On a GPU measuring waits for the GPU, so it does so only in the first
    ten passes (NCCL connects in the first of them) and every hundredth. It reports the last pass that it measured.
    """

    def __init__(self, wrapped: list[Any]) -> None:
        """``wrapped`` are weak references to DistributedDataParallel modules."""
        self._wrapped = wrapped
        self.waited = self.on_gpu = False
        self.bytes: int | None = None
        self._us: float | None = None
        self._passes: dict[int, int] = {}  # of each module, until the previous step

    def measures_itself(self) -> bool:
        """Return whether there is a DistributedDataParallel; its measurement includes waits for its work objects."""
        return any(each() is not None for each in self._wrapped)

    def of_step_us(self, passes_us: float | None, waited_us: float) -> float | None:
        """Return how long a step waited for communication, ``waited_us`` of it for work objects; None if unknown."""
        if not self.measures_itself():
            return waited_us if self.waited or _alone() else None
        return None if passes_us is None else passes_us + waited_us

    def of_passes_us(self) -> float | None:
        """Return how long the backward passes since the last call waited; None if unknown. Call it once per step.

        A pass is measured when the next one begins. All passes are taken to wait as long as the last measured one.
        """
        waits_ns, sizes = [], []
        alive = [one for each in self._wrapped[-4:] if (one := each()) is not None]
        for module in [each for each in alive if each.logger is not None]:
            data, one = module._get_ddp_logging_data(), id(module)
            sizes.append(data.get("total_parameter_size_bytes", 0))
            if one not in self._passes and not self.on_gpu:
                module._set_ddp_runtime_logging_sample_rate(1)
            passes = data.get("iteration", 0)
            since, self._passes[one] = max(0, passes - self._passes.get(one, 0)), passes
            comm, hidden = data.get("backward_comm_time"), data.get("backward_compute_comm_overlap_time")
            if comm is None or hidden is None or (self.on_gpu and (passes <= _DDP_FIRST or not since)):
                continue
            waits_ns.append(max(0.0, float(comm - hidden)) * (1 if self.on_gpu else since))
        self.bytes = sum(sizes) or None
        if waits_ns:
            self._us = sum(waits_ns) / 1000
        return self._us


def _alone() -> bool:
    distributed = sys.modules["torch"].distributed
    if distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_world_size() == 1)
    return os.environ.get("WORLD_SIZE", "1") == "1"


class Memory:
    """The peak memory in bytes: of torch's allocator on a GPU, else of this process.

    On the CPU it is the peak resident memory. With a limit (RLIMIT_DATA, ``run --memory``) it is the peak of the memory
    that the limit counts, private memory without shared libraries. The kernel does not record that peak, so it is the
    resident peak plus today's difference between the two.
    """

    def __init__(self, on_gpu: bool) -> None:
        """Read the process's limit."""
        import resource

        self._on_gpu = on_gpu
        self._limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        self._peak: int | None = None
        self._due_s = 0.0

    def limit_bytes(self) -> int | None:
        """Return the memory limit: on a GPU this process's reserved memory plus the free memory; None without one."""
        if self._on_gpu:
            cuda = sys.modules["torch"].cuda
            return int(cuda.mem_get_info()[0]) + int(cuda.memory_reserved())
        return None if self._limit < 0 else self._limit

    def peak_bytes(self, step: int) -> int | None:
        """Return the peak, which is measured at the first steps and then every second."""
        now_s = time.monotonic()
        if step <= _MEMORY_AT_ONCE or now_s >= self._due_s:
            self._due_s = now_s + _MEMORY_EVERY_S
            self._peak = self._look()
        return self._peak

    def _look(self) -> int | None:
        if self._on_gpu:
            return int(sys.modules["torch"].cuda.max_memory_allocated())
        with open("/proc/self/status", "rb") as file:
            sizes = {each[0]: int(each[1]) * 1024 for each in map(bytes.split, file) if each[0].startswith(b"Vm")}
        peak = sizes.get(b"VmHWM:")
        return peak if peak is None or self._limit < 0 else peak + sizes[b"VmData:"] - sizes[b"VmRSS:"]


def of_epoch(iterator: Any) -> int | None:
    """Return how many samples a rank has in an epoch; None if they are not known in advance."""
    batches, size = iterator._index_sampler, batch_size(iterator)
    sampler: Any = getattr(batches, "sampler", None)
    if iterator._dataset_kind or not hasattr(sampler, "__len__"):
        return None
    if type(batches).__module__.startswith("torch.utils.data"):
        return len(sampler)
    return None if size is None else min(len(sampler), size * len(batches))  # accelerate gives each rank its batches
