"""Checks of environment variables (left over, slow, misspelt, without effect) and of scripts for other launchers."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from ddplaunch.checks.check import Findings, checks_in
from ddplaunch.checks.known_variables import GENERAL_PREFIXES, INEFFECTIVE, KNOWN, PREFIXES, Setting, user_variables
from ddplaunch.machine.facts import NetworkFacts
from ddplaunch.planning.gpus import SHELL
from ddplaunch.planning.launch import Launch, Target
from ddplaunch.script.script_report import ScriptReport
from ddplaunch.values.codec import toml_beside
from ddplaunch.values.finding import error, warning
from ddplaunch.values.words import listed, nearest

_PROGRAMS = "torchrun torchx accelerate deepspeed mpirun mpiexec horovodrun srun ddplaunch"
_MODULES = """
    torch.distributed.run torch.distributed.launch accelerate.commands.launch accelerate.commands.accelerate_cli
    deepspeed.launcher.runner ddplaunch
"""
_LAUNCHERS, _LAUNCHER_MODULES = _PROGRAMS.split(), _MODULES.split()
# The variables that torchrun sets for each worker (torch/distributed/elastic/agent/server/local_elastic_agent.py),
# without MASTER_ADDR, MASTER_PORT and NODE_RANK: people set those on purpose, and the plan shows them.
_RANK_VARIABLES = """
    RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE
    TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_ERROR_FILE
"""
_OPERATOR = "KUBERNETES_SERVICE_HOST"  # Kubeflow's operators set RANK and WORLD_SIZE in a pod on purpose
# of each worker process; Ray Train's have the variables of a rank, in pods as well:
# https://docs.ray.io/en/latest/serve/advanced-guides/multi-app-container.html#environment-variables
_RAY_WORKER = "RAY_RAYLET_PID"


def leftover_rank_variables(environment: dict[str, str]) -> Findings:
    """Variables of a rank are set in the environment of the launcher.

    torchrun sets RANK, WORLD_SIZE and LOCAL_RANK for each worker. If they are left over in a shell from an earlier
    experiment, a script started there by hand behaves as one of several ranks and waits for the others. They are also
    there where torchrun or Ray Train starts ddplaunch, several times, and each starts all ranks. The check stays silent
    in a Kubernetes pod, where an operator sets them on purpose, unless Ray runs there. Remedy: `unset` them.
    """
    present = [name for name in _RANK_VARIABLES.split() if name in environment]
    if present and (_OPERATOR not in environment or _RAY_WORKER in environment):
        yield warning(
            "leftover-rank-variables",
            f"the launcher's environment has {listed([f'{name}={environment[name]}' for name in present])}",
            why="torchrun replaces them for its workers, but a script started by hand behaves as one of several ranks "
            "and waits for the others; where torchrun or Ray started this command, each process starts all ranks",
            fix=f"`unset {' '.join(present)}`",
            where=SHELL,
        )


def _about(setting: Setting, code: str, what: str, why: str, fix: str) -> Findings:
    """Yield the warning about a variable; ``fix`` is appended to how to remove the variable."""
    yield warning(code, what, why=why, fix=f"{setting.removal}{fix}", where=setting.where)


def distributed_debug_detail(environment: dict[str, str], launch: Launch | None = None) -> Findings:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL is set, which slows every collective and can crash DDP.

    DETAIL checks each collective over a second process group before it runs. With DistributedDataParallel and a
    healthy model it crashed torch 2.13.0+cpu with SIGSEGV; INFO did not. Remedy: INFO, or DETAIL for one short run.
    """
    setting = user_variables(environment, launch).get("TORCH_DISTRIBUTED_DEBUG")
    if setting is not None and setting.value.upper() == "DETAIL":
        yield from _about(
            setting,
            "distributed-debug-detail",
            "TORCH_DISTRIBUTED_DEBUG is DETAIL",
            "it checks every collective over a second process group first; torch 2.13.0+cpu crashed with it "
            "(SIGSEGV) in DistributedDataParallel with a healthy model",
            ", or set `TORCH_DISTRIBUTED_DEBUG=INFO`",
        )


def launch_blocking(environment: dict[str, str], launch: Launch | None = None) -> Findings:
    """CUDA_LAUNCH_BLOCKING is on, so the CPU waits for every kernel.

    It makes a CUDA error appear at the line that caused it, but prevents the overlap of computation, communication and
    data loading. It is meant for debugging and easily forgotten. Remedy: `unset CUDA_LAUNCH_BLOCKING`.
    """
    setting = user_variables(environment, launch).get("CUDA_LAUNCH_BLOCKING")
    if setting is not None and setting.on and not (launch and launch.device.value == "cpu"):
        yield from _about(
            setting,
            "launch-blocking",
            f"CUDA_LAUNCH_BLOCKING is {setting.value}",
            "the CPU waits for every kernel, so gradients are not reduced while others are computed",
            ", unless you are looking for a CUDA error",
        )


def infiniband_disabled(network: NetworkFacts, environment: dict[str, str], launch: Launch | None = None) -> Findings:
    """NCCL_IB_DISABLE=1 is set although an InfiniBand port is active.

    NCCL then uses TCP sockets between nodes, often ten times slower. The setting is often copied from guides for
    machines without InfiniBand. Remedy: `unset NCCL_IB_DISABLE`; ddplaunch sets it if no port is active.
    """
    setting = user_variables(environment, launch).get("NCCL_IB_DISABLE")
    if setting is None or not setting.on or (launch and not nccl_chooses_infiniband(launch)):
        return
    if active := active_ports(network):
        yield from _about(
            setting,
            "infiniband-disabled",
            f"NCCL_IB_DISABLE is {setting.value}, but {active}",
            "NCCL uses TCP sockets between nodes instead of RDMA",
            ", or `--env NCCL_IB_DISABLE=0`",
        )


def nccl_chooses_infiniband(launch: Launch) -> bool:
    """Whether NCCL connects several nodes, where InfiniBand matters."""
    return launch.device.value == "cuda" and launch.topology.nnodes.value > 1


def active_ports(network: NetworkFacts) -> str:
    """Return ``mlx5_0:1 is active`` or ``mlx5_0:1, mlx5_1:1 are active``; empty without an active InfiniBand port."""
    active = [f"{port.device}:{port.port}" for port in network.infiniband if port.state == "ACTIVE"]
    return f"{', '.join(active)} {'is' if len(active) == 1 else 'are'} active" if active else ""


# Accepts one wrong, missing or swapped letter in a name of average length, but not the names of other programs.
_LIKENESS = 0.87


def near_miss(name: str) -> str | None:
    """Return the known variable that ``name`` probably misspells; None if ``name`` is known or resembles none."""
    if name in KNOWN or name in INEFFECTIVE or not name.startswith((*PREFIXES, *GENERAL_PREFIXES)):
        return None
    return nearest(name, sorted(KNOWN), cutoff=_LIKENESS)


def misspelt_variable(
    environment: dict[str, str], launch: Launch | None = None, script: ScriptReport | None = None
) -> Findings:
    """A variable is spelled almost like one that NCCL, gloo or torch reads.

    All three silently ignore unknown variables, so the setting has no effect. The known names come from NCCL's
    documentation and releases and from torch's sources. Names that the script reads are not reported.
    Remedy: the name that the finding proposes.
    """
    for setting in user_variables(environment, launch).values():
        candidate = near_miss(setting.name)
        if candidate and not _read_by(script, setting.name):
            yield from _about(
                setting,
                "misspelt-variable",
                f"{setting.name} is set; did you mean {candidate}?",
                "NCCL, gloo and torch ignore unknown variables, so it has no effect",
                f" and set `{candidate}={setting.value}`",
            )


def ineffective_variable(
    environment: dict[str, str], launch: Launch | None = None, script: ScriptReport | None = None
) -> Findings:
    """A variable is set that neither NCCL nor torch reads.

    Many guides set NCCL_TIMEOUT, but the timeout of collectives is an argument of `init_process_group`. Other variables
    were removed from NCCL years ago. Names that the script reads are not reported. Remedy: the replacement that the
    finding names.
    """
    for setting in user_variables(environment, launch).values():
        if setting.name in INEFFECTIVE and not _read_by(script, setting.name):
            why, instead = INEFFECTIVE[setting.name]
            instead = instead.format(seconds=setting.value if setting.value.isdecimal() else 1800)
            yield from _about(setting, "ineffective-variable", f"{setting.typed} has no effect", why, f"; {instead}")


def _read_by(script: ScriptReport | None, name: str) -> bool:
    return script is not None and name in script.reads_env


def script_is_launcher(launch: Launch, launch_lines: tuple[str, ...] = ()) -> Findings:
    """The program for the ranks is itself a launcher, or a shell script that starts one.

    Each rank would start a launcher, and each launcher all ranks again: N x N processes, or ranks that wait for each
    other at the same port. Remedy: put the training script after `--`; `ddplaunch convert` translates a command of
    another launcher, or those in a shell script.
    """
    target = launch.target
    if target is None:
        return
    launcher = launcher_of_target(target)
    if launcher is not None:
        yield error(
            "script-is-launcher",
            f"every rank would run `{launcher[0]}`, which is a launcher",
            why="each rank would start all ranks again",
            fix=_launched_here(*launcher, launch.topology.nproc_per_node.value),
            where="--",
        )
    elif launch_lines:
        script = shlex.quote(target.args[0])
        more = f"; `ddplaunch convert {script}` shows all {len(launch_lines)}" if len(launch_lines) > 1 else ""
        first = launch_lines[0]
        fix = f"`{first}`" if "$" not in first else f"`ddplaunch convert {script} | patch -p0`, then `bash {script}`"
        yield error(
            "script-is-launcher",
            f"every rank would run `{target.args[0]}`, which starts a launcher",
            why="each rank would start all ranks again",
            fix=fix + more,
            where="--",
        )


def _launched_here(launcher: str, rest: tuple[str, ...], nproc: int) -> str:
    """Return the fix: the ddplaunch command for the launcher's command after ``--``."""
    from ddplaunch.planning.convert.launch_words import known_words  # only for this fix
    from ddplaunch.planning.convert.launcher_line import translate

    program = ["python", "-m", launcher] if launcher in _LAUNCHER_MODULES else [launcher]
    # as many processes as ddplaunch was asked for, where torchrun is not told how many
    program += [f"--nproc-per-node={nproc}"] * ("torch" in launcher)
    translation = translate(known_words([*program, *rest]))
    if translation and translation.words:
        return f"`{translation.source}`"
    script = next((position for position, item in enumerate(rest) if item.endswith(".py")), len(rest))
    target_text = shlex.join(rest[script:]) or "train.py"
    if instead := _of_own_ranks().get(launcher):
        return instead.format(nproc=nproc, rest=shlex.join(rest), script=target_text)
    return f"put the training script after `--`: `ddplaunch run {nproc} -- {target_text}`"


def launcher_of_target(target: Target) -> tuple[str, tuple[str, ...]] | None:
    """Return the launcher's name and arguments, also after ``python -m``; None if the target is not a launcher."""
    if target.kind == "module" and target.name in _LAUNCHER_MODULES:
        return target.name, target.args
    words = (*target.before, target.name, *target.args)
    programs = len(target.before) + (target.kind == "executable")
    for at, name in enumerate(PurePath(word).name for word in words[:programs]):
        if name in _LAUNCHERS:
            return name, words[at + 1 :]
        for following in (words[at + 1 : at + 2], ()):
            if (command := " ".join((name, *following))) in _of_own_ranks():
                return command, words[at + 1 + len(following) :]
    return None


def _of_own_ranks() -> dict[str, str]:
    """Return commands of frameworks that start ranks of their own, each with what to type instead."""
    rows: dict[str, str] = toml_beside(__file__, "launchers.toml")["launchers"]
    return rows


CHECKS = checks_in(globals(), "environment", script=(script_is_launcher,))
