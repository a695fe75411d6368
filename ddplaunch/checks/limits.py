"""Checks of resource limits that ranks inherit; refuses to raise any."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.quantities import size, workers_per_process
from ddplaunch.finding import Finding, warning
from ddplaunch.launch.plan import Launch
from ddplaunch.probes.facts import LimitFacts, NetworkFacts

# Open files of one rank, a rule of thumb: the interpreter and torch's libraries, tensors in flight of each worker
# (torch.multiprocessing's file_descriptor strategy keeps one per tensor), and sockets to the other ranks.
BASE_FILES = 256
FILES_PER_WORKER = 32
FILES_PER_RANK = 4
USUAL_SOFT_LIMIT = 1024  # Linux' default; a lower one was set by somebody
WANTED = 65535


def open_files_low(limits: LimitFacts, launch: Launch | None = None) -> Iterator[Finding]:
    """The limit on open files is lower than a rank needs.

    Each DataLoader worker shares its tensors by file descriptors, and each rank holds sockets to the others; at the
    limit they fail with "Too many open files". The estimate is 256 + 32 x workers + 4 x world size per rank.
    Remedy: `ulimit -n 65535` in the shell that launches.
    """
    soft = limits.open_files_soft
    if soft is None:
        return
    workers = workers_per_process(launch) or 0
    need, who = USUAL_SOFT_LIMIT, "one rank with a few DataLoader workers"
    if launch:
        world = launch.topology.world_size
        need = BASE_FILES + FILES_PER_WORKER * workers + FILES_PER_RANK * world
        who = f"one of {world} ranks with {workers} DataLoader workers"
    if soft >= need:
        return
    hard = limits.open_files_hard
    if hard is None or hard >= need:
        fix = f"`ulimit -n {WANTED if hard is None else min(hard, WANTED)}` in the shell that launches"
    else:
        fix = f"the hard limit is {hard}: `docker run --ulimit nofile={WANTED}`, or /etc/security/limits.conf on a host"
    yield warning(
        "open-files-low",
        f"`ulimit -n` is {soft}, and {who} opens about {need} files",
        why="DataLoader workers and sockets then fail with `Too many open files`",
        fix=fix,
    )


def memlock_low(limits: LimitFacts, network: NetworkFacts, launch: Launch | None = None) -> Iterator[Finding]:
    """The limit on locked memory is low on a host with InfiniBand.

    RDMA needs its buffers locked in memory. With a limit, registering them fails with "Cannot allocate memory" in
    `ibv_reg_mr` or `ibv_create_cq`. NCCL's documentation asks for an unlimited one.
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    Remedy: `docker run --ulimit memlock=-1`, or /etc/security/limits.conf.
    """
    active = [f"{port.device}:{port.port}" for port in network.infiniband if port.state == "ACTIVE"]
    if limits.memlock_bytes is None or not active:
        return
    if launch and (launch.device.value == "cpu" or launch.topology.nnodes.value == 1):
        return
    yield warning(
        "memlock-low",
        f"`ulimit -l` is {size(limits.memlock_bytes)}, and {', '.join(active)} "
        f"{'is' if len(active) == 1 else 'are'} active",
        why="NCCL locks its RDMA buffers in memory and fails with `Cannot allocate memory` at the limit",
        fix="`docker run --ulimit memlock=-1`; on a host, `* - memlock unlimited` in /etc/security/limits.conf, "
        "and `LimitMEMLOCK=infinity` in slurmd's unit",
    )


CHECKS: tuple[Check, ...] = tuple(declare("host", check) for check in (open_files_low, memlock_low))
