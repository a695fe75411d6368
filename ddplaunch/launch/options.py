"""Everything a user can say about a launch, merged from flags and profile; refuses to decide what was not said."""

from __future__ import annotations

from ddplaunch.frozen import dataclass
from ddplaunch.scaling.numbers import LrScaling
from ddplaunch.values import Resolved


@dataclass(frozen=True)
class Options:
    """One field per command-line option, named alike (``--batch-size`` is ``batch_size``); None is "not said".

    ``nproc`` is the positional: an integer, ``auto`` or ``NxM``. ``gpus`` is ``0,1,3``, UUIDs or ``free:N``.
    """

    nproc: Resolved[str] | None = None
    gpus: Resolved[str] | None = None
    device: Resolved[str] | None = None
    batch_size: Resolved[int] | None = None
    accum: Resolved[int] | None = None
    global_batch_size: Resolved[int] | None = None
    base_lr: Resolved[float] | None = None
    base_batch_size: Resolved[int] | None = None
    lr: Resolved[float] | None = None
    lr_scaling: Resolved[LrScaling] | None = None
    lr_max_factor: Resolved[float] | None = None
    base_warmup: Resolved[int] | None = None
    dataset_size: Resolved[int] | None = None
    forward: Resolved[bool] | None = None
    workers: Resolved[int] | None = None
    data: tuple[Resolved[str], ...] = ()
    output: tuple[Resolved[str], ...] = ()
    nnodes: Resolved[str] | None = None
    node_rank: Resolved[int] | None = None
    master_addr: Resolved[str] | None = None
    master_port: Resolved[int] | None = None
    socket_ifname: Resolved[str] | None = None
    nccl_debug: Resolved[str] | None = None
    nccl_ib: Resolved[bool] | None = None
    env: tuple[Resolved[str], ...] = ()
    env_file: tuple[Resolved[str], ...] = ()
    max_restarts: Resolved[int] | None = None
    relaunch: Resolved[int] | None = None
    relaunch_after: Resolved[str] | None = None
    relaunch_wait: Resolved[str] | None = None
    grace: Resolved[float] | None = None
    timeout: Resolved[str] | None = None
    hang_timeout: Resolved[str] | None = None
    on_hang: Resolved[str] | None = None
    stacks: Resolved[bool] | None = None
    start: Resolved[str] | None = None
    preload: Resolved[str] | None = None
    trace: Resolved[str] | None = None
    show: Resolved[str] | None = None
    verbose: Resolved[bool] | None = None
    capture: Resolved[bool] | None = None
    record_metrics: Resolved[bool] | None = None
    torchrun_arg: tuple[Resolved[str], ...] = ()
    ignore: tuple[Resolved[str], ...] = ()
    checks: Resolved[bool] | None = None
    run_id: Resolved[str] | None = None
    run_dir: Resolved[str] | None = None
