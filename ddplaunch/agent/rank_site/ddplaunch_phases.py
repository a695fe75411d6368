"""Measures, inside a rank, how the time of every optimizer step was spent, and writes a line per step to a file.

Like ``sitecustomize`` beside it, it runs in whatever Python a rank is, so it imports nothing of ddplaunch; it hooks
into torch once the script has imported it. It never raises, changes no number, draws no random number and waits for no
GPU.

It times calls that torch makes anyway: ``next()`` of a DataLoader's iterator fetches a batch, the autograd engine
computes gradients, an optimizer's step has hooks, a work object waits for a collective, and DistributedDataParallel
measures its own collectives. A call is timed from the lookup of its function until the caller drops the function, so
that no traceback ever shows a frame of this file. Times are read from the clock on the CPU, and on a GPU from events
of its stream, which are queried later. Unknown times are null.

The file's format is described in ``ddplaunch_timeline.py``.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time

TYPE_CHECKING = False  # `typing` is not imported at the start of an interpreter
if TYPE_CHECKING or __package__:
    from ddplaunch.agent.rank_site.ddplaunch_marks import batch_size, notice, notice_steps, waited_us
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
        Memory,
        StepFile,
        Timeline,
        of_epoch,
    )
else:  # beside this file
    import ddplaunch_timeline
    from ddplaunch_marks import batch_size, notice, notice_steps, waited_us

    globals().update({name: value for name, value in vars(ddplaunch_timeline).items() if not name.startswith("__")})
    del sys.modules["ddplaunch_timeline"]
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    AfterImport = Callable[[dict[str, Callable[[Any], None]]], None]

_AT_ONCE = 64  # the first steps are written at once: a short run may end by `os._exit`
_EVERY_S, _SHARE = 0.1, 250  # for later steps; at least this many times as long as a write takes
_OTHERS = 16  # after this many steps of another optimizer in a row, the first is out of use
_MOST_WAITING = 512  # steps whose events the GPU has not reached


def begin(path: str, after_import: AfterImport) -> None:
    """Write to ``path`` at every step, if there are any."""
    global _rank
    _rank = _Rank(path)
    sys.modules["ddplaunch_phases"] = sys.modules[__name__]  # where `ddplaunch.step` finds it
    after_import(
        {
            "torch.optim.optimizer": _rank.optimizers,
            "torch.utils.data.dataloader": _rank.dataloaders,
            "torch.autograd.variable": _rank.engine,
            "torch.nn.parallel.distributed": _rank.parallel,
            "torch.distributed.distributed_c10d": _rank.collectives,
        }
    )


def step(samples: int | None = None) -> None:
    """End a step by hand; after the first call, optimizers no longer end steps."""
    if _rank is not None:
        _rank.safely(_rank.step_by_hand, samples)


class _Rank:
    """Measures this process: its calls into torch advance its timeline."""

    def __init__(self, path: str) -> None:
        self._timeline = Timeline(Clock())
        self._thread = _thread.get_ident()
        self._off = self._by_hand = False
        self._lines = StepFile(path)
        self._main: int | None = None  # the optimizer whose steps count
        self._others: dict[int, int] = {}
        self._steps = self._empty_epochs = 0
        self._over: list[list[Any]] = []  # steps whose times are not known yet
        self._fetches: bool | None = False  # None: there is a DataLoader, but its time cannot be measured
        self._about: dict[str, Any] = {}
        self._wrapped: list[Any] = []
        self._comm = Communication(self._wrapped)
        self._memory: Memory | None = None
        self._norms: list[tuple[int, Any]] = []  # of gradients, by step
        self._not_finite_since: int | None = None
        self._due_s = 0.0
        os.register_at_fork(after_in_child=self._end)  # in DataLoader workers and other forks

    def safely(self, call: Callable[..., Any], *args: Any) -> None:
        """Call ``call`` if this is the training thread; the first exception ends all measuring."""
        if self._off or _thread.get_ident() != self._thread:
            return
        try:
            call(*args)
        except Exception as error:  # measuring is optional, and must not stop the training
            self._broken(error)

    def _end(self) -> None:
        self._off = True

    def _broken(self, error: Exception) -> None:
        """End all measuring, and write why: a newer torch may have other names."""
        self._end()
        try:
            self._lines.fact({"broken": f"{type(error).__name__}: {error}"})
            self._lines.flush()
        except Exception:
            return

    # Each is called once a module of torch has run

    def optimizers(self, module: Any) -> None:
        """Notice every optimizer's steps; torch before 2.0 does not have these hooks."""

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            import torch

            if not torch.compiler.is_compiling():  # torch.compile must see no more than this line
                self.safely(self._timeline.optimizer, True)

        module.register_optimizer_step_pre_hook(before)
        notice_steps(module, lambda optimizer, *_: self.safely(self._optimizer_over, optimizer))

    def dataloaders(self, module: Any) -> None:
        """Notice how long it takes to fetch a batch, and to begin an epoch."""
        self._time(module._BaseDataLoaderIter, "__next__", self._fetch)
        self._time(module.DataLoader, "_get_iterator", lambda _: self._within(DATA))

    def engine(self, module: Any) -> None:
        """Notice backward passes: `torch.autograd` looks up its engine for each of them."""
        rank, call = self, _calls()

        class Engine(type(module.Variable._execution_engine)):  # type: ignore[misc]
            @property
            def run_backward(self) -> Any:
                rank.safely(rank._backward)
                return call(super().run_backward, lambda: rank.safely(rank._timeline.back))

        module.Variable._execution_engine = Engine()

    def parallel(self, module: Any) -> None:
        """Notice each DistributedDataParallel. Its methods stay unchanged for torch.compile: it measures itself."""
        import weakref

        notice(module.DistributedDataParallel, "__init__", lambda model: self._wrapped.append(weakref.ref(model)))

    def collectives(self, _: Any) -> None:
        """Notice how long the script waits for its own collectives."""
        self._time(sys.modules["torch._C._distributed_c10d"].Work, "wait", self._wait)

    def _time(self, kind: Any, name: str, begins: Callable[[Any], Callable[[], None] | None]) -> None:
        """Call ``begins`` with each object whose method ``name`` is called, and its result when the call is over."""
        method, call, rank = kind.__dict__[name], _calls(), self

        class Timed:
            def __get__(self, one: Any, owner: Any = None) -> Any:
                bound = method.__get__(one, owner)
                if one is None or rank._off or _thread.get_ident() != rank._thread:
                    return bound
                try:
                    ends = begins(one)
                except Exception as error:
                    rank._broken(error)
                    return bound
                return bound if ends is None else call(bound, lambda: rank.safely(ends))

        setattr(kind, name, Timed())

    # Phases of a step

    def _backward(self) -> None:
        if self._timeline.now == DATA:  # the fetch is not over: the script keeps the method to call it again
            self._fetches = None
        self._timeline.backward()

    def _wait(self, _: Any) -> Callable[[], None] | None:
        if self._timeline.now == COMM or (self._timeline.now == BACKWARD and self._comm.measures_itself()):
            return None
        self._comm.waited = True
        return self._within(COMM)

    def _within(self, phase: int) -> Callable[[], None]:
        before = self._timeline.now
        self._timeline.turn(phase)
        return lambda: self._timeline.turn(before)

    def _fetch(self, iterator: Any) -> Callable[[], None] | None:
        timeline, given = self._timeline, iterator._num_yielded
        if timeline.now == DATA or self._fetches is None:
            return None
        self._fetches = True
        wanted = sys.modules["torch"].is_grad_enabled()  # else the batch is not for training
        timeline.settle(REST)
        timeline.turn(DATA)

        def fetched() -> None:
            if iterator._num_yielded == given:  # the epoch is over
                timeline.back()
                if given == 0 and not timeline.passed:
                    self._without_a_batch()
                return
            timeline.turn(MAYBE_FORWARD)
            if wanted:
                size, samples = batch_size(iterator), of_epoch(iterator)
                timeline.fetch(id(iterator), size)
                self._tell("loader", {"workers": iterator._num_workers, "batch_size": size, "samples": samples})

        return fetched

    def _without_a_batch(self) -> None:
        """Count epochs without a batch in a rank that has never trained; write the count at each power of two."""
        self._empty_epochs += 1
        if self._empty_epochs & (self._empty_epochs - 1) == 0:
            self._lines.fact({"empty_epochs": self._empty_epochs})
            self._lines.flush()

    # The end of a step

    def step_by_hand(self, samples: int | None) -> None:
        """End a step by hand instead of by an optimizer."""
        self._by_hand = True
        self._step(None, samples)

    def _optimizer_over(self, optimizer: Any) -> None:
        self._timeline.optimizer(False)
        if self._by_hand:
            return
        one = id(optimizer)
        if one != (self._main or one):
            self._others[one] = self._others.get(one, 0) + 1
            if self._others[one] < _OTHERS:
                return
        self._main, self._others = one, {}
        self._step(optimizer, None)

    def _step(self, optimizer: Any, samples: int | None) -> None:
        self._steps += 1
        marks, end, counted = self._timeline.step()
        first = self._steps == 1
        at, samples = (self._steps, time.time(), waited_us()), samples or counted
        if self._over:
            self._over[-1][4] = self._comm.of_passes_us()  # the previous step's communication is known now
        self._over.append([at, [] if first else marks, end, samples, None])
        if first:
            self._begin(optimizer)
        now_s = time.monotonic()
        if self._steps <= _AT_ONCE or now_s >= self._due_s or len(self._over) > _MOST_WAITING / 2:
            self._write_over(1)
            if self._steps <= _AT_ONCE:
                self._lines.fact({"steps": self._steps})  # including the last one, not yet written
            self._lines.flush()
            after_s = time.monotonic()
            self._due_s = after_s + max(_EVERY_S, _SHARE * (after_s - now_s))
        if len(self._over) > _MOST_WAITING:
            self._end()

    def _begin(self, optimizer: Any) -> None:
        import torch

        atexit.register(self._last)
        if optimizer is None:
            self._comm.on_gpu = bool(vars(torch.cuda)["is_initialized"]())
        else:
            parameters = [each for group in optimizer.param_groups for each in group["params"][:1]]
            self._comm.on_gpu = any(each.device.type == "cuda" for each in parameters)
            for one in [each for each in parameters if each.requires_grad][:1]:  # it comes last
                one.register_hook(self._gradient)
        if self._comm.on_gpu:
            self._timeline = Timeline(Events(torch.cuda))
            self._over[0][2] = self._timeline.clock.stamp()
            self._timeline.turn(REST)
        about = {"world_size": int(os.environ.get("WORLD_SIZE", 1)), "threads": torch.get_num_threads(), **self._about}
        self._lines.fact({"schema": 1, "device": "cuda" if self._comm.on_gpu else "cpu", **about})

    def _gradient(self, gradient: Any) -> None:
        """Keep the norm of a gradient of this rank's own batch, not yet averaged; a GPU sends it in its own time."""
        import torch

        # the norm of a tensor that several ranks hold would be a collective
        if self._off or torch.compiler.is_compiling() or type(gradient) is not torch.Tensor:
            return
        if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        try:
            norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32).to("cpu", non_blocking=True)
        except Exception:  # of a sparse or complex one
            return
        self._norms.append((self._steps + 1, norm))

    def _tell(self, name: str, value: Any) -> None:
        """Write a fact once; before the first step, keep the latest value, which is written at that step."""
        if value is None or (self._steps and name in self._about):
            return
        self._about[name] = value
        if self._steps:
            self._lines.fact({name: value})

    def _write(
        self, at: tuple[int, float, float | None], marks: list[Any], end: Any, samples: int | None, passes: float | None
    ) -> None:
        step, at_s, waited = at
        timeline, wall = self._timeline, None
        times: list[float | None] = [None] * 6
        if marks:
            times, wall = timeline.times_us(marks, end), timeline.clock.between_us(marks[0][1], end)
        backward, waited_outside = times[BACKWARD], times[COMM] or 0.0
        comm = self._comm.of_step_us(passes, waited_outside)
        if backward is not None and comm is not None:
            hidden = min(comm - waited_outside, backward)  # communication during the measured backward time
            backward, comm = backward - hidden, waited_outside + hidden
        self._tell("gradient_bytes", self._comm.bytes)
        while self._norms and self._norms[0][0] <= step:
            number, norm = self._norms.pop(0)
            since = None if float(norm) < float("inf") else self._not_finite_since or number
            if since != self._not_finite_since:
                self._not_finite_since = since
                self._lines.fact({"not_finite_since": since})
        if self._memory is None:
            self._memory = Memory(self._comm.on_gpu)
            self._tell("memory_limit_bytes", self._memory.limit_bytes())
        peak = self._memory.peak_bytes(step)
        data = (times[DATA] or 0.0) if self._fetches and marks else None
        optimizer, comm = times[OPTIMIZER], comm if marks else None
        self._lines.step([step, at_s, 1, wall, data, times[FORWARD], backward, comm, optimizer, samples, peak, waited])

    def _write_over(self, kept: int) -> None:
        """Write the steps whose times are known, but not the last ``kept`` ones."""
        while len(self._over) > kept and self._timeline.clock.over(self._over[0][2]):
            self._write(*self._over.pop(0))

    def _last(self) -> None:
        """Write the remaining steps when the interpreter ends."""
        if self._off:
            return
        try:
            if self._over:
                self._over[-1][4] = self._comm.of_passes_us()
            self._write_over(0)
            self._lines.close()
        except Exception:
            return


def _calls() -> Callable[[Any, Callable[[], None]], Any]:
    """Return a function that wraps a call to notice its end: the caller drops the wrapper then."""
    from functools import partial

    class Call(partial):  # type: ignore[type-arg]
        over: Callable[[], None]

        def __del__(self) -> None:
            self.over()

    def call(bound: Any, over: Callable[[], None]) -> Any:
        one = Call(bound)
        one.over = over
        return one

    return call


_rank: _Rank | None = None
