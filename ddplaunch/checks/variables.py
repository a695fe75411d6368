"""Checks of variables that are left over or that change what a launch does; refuses to check how names are spelled.

The environment variables that the user set, wherever they did; refuses to judge any of them.

Checks of variables whose name is misspelt, outdated or read by nobody; refuses to look at their values.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.known_variables import GENERAL_PREFIXES, INEFFECTIVE, KNOWN, PREFIXES, RENAMED
from ddplaunch.launch.launch import Launch
from ddplaunch.machine.facts import NetworkFacts, TorchFacts
from ddplaunch.script.report import ScriptReport
from ddplaunch.values.finding import Finding, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import listed

ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Setting:
    """One variable as the user set it. ``where`` is "environment", "--env" or what the source of the pair says."""

    name: str
    value: str
    where: str

    @property
    def typed(self) -> str:
        """``NAME=value`` as one would type it."""
        return f"{self.name}={self.value}"

    @property
    def removal(self) -> str:
        """What to do to get rid of it, as a clause with text that can be typed."""
        if self.where == ENVIRONMENT:
            return f"`unset {self.name}`"
        return f"drop `{self.typed}` from {self.where}"


def user_variables(environment: dict[str, str], launch: Launch | None) -> tuple[Setting, ...]:
    """Return what is set in the environment and by ``--env``, ``--env-file`` or profile; the later outranks."""
    settings = {name: Setting(name, value, ENVIRONMENT) for name, value in environment.items()}
    for setting in _from_launch(launch) if launch else ():
        settings[setting.name] = setting
    return tuple(settings.values())


def _from_launch(launch: Launch) -> Iterator[Setting]:
    """Yield the user's own pairs. The plan has those of ``--env-file`` too, under a source that is theirs."""
    for variable in launch.environment:
        if variable.value is not None and variable.reason == "yours":
            yield Setting(variable.name, variable.value, variable.source.detail or str(variable.source))
    for pair in launch.options.env:
        name, _, value = pair.value.partition("=")
        yield Setting(name, value, pair.source.detail or "--env")


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
    return f"{listed([f'{name}={environment[name]}' for name in names])} {'is' if len(names) == 1 else 'are'}"


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


# Close enough for one wrong, missing or swapped letter in a name of average length; other programs' names are not.
LIKENESS = 0.87
_OLD = {renamed.old for renamed in RENAMED}


def near_miss(name: str) -> str | None:
    """Return the known variable that ``name`` was probably meant to be, or None if it is known or like none."""
    if name in KNOWN or name in _OLD or name in INEFFECTIVE or not name.startswith((*PREFIXES, *GENERAL_PREFIXES)):
        return None
    close = get_close_matches(name, sorted(KNOWN), n=1, cutoff=LIKENESS)
    return close[0] if close else None


def misspelt_variable(
    environment: dict[str, str], launch: Launch | None = None, script: ScriptReport | None = None
) -> Iterator[Finding]:
    """A variable is spelled almost, but not quite, like one that NCCL, gloo or torch reads.

    Unknown variables are ignored without a word, so the setting has no effect. The known names come from NCCL's
    documentation and releases and from torch's sources. A name that the script itself reads is left alone.
    Remedy: the name that the finding proposes.
    """
    for setting in user_variables(environment, launch):
        meant = near_miss(setting.name)
        if meant and not _read_by(script, setting.name):
            yield warning(
                "misspelt-variable",
                f"{setting.name} is set; did you mean {meant}?",
                why="NCCL, gloo and torch ignore variables that they do not know, so it has no effect",
                fix=f"{setting.removal} and set `{meant}={setting.value}`",
                where=setting.where,
            )


def renamed_variable(
    environment: dict[str, str], torch: TorchFacts, launch: Launch | None = None, script: ScriptReport | None = None
) -> Iterator[Finding]:
    """A variable is set by its old name, and the installed torch has a new one for it.

    The old name is a fallback that torch reads with a deprecation warning from every rank, until a release drops it.
    Setting both names is fine and keeps a launch working with older releases. Remedy: set the new name.
    """
    settings = {setting.name: setting for setting in user_variables(environment, launch)}
    for renamed in RENAMED:
        setting = settings.get(renamed.old)
        if setting is None or renamed.new in settings or _read_by(script, renamed.old):
            continue
        if _release(torch.version) >= renamed.since:
            yield warning(
                "renamed-variable",
                f"{renamed.old} is set, which torch {torch.version} calls {renamed.new}",
                why="the old name is deprecated and goes unread as soon as a release drops it",
                fix=f"{setting.removal} and set `{renamed.new}={setting.value}`",
                where=setting.where,
            )


def ineffective_variable(
    environment: dict[str, str], launch: Launch | None = None, script: ScriptReport | None = None
) -> Iterator[Finding]:
    """A variable is set that neither NCCL nor torch reads.

    NCCL_TIMEOUT stands in many guides, yet the timeout of collectives is an argument of `init_process_group`. Others
    were removed from NCCL years ago. A name that the script itself reads is left alone.
    Remedy: what the finding names for the variable.
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


def _release(version: str) -> tuple[int, int]:
    """Return (major, minor) of a version such as ``2.9.0a0+git1234``; (0, 0) where it is not to be read."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return (0, 0)
    return int(parts[0]), int(parts[1])


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
