"""Checks of environment variables: left over, slowing a launch down, misspelt, renamed or read by nothing."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.known_variables import GENERAL_PREFIXES, INEFFECTIVE, KNOWN, PREFIXES, RENAMED
from ddplaunch.checks.torch_install import major_minor
from ddplaunch.launch.launch import Launch
from ddplaunch.machine.facts import NetworkFacts, TorchFacts
from ddplaunch.script.report import ScriptReport
from ddplaunch.values.finding import Finding, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import listed

ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Setting:
    """One variable as the user set it. ``where`` is "environment", "--env" or the source of the pair."""

    name: str
    value: str
    where: str

    @property
    def typed(self) -> str:
        """``NAME=value`` as one would type it."""
        return f"{self.name}={self.value}"

    @property
    def removal(self) -> str:
        """How to unset it, as a clause for a fix."""
        if self.where == ENVIRONMENT:
            return f"`unset {self.name}`"
        return f"drop `{self.typed}` from {self.where}"


def user_variables(environment: dict[str, str], launch: Launch | None) -> tuple[Setting, ...]:
    """Return the variables of the environment, overridden by those of ``--env``, ``--env-file`` or a profile."""
    settings = {name: Setting(name, value, ENVIRONMENT) for name, value in environment.items()}
    for setting in _from_launch(launch) if launch else ():
        settings[setting.name] = setting
    return tuple(settings.values())


def _from_launch(launch: Launch) -> Iterator[Setting]:
    """Yield the user's own pairs; those of ``--env-file`` are only in the plan, with the file as their source."""
    for variable in launch.environment:
        if variable.value is not None and variable.reason == "yours":
            yield Setting(variable.name, variable.value, variable.source.detail or str(variable.source))
    for pair in launch.options.env:
        name, value = pair.value
        yield Setting(name, value, pair.source.detail or "--env")


# The variables that torchrun sets for each worker (torch/distributed/elastic/agent/server/local_elastic_agent.py),
# without MASTER_ADDR, MASTER_PORT and NODE_RANK: people set those on purpose, and the plan shows them.
_RANK_VARIABLES = (
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
_OPERATOR = "KUBERNETES_SERVICE_HOST"  # Kubeflow's operators set RANK, WORLD_SIZE and PET_* in a pod on purpose


def leftover_rank_variables(environment: dict[str, str]) -> Iterator[Finding]:
    """Variables of a rank are set in the environment of the launcher.

    torchrun sets RANK, WORLD_SIZE and LOCAL_RANK for each worker. In a shell they are left over from an earlier
    experiment: a script started there by hand behaves as one of several ranks and waits for the others. The check
    stays silent in a Kubernetes pod, where an operator sets them on purpose. Remedy: `unset` them.
    """
    names = [name for name in _RANK_VARIABLES if name in environment]
    if not names or _OPERATOR in environment:
        return
    yield warning(
        "leftover-rank-variables",
        f"{_listed(environment, names)} set in the environment of the launcher",
        why="torchrun replaces them for its workers, but a script started by hand behaves as one of several "
        "ranks and waits for the others",
        fix=f"`unset {' '.join(names)}`",
        where=ENVIRONMENT,
    )


def leftover_pet_variables(environment: dict[str, str]) -> Iterator[Finding]:
    """PET_* variables are set, which torchrun reads as options.

    Every option of torchrun falls back to a variable: PET_NNODES stands for `--nnodes`. A forgotten one silently
    changes a launch. ddplaunch removes them from its own launches, but a plain torchrun in the same shell obeys them.
    The check stays silent in a Kubernetes pod, where Kubeflow Trainer sets them on purpose. Remedy: `unset` them.
    """
    names = sorted(name for name in environment if name.startswith("PET_"))
    if not names or _OPERATOR in environment:
        return
    yield warning(
        "leftover-pet-variables",
        f"{_listed(environment, names)} set in the environment",
        why="torchrun reads PET_<OPTION> as if the option had been typed; ddplaunch removes them from its launches, a "
        "plain torchrun obeys them",
        fix=f"`unset {' '.join(names)}`, and use options instead",
        where=ENVIRONMENT,
    )


def _listed(environment: dict[str, str], names: list[str]) -> str:
    return f"{listed([f'{name}={environment[name]}' for name in names])} {'is' if len(names) == 1 else 'are'}"


def distributed_debug_detail(environment: dict[str, str], launch: Launch | None = None) -> Iterator[Finding]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL is set, which slows every collective and can crash DDP.

    DETAIL checks each collective over a second process group before it runs. With DistributedDataParallel and a
    healthy model it crashed torch 2.13.0+cpu with SIGSEGV; INFO did not. Remedy: INFO, or DETAIL for one short run.
    """
    for setting in user_variables(environment, launch):
        if setting.name == "TORCH_DISTRIBUTED_DEBUG" and setting.value.upper() == "DETAIL":
            yield warning(
                "distributed-debug-detail",
                "TORCH_DISTRIBUTED_DEBUG is DETAIL",
                why="it checks every collective over a second process group first; torch 2.13.0+cpu crashed with it "
                "(SIGSEGV) in DistributedDataParallel with a healthy model",
                fix=f"{setting.removal}, or set `TORCH_DISTRIBUTED_DEBUG=INFO`",
                where=setting.where,
            )


def launch_blocking(environment: dict[str, str], launch: Launch | None = None) -> Iterator[Finding]:
    """CUDA_LAUNCH_BLOCKING is on, so the CPU waits for every kernel.

    It makes a CUDA error appear at the line that caused it, but prevents the overlap of computation, communication and
    data loading. It is meant for debugging and easily forgotten. Remedy: `unset CUDA_LAUNCH_BLOCKING`.
    """
    if launch and launch.device.value == "cpu":
        return
    for setting in user_variables(environment, launch):
        if setting.name == "CUDA_LAUNCH_BLOCKING" and setting.value not in ("", "0"):
            yield warning(
                "launch-blocking",
                f"CUDA_LAUNCH_BLOCKING is {setting.value}",
                why="the CPU waits for every kernel, so gradients are not reduced while others are computed",
                fix=f"{setting.removal}, unless you are looking for a CUDA error",
                where=setting.where,
            )


def infiniband_disabled(
    network: NetworkFacts, environment: dict[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """NCCL_IB_DISABLE=1 is set although an InfiniBand port is active.

    NCCL then uses TCP sockets between nodes, often ten times slower. The setting is often copied from guides for
    machines without InfiniBand. Remedy: `unset NCCL_IB_DISABLE`; ddplaunch sets it if no port is active.
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
    """Whether NCCL connects several nodes and no option decides about InfiniBand."""
    return launch.device.value == "cuda" and launch.topology.nnodes.value > 1 and launch.options.nccl_ib is None


# Accepts one wrong, missing or swapped letter in a name of average length, but not the names of other programs.
_LIKENESS = 0.87
_OLD = {renamed.old for renamed in RENAMED}


def near_miss(name: str) -> str | None:
    """Return the known variable that ``name`` probably misspells; None if it is known, or like no known one."""
    if name in KNOWN or name in _OLD or name in INEFFECTIVE or not name.startswith((*PREFIXES, *GENERAL_PREFIXES)):
        return None
    close = get_close_matches(name, sorted(KNOWN), n=1, cutoff=_LIKENESS)
    return close[0] if close else None


def misspelt_variable(
    environment: dict[str, str], launch: Launch | None = None, script: ScriptReport | None = None
) -> Iterator[Finding]:
    """A variable is spelled almost like one that NCCL, gloo or torch reads.

    They silently ignore unknown variables, so the setting has no effect. The known names come from NCCL's
    documentation and releases and from torch's sources. Names that the script reads are not reported.
    Remedy: the name that the finding proposes.
    """
    for setting in user_variables(environment, launch):
        meant = near_miss(setting.name)
        if meant and not _read_by(script, setting.name):
            yield warning(
                "misspelt-variable",
                f"{setting.name} is set; did you mean {meant}?",
                why="NCCL, gloo and torch ignore unknown variables, so it has no effect",
                fix=f"{setting.removal} and set `{meant}={setting.value}`",
                where=setting.where,
            )


def renamed_variable(
    environment: dict[str, str], torch: TorchFacts, launch: Launch | None = None, script: ScriptReport | None = None
) -> Iterator[Finding]:
    """A variable is set by its old name, and the installed torch has a new one for it.

    torch reads the old name as a fallback, with a deprecation warning from every rank, until a release drops it.
    Remedy: set the new name, or both to support older releases too.
    """
    settings = {setting.name: setting for setting in user_variables(environment, launch)}
    for renamed in RENAMED:
        setting = settings.get(renamed.old)
        if setting is None or renamed.new in settings or _read_by(script, renamed.old):
            continue
        if (major_minor(torch.version) or (0, 0)) >= renamed.since:
            yield warning(
                "renamed-variable",
                f"{renamed.old} is set, which torch {torch.version} calls {renamed.new}",
                why="the old name is deprecated, and a later release will ignore it",
                fix=f"{setting.removal} and set `{renamed.new}={setting.value}`",
                where=setting.where,
            )


def ineffective_variable(
    environment: dict[str, str], launch: Launch | None = None, script: ScriptReport | None = None
) -> Iterator[Finding]:
    """A variable is set that neither NCCL nor torch reads.

    Many guides set NCCL_TIMEOUT, but the timeout of collectives is an argument of `init_process_group`. NCCL removed
    others years ago. Names that the script reads are not reported. Remedy: the one that the finding names.
    """
    for setting in user_variables(environment, launch):
        if setting.name in INEFFECTIVE and not _read_by(script, setting.name):
            why, instead = INEFFECTIVE[setting.name]
            yield warning(
                "ineffective-variable",
                f"{setting.typed} has no effect",
                why=why,
                fix=f"{setting.removal}; {instead}",
                where=setting.where,
            )


def _read_by(script: ScriptReport | None, name: str) -> bool:
    return script is not None and name in script.reads_env


CHECKS: tuple[Check, ...] = (
    declare("environment", leftover_rank_variables),
    declare("environment", leftover_pet_variables),
    declare("environment", distributed_debug_detail),
    declare("environment", launch_blocking),
    declare("environment", infiniband_disabled),
    declare("environment", misspelt_variable),
    declare("environment", renamed_variable),
    declare("environment", ineffective_variable),
)
