"""The environment variables of the ranks, each with its reason; those that the user set stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

from ddplaunch.launch.launch import Device, Topology, Variable
from ddplaunch.launch.options import Options
from ddplaunch.machine.facts import Facts, NetworkFacts
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Source, Unavailable
from ddplaunch.values.variable_names import SETTINGS


@dataclass(frozen=True)
class Surroundings:
    """What the variables depend on besides options and topology.

    ``gpus`` are the entries for CUDA_VISIBLE_DEVICES (None: leave alone); ``pairs`` what --env and --env-file set,
    in order; ``record`` is the run's directory.
    """

    environ: Mapping[str, str]
    facts: Facts
    device: Device
    gpus: tuple[str, ...] | None
    gpus_source: Source
    pairs: tuple[tuple[str, str, Source], ...]
    record: str


def decide_environment(
    options: Options, topology: Topology, surroundings: Surroundings, plan: tuple[Variable, ...]
) -> tuple[Variable, ...]:
    """Return every variable of the launch: ours first, then ``plan`` (DDPLAUNCH_*), then the user's own.

    The plug-in's settings of an outer launch are removed unless this launch sets its own. A variable that the
    user set, in the environment or by ``--env``, is kept and shown as theirs. An explicit flag (``--gpus``,
    ``--nccl-debug`` …) outranks the environment, ``--env`` outranks both.
    """
    wanted = [
        *_general(topology, surroundings),
        *_cuda(options, surroundings),
        *_flight_recorder(surroundings),
        *_interfaces(options, topology, surroundings),
        *_restarts(options),
        *plan,
    ]
    mine = {name: Variable(name, value, source, "yours") for name, value, source in surroundings.pairs}
    result = []
    for variable in wanted:
        theirs = mine.pop(variable.name, None)
        if theirs is not None:
            result.append(theirs)
        elif variable.name in surroundings.environ and variable.source.kind in ("detected", "default"):
            value = surroundings.environ[variable.name]
            result.append(Variable(variable.name, value, Source("environment"), "yours, left alone"))
        else:
            result.append(variable)
    return (*result, *mine.values(), *_removed(surroundings, {item.name for item in (*result, *mine.values())}))


def _general(topology: Topology, surroundings: Surroundings) -> list[Variable]:
    variables = [
        Variable("PYTHONFAULTHANDLER", "1", Source("default"), "a rank that dies of a signal prints its Python stack")
    ]
    cpu = surroundings.facts.cpu
    if not isinstance(cpu, Unavailable):
        processes = topology.nproc_per_node.value
        threads = max(1, cpu.usable // processes)
        reason = f"{cpu.usable} usable CPUs / {processes} processes; unset, torchrun would say 1"
        variables.append(Variable("OMP_NUM_THREADS", str(threads), Source("detected"), reason))
    return variables


def _cuda(options: Options, surroundings: Surroundings) -> list[Variable]:
    nvml = surroundings.facts.nvml
    if surroundings.device == "cpu":
        if isinstance(nvml, Unavailable) or not nvml.gpus:
            return []
        source = options.device.source if options.device else Source("detected")
        return [Variable("CUDA_VISIBLE_DEVICES", "", source, "hides the GPUs: this launch runs on the CPU")]
    variables = []
    if surroundings.gpus is not None:
        reason = "the GPUs of this launch"
        variables.append(
            Variable("CUDA_VISIBLE_DEVICES", ",".join(surroundings.gpus), surroundings.gpus_source, reason)
        )
    variables.append(
        Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", Source("default"), "GPU numbers mean what `nvidia-smi` shows")
    )
    if options.nccl_debug:
        variables.append(Variable("NCCL_DEBUG", options.nccl_debug.value, options.nccl_debug.source, "asked for"))
    else:
        variables.append(Variable("NCCL_DEBUG", "WARN", Source("default"), "NCCL prints its errors, and nothing else"))
    return [*variables, *_infiniband(options, surroundings.facts.network)]


def _infiniband(options: Options, network: NetworkFacts | Unavailable) -> list[Variable]:
    if options.nccl_ib is not None:
        value = "0" if options.nccl_ib.value else "1"
        return [Variable("NCCL_IB_DISABLE", value, options.nccl_ib.source, "asked for")]
    if isinstance(network, Unavailable) or any(port.state == "ACTIVE" for port in network.infiniband):
        return []
    reason = "no InfiniBand port is up" if network.infiniband else "this machine has no InfiniBand device"
    return [Variable("NCCL_IB_DISABLE", "1", Source("detected"), reason)]


def _flight_recorder(surroundings: Surroundings) -> list[Variable]:
    if surroundings.device == "cpu":
        return []
    dump = f"{surroundings.record}/flight-recorder-rank-"
    reason = "records which ranks were missing at a collective timeout"
    pairs = [
        ("TORCH_FR_BUFFER_SIZE", "2000"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
        ("TORCH_FR_DUMP_TEMP_FILE", dump),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", dump),
    ]
    return [Variable(name, value, Source("default"), reason) for name, value in pairs]


def _interfaces(options: Options, topology: Topology, surroundings: Surroundings) -> list[Variable]:
    """Name the interface to NCCL and gloo where it is known; ``=`` makes NCCL match exactly, not by prefix."""
    if options.socket_ifname is not None:
        exact, source, reason = options.socket_ifname.value, options.socket_ifname.source, "asked for"
        name = gloo_interfaces(exact)
    else:
        network = surroundings.facts.network
        if topology.nnodes.value == 1 or isinstance(network, Unavailable):
            return []
        route = network.route_to_master
        if isinstance(route, Unavailable) or route.interface is None or route.interface == "lo":
            return []
        name, source = route.interface, Source("detected")
        exact, reason = f"={name}", f"on the route to {route.destination}"
    nccl = [Variable("NCCL_SOCKET_IFNAME", exact, source, reason)] if surroundings.device == "cuda" else []
    return [*nccl, *([Variable("GLOO_SOCKET_IFNAME", name, source, reason)] if name is not None else [])]


def gloo_interfaces(value: str) -> str | None:
    """Return what gloo is told for a value in NCCL's spelling; None where it only excludes (``^``), which gloo cannot.

    Gloo takes names, NCCL prefixes or, behind ``=``, names:
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    return None if value.startswith("^") else value.removeprefix("=")


def _restarts(options: Options) -> list[Variable]:
    """Give each attempt a store of its own: restarted ranks would find stale keys in a shared one.

    https://github.com/pytorch/pytorch/issues/135712
    """
    if options.max_restarts is None or options.max_restarts.value == 0:
        return []
    reason = "restarted ranks need a store without the keys of the attempt before"
    return [Variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", Source("default"), reason)]


def _removed(surroundings: Surroundings, decided: set[str]) -> list[Variable]:
    """Remove stale ``PET_*``, which torchrun reads as options; on Kubernetes an operator sets them on purpose."""
    outer = []
    if SETTINGS in surroundings.environ and SETTINGS not in decided:
        outer.append(Variable(SETTINGS, None, Source("default"), "it belongs to another launch"))
    if "KUBERNETES_SERVICE_HOST" in surroundings.environ:
        return outer
    names = sorted(name for name in surroundings.environ if name.startswith("PET_") and name not in decided)
    reason = "torchrun would read it as an option that is not in this plan"
    return [*outer, *(Variable(name, None, Source("default"), reason) for name in names)]
