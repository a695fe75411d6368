"""Leaves out what torchrun does at length and nobody needs; refuses to change what it decides.

Two things. Between two looks at its ranks torchrun sleeps (``--monitor-interval``, 0.1 s), also when the last of them
has just ended: the pause is over then. And each event of a rendezvous is named after the method that it comes from, for
which torch reads the source of the whole stack twice: some 10 ms each time, for a name that one frame has.

Tells when ranks run, by torchrun's own events or its start method, and which have failed when it has looked.

It refuses to change what becomes of either. The agent records an event for each worker right after it has started all
of them, with the pid as ``worker_id``: ``SimpleElasticAgent._initialize_workers`` in
torch/distributed/elastic/agent/server/api.py.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed.elastic import events
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.multiprocessing import api


class Pause:
    """torchrun's pause between two looks at its ranks, over as soon as none of them runs any more.

    It is not cut short for a first rank that fails: torchrun ends the others then, who may be about to say why.
    """

    def __init__(self) -> None:
        """No rank runs yet."""
        self._running: list[int] = []

    def watch(self, pids: Iterable[int]) -> None:
        """Take these children for all ranks that run. Without pidfds (Linux before 5.3) pauses stay as they are."""
        self._close()
        try:
            for pid in pids:
                self._running.append(os.pidfd_open(pid))
        except OSError:
            self._close()

    def sleep(self, seconds: float) -> None:
        """Sleep ``seconds``, or until the last rank has ended."""
        if not self._running:
            time.sleep(seconds)
            return
        until = time.monotonic() + seconds
        while self._running:
            poll = select.poll()
            poll.register(self._running[-1], select.POLLIN)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return
            os.close(self._running.pop())

    def install(self) -> None:
        """Let torchrun's loop (``SimpleElasticAgent._invoke_run``) pause here. Elsewhere nothing changes."""
        from torch.distributed.elastic.agent.server import api

        module: Any = api
        if getattr(module, "time", None) is time:
            module.time = _Clock(self)

    def _close(self) -> None:
        while self._running:
            os.close(self._running.pop())


class _Clock:
    """The module ``time`` with another ``sleep``."""

    def __init__(self, pause: Pause) -> None:
        self.sleep = pause.sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def name_methods_quickly() -> None:
    """Replace ``get_method_name`` of torch's dynamic_rendezvous.py by one that reads no files for the same answer."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    module: Any = dynamic_rendezvous
    if hasattr(module, "get_method_name"):
        module.get_method_name = method_name


def method_name(depth: int = 2) -> str | None:
    """Return the name of the function ``depth`` calls above this one; None if the stack is not that deep."""
    try:
        return sys._getframe(depth).f_code.co_name
    except ValueError:
        return None


def forward_started(tell: Callable[[int, int], None]) -> None:
    """Call ``tell(rank, pid)`` for each START event, whatever ``--event-log-handler`` names."""
    for destination in list(handlers._log_handlers):
        if destination != "dynamic_rendezvous":
            logger = events._get_or_create_logger(destination)
            for handler in logger.handlers:
                handler.setLevel(max(handler.level, logger.level))  # what LOGLEVEL keeps off the console stays off
            logger.setLevel(logging.INFO)
            logger.addHandler(_Started(tell))


def notice_start(tell: Callable[[dict[int, int]], None]) -> None:
    """Call ``tell({local rank: pid})`` as soon as all ranks of an attempt are started, whatever events torch has."""
    theirs = api.PContext.start

    def start(context: Any) -> None:
        theirs(context)
        pids = getattr(context, "pids", None)
        if pids is not None:
            tell(dict(pids()))

    api.PContext.start = start  # type: ignore[method-assign,assignment]


def notice_failures(tell: Callable[[dict[int, Any]], None]) -> None:
    """Call ``tell({local rank: ProcessFailure})`` for ranks that torchrun has seen fail, in every attempt."""
    theirs = api.PContext.wait

    def wait(context: Any, *args: Any, **more: Any) -> Any:
        result = theirs(context, *args, **more)
        if failures := getattr(result, "failures", None):
            tell(dict(failures))
        return result

    api.PContext.wait = wait  # type: ignore[method-assign,assignment]


class _Started(logging.Handler):
    def __init__(self, tell: Callable[[int, int], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on a START event; an event of another shape is none of ours."""
        try:
            event = json.loads(record.getMessage())
            metadata = event["metadata"]
            if metadata.get("state") != "START" or event.get("source") != "WORKER":
                return
            rank, pid = int(metadata["global_rank"]), int(metadata["worker_id"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self._tell(rank, pid)
