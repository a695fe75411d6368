"""Tells when ranks run, by torchrun's own events or its start method, and which have failed when it has looked.

It refuses to change what becomes of either. The agent records an event for each worker right after it has started all
of them, with the pid as ``worker_id``: ``SimpleElasticAgent._initialize_workers`` in
torch/distributed/elastic/agent/server/api.py.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic import events
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.multiprocessing import api


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
