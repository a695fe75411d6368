"""What a launch tells torchrun's plug-in and the guard, as JSON in one environment variable."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

#: The environment variable with which a launch tells the plug-in its ``Settings``, as JSON.
SETTINGS = "DDPLAUNCH_AGENT"
#: Tells the plug-in when ddplaunch became torchrun, in seconds since 1970, for ``--trace``.
EXECUTED = "DDPLAUNCH_EXECUTED"


class Settings(TypedDict, total=False):
    """What the launch decided for the plug-in and the guard; every key may be missing.

    ``directory`` is the run's (``…/runs/RUN_ID``), ``node`` the number in ``node-K``, ``show`` is "0", "all" or ranks
    with commas, ``grace_s`` how long ranks get to end, ``verbose`` shows torchrun's own messages too. ``silent`` leaves
    the last words to somebody who speaks for all nodes. ``record_metrics`` asks for ``node-K/metrics.jsonl``,
    ``stacks`` for ranks that show where they are. ``start`` is how ranks begin, ``preload`` what is imported before
    they are forked. ``trace`` is the file for the phases of the launch. ``timeout_s`` and ``hang_timeout_s`` are how
    long the run may take, and how long it may stand still; ``on_hang`` is what becomes of it then. ``relaunch`` is an
    order of ``launch/relaunch_order.py``.
    """

    run_id: str
    directory: str
    node: int
    show: str
    verbose: bool
    grace_s: float
    max_restarts: int
    silent: bool
    record_metrics: bool
    stacks: bool
    start: Literal["cold", "warm"]
    preload: list[str]
    trace: str
    timeout_s: float
    hang_timeout_s: float
    on_hang: Literal["report", "stop"]
    relaunch: dict[str, Any]
