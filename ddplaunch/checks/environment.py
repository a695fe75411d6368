"""Checks of variables that are left over or that change what a launch does; refuses to check how names are spelled."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.user_variables import ENVIRONMENT, user_variables
from ddplaunch.checks.variable_names import CHECKS as NAME_CHECKS
from ddplaunch.finding import Finding, warning
from ddplaunch.launch.plan import Launch
from ddplaunch.probes.facts import NetworkFacts

# What torchrun gives to each worker (torch/distributed/elastic/agent/server/local_elastic_agent.py).
# MASTER_ADDR, MASTER_PORT and NODE_RANK are absent: people set those on purpose, and the plan shows them.
RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE",
)
OPERATOR = "KUBERNETES_SERVICE_HOST"  # Kubeflow's operators set RANK, WORLD_SIZE and PET_* in a pod on purpose


def leftover_rank_variables(environment: dict[str, str]) -> Iterator[Finding]:
    """Variables of a rank are set where nothing is a rank yet.

    torchrun gives RANK, WORLD_SIZE and LOCAL_RANK to each worker. Set in a shell, they are left over from an earlier
    experiment: a script started by hand from it believes to be one of several ranks and waits for the others.
    Remedy: `unset` them. In a Kubernetes pod an operator sets them on purpose, and this check stays silent.
    """
    names = [name for name in RANK_VARIABLES if name in environment]
    if not names or OPERATOR in environment:
        return
    yield warning(
        "leftover-rank-variables",
        f"{_listed(environment, names)} set in the environment of the launcher",
        why="torchrun replaces them for its workers, but a script started by hand takes itself for one of several "
        "ranks and waits for the others",
        fix=f"`unset {' '.join(names)}`",
        where=ENVIRONMENT,
    )


def leftover_pet_variables(environment: dict[str, str]) -> Iterator[Finding]:
    """PET_* variables are set, which torchrun reads as options.

    Every option of torchrun falls back to a variable: PET_NNODES stands for `--nnodes`. A forgotten one silently
    changes a launch. ddplaunch removes them from its own launches; a plain torchrun in the same shell obeys them.
    Remedy: `unset` them. Kubeflow Trainer sets them on purpose, so in a Kubernetes pod this check stays silent.
    """
    names = sorted(name for name in environment if name.startswith("PET_"))
    if not names or OPERATOR in environment:
        return
    yield warning(
        "leftover-pet-variables",
        f"{_listed(environment, names)} set in the environment",
        why="torchrun reads PET_<OPTION> as if the option had been typed; ddplaunch takes them out of its launches, a "
        "plain torchrun obeys them",
        fix=f"`unset {' '.join(names)}`, and say what you want by options",
        where=ENVIRONMENT,
    )


def _listed(environment: dict[str, str], names: list[str]) -> str:
    shown = ", ".join(f"{name}={environment[name]}" for name in names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'}"


def distributed_debug_detail(environment: dict[str, str], launch: Launch | None = None) -> Iterator[Finding]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL is set, which slows every collective and can crash DDP.

    DETAIL checks each collective over a second process group before it runs. With DistributedDataParallel it ended
    in SIGSEGV on a healthy model in torch 2.13.0+cpu, where INFO did not. Remedy: INFO, or DETAIL for one short run.
    """
    for setting in user_variables(environment, launch):
        if setting.name == "TORCH_DISTRIBUTED_DEBUG" and setting.value.upper() == "DETAIL":
            yield warning(
                "distributed-debug-detail",
                "TORCH_DISTRIBUTED_DEBUG is DETAIL",
                why="every collective is verified over a second process group first, and torch 2.13.0+cpu was seen to "
                "die of SIGSEGV under it in DistributedDataParallel with a healthy model",
                fix=f"{setting.removal}, or set `TORCH_DISTRIBUTED_DEBUG=INFO`",
                where=setting.where,
            )


def launch_blocking(environment: dict[str, str], launch: Launch | None = None) -> Iterator[Finding]:
    """CUDA_LAUNCH_BLOCKING is on, so the CPU waits for every kernel.

    It makes a CUDA error appear at the line that caused it, and costs the overlap of computation, communication and
    data loading. It belongs to debugging and is easily forgotten. Remedy: `unset CUDA_LAUNCH_BLOCKING`.
    """
    if launch and launch.device.value == "cpu":
        return
    for setting in user_variables(environment, launch):
        if setting.name == "CUDA_LAUNCH_BLOCKING" and setting.value not in ("", "0"):
            yield warning(
                "launch-blocking",
                f"CUDA_LAUNCH_BLOCKING is {setting.value}",
                why="the CPU waits for every kernel, so gradients are no longer reduced while others are computed",
                fix=f"{setting.removal}, unless you are looking for a CUDA error",
                where=setting.where,
            )


def infiniband_disabled(
    network: NetworkFacts, environment: dict[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """NCCL_IB_DISABLE=1 is set although an InfiniBand port is active.

    NCCL then talks over TCP sockets between nodes, often ten times slower. The line is copied from guides written
    for machines without InfiniBand. Remedy: `unset NCCL_IB_DISABLE`; ddplaunch sets it where no port is up.
    """
    active = [f"{port.device}:{port.port}" for port in network.infiniband if port.state == "ACTIVE"]
    if not active or (launch and not _nccl_between_nodes(launch)):
        return
    for setting in user_variables(environment, launch):
        if setting.name == "NCCL_IB_DISABLE" and setting.value not in ("", "0"):
            yield warning(
                "infiniband-disabled",
                f"NCCL_IB_DISABLE is {setting.value}, but {', '.join(active)} {'is' if len(active) == 1 else 'are'} "
                "active",
                why="NCCL uses TCP sockets between nodes instead of RDMA",
                fix=f"{setting.removal}, or pass `--nccl-ib`",
                where=setting.where,
            )


def _nccl_between_nodes(launch: Launch) -> bool:
    """Whether NCCL leaves the node and nobody decided about InfiniBand by option."""
    return launch.device.value == "cuda" and launch.topology.nnodes.value > 1 and launch.options.nccl_ib is None


CHECKS: tuple[Check, ...] = (
    *(
        declare("environment", check)
        for check in (
            leftover_rank_variables,
            leftover_pet_variables,
            distributed_debug_detail,
            launch_blocking,
            infiniband_disabled,
        )
    ),
    *NAME_CHECKS,
)
