"""The environment variables of the ranks, each with its reason; those that the user set stay as they are.

Each function returns the variables of one subject; ``with_the_users`` gives the user's own precedence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from ddplaunch.machine.facts import NetworkFacts, NvmlFacts
from ddplaunch.planning.flag import DeviceWord
from ddplaunch.planning.gpus import CUDA_VISIBLE, HIP_VISIBLE
from ddplaunch.planning.launch import Device, Placement, Variable
from ddplaunch.values.resolved import DEFAULT, Resolved, Source, Unavailable
from ddplaunch.values.variable_names import SETTINGS

_DETECTED = Source("detected")
OF_THIS_LAUNCH = "the GPUs of this launch"
#: The flight recorder's settings, each with its name in releases of torch before ``FLIGHT_RECORDER_SINCE``.
FLIGHT_RECORDER_BEFORE = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
FLIGHT_RECORDER_SINCE = (2, 9)


def with_the_users(
    ours: Sequence[Variable], environ: Mapping[str, str], pairs: Sequence[tuple[str, str, Source]]
) -> tuple[Variable, ...]:
    """Return every variable of the launch: ours first, then those that only ``pairs`` (--env) sets.

    A variable that the user set, in the environment or by ``--env``, is kept and shown as theirs. An explicit flag
    (``--nccl-debug`` …) outranks the environment, ``--env`` outranks both; but the list of ``--gpus`` stays, because it
    was chosen from the GPUs that they show. The plug-in's settings of an outer launch are removed unless this launch
    sets its own.
    """
    typed = {name: Variable(name, value, source, "yours") for name, value, source in pairs}
    result = []
    for variable in ours:
        yours = typed.pop(variable.name, None)
        if variable.reason == OF_THIS_LAUNCH:
            yours = None
        if yours is None and variable.name in environ and variable.source.kind in ("detected", "default"):
            yours = Variable(variable.name, environ[variable.name], Source("environment"), "yours, left alone")
        result.append(yours or variable)
    result += typed.values()
    return (*result, *_removed(environ, {item.name for item in result}))


def _removed(environ: Mapping[str, str], decided: set[str]) -> list[Variable]:
    """Return the variables to remove: an outer launch's settings, and stale ``PET_*``, which torchrun reads as options.

    On Kubernetes ``PET_*`` stay, because an operator sets them on purpose.
    """
    outer = []
    if SETTINGS in environ and SETTINGS not in decided:
        outer.append(Variable(SETTINGS, None, DEFAULT, "it belongs to another launch"))
    if "KUBERNETES_SERVICE_HOST" in environ:
        return outer
    names = sorted(name for name in environ if name.startswith("PET_") and name not in decided)
    reason = "torchrun would read it as an option that is not in this plan"
    return [*outer, *(Variable(name, None, DEFAULT, reason) for name in names)]


def of_every_rank(placement: Placement) -> list[Variable]:
    """Return the variables that all ranks get; their number of threads follows from their ``placement``."""
    stacks = Variable("PYTHONFAULTHANDLER", "1", DEFAULT, "a rank that dies of a signal prints its Python stack")
    if not placement.threads:
        return [stacks]
    return [stacks, Variable("OMP_NUM_THREADS", str(placement.threads), _DETECTED, placement.reason)]


def on_cpus(nvml: NvmlFacts | Unavailable, device: Resolved[DeviceWord] | None) -> list[Variable]:
    """Return the variables of ranks on the CPU; this machine's GPUs are hidden. ``device`` is ``--device`` if given.

    Without the first, accelerate makes no group of ranks without GPUs:
    https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/state.py (_prepare_backend)
    """
    variables = [Variable("ACCELERATE_USE_CPU", "true", DEFAULT, "without it, each rank of accelerate trains alone")]
    if not isinstance(nvml, Unavailable) and nvml.gpus:
        name, nothing = (HIP_VISIBLE, "-1") if nvml.vendor == "amd" else (CUDA_VISIBLE, "")
        source = device.source if device else _DETECTED
        variables.append(Variable(name, nothing, source, "hides the GPUs: this launch runs on the CPU"))
    return variables


def shown_gpus(gpus: tuple[str, ...] | None, typed: Resolved[str] | None, *, amd: bool) -> list[Variable]:
    """Return the variables that say which GPUs the ranks see and in which order; ``gpus`` is None if none were chosen.

    HIP (``amd``) has only one order.
    """
    source = typed.source if typed else _DETECTED
    if amd:
        return [] if gpus is None else [Variable(HIP_VISIBLE, ",".join(gpus), source, OF_THIS_LAUNCH)]
    order = Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", DEFAULT, "GPU numbers mean what `nvidia-smi` shows")
    if gpus is None:
        return [order]
    return [Variable(CUDA_VISIBLE, ",".join(gpus), source, OF_THIS_LAUNCH), order]


def nccl(level: Resolved[str] | None, network: NetworkFacts | Unavailable) -> list[Variable]:
    """Return the variables for how much NCCL prints, and for InfiniBand, which is off if no port is up."""
    debug = Variable("NCCL_DEBUG", "WARN", DEFAULT, "NCCL prints its errors, and nothing else")
    if level:
        debug = Variable("NCCL_DEBUG", level.value, level.source, "asked for")
    if isinstance(network, Unavailable) or any(port.state == "ACTIVE" for port in network.infiniband):
        return [debug]
    reason = "no InfiniBand port is up" if network.infiniband else "this machine has no InfiniBand device"
    return [debug, Variable("NCCL_IB_DISABLE", "1", _DETECTED, reason)]


def flight_recorder(record: str, torch: str | None, exported: Collection[str]) -> list[Variable]:
    """Return the variables that make NCCL write its last collectives to ``record``, the run's directory, at a timeout.

    They have the names that this ``torch`` ("2.8.0+cu126"; None if not known) reads without a warning: newer releases
    warn about old names on each rank. A setting that is ``exported`` under either name stays the user's.
    """
    version = re.match(r"(\d+)\.(\d+)", torch or "")
    new = version is None or (int(version[1]), int(version[2])) >= FLIGHT_RECORDER_SINCE
    reason = "records which ranks were missing at a collective timeout"
    dumps = f"{record}/flight-recorder-rank-"
    values = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": dumps}
    variables = []
    for name, value in values.items():
        old = FLIGHT_RECORDER_BEFORE.get(name, name)
        chosen, unused = (name, old) if new else (old, name)
        if chosen in exported or unused not in exported:
            variables.append(Variable(chosen, value, DEFAULT, reason))
    return variables


def interfaces(
    typed: Resolved[str] | None, nnodes: int, network: NetworkFacts | Unavailable, device: Device
) -> list[Variable]:
    """Return the variables that name the interface for NCCL and gloo, if it is known.

    ``=`` makes NCCL match exactly, not by prefix.
    """
    if typed is not None:
        exact, source, reason = typed.value, typed.source, "asked for"
        name = gloo_interfaces(exact)
    else:
        if nnodes == 1 or isinstance(network, Unavailable):
            return []
        route = network.route_to_master
        if isinstance(route, Unavailable) or route.interface is None or route.interface == "lo":
            return []
        name, source = route.interface, _DETECTED
        exact, reason = f"={name}", f"on the route to {route.destination}"
    variables = [Variable("NCCL_SOCKET_IFNAME", exact, source, reason)] if device == "cuda" else []
    return variables if name is None else [*variables, Variable("GLOO_SOCKET_IFNAME", name, source, reason)]


def gloo_interfaces(value: str) -> str | None:
    """Return gloo's value for one in NCCL's spelling; None if it only excludes interfaces (``^``), which gloo cannot.

    Gloo takes names, NCCL prefixes or, after ``=``, names:
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    return None if value.startswith("^") else value.removeprefix("=")


def restarts(most: int) -> list[Variable]:
    """Return the variable that gives each attempt its own store: a shared one would hold stale keys after a restart.

    https://github.com/pytorch/pytorch/issues/135712
    """
    if most == 0:
        return []
    reason = "restarted ranks need a store without the keys of the attempt before"
    return [Variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", DEFAULT, reason)]
