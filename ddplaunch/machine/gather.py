"""Runs all probes of one machine and returns its facts; a probe that fails becomes an ``Unavailable``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from ddplaunch.machine import environ as environment
from ddplaunch.machine import hardware, network, paths, software
from ddplaunch.machine.facts import (
    NO_MASTER,
    NO_PORT,
    NOT_ASKED,
    Facts,
    NetworkFacts,
    NvidiaFacts,
    NvmlFacts,
    PathFact,
    PortFact,
    ProbeRequest,
    Route,
    TorchImport,
)
from ddplaunch.values.resolved import Unavailable

T = TypeVar("T")

_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # dxg: WSL, kfd: AMD
_OWN_NAME_DEADLINE_S = 1.0
_MASTER_NAME_DEADLINE_S = 3.0


def gather(request: ProbeRequest, environ: Mapping[str, str] | None = None) -> Facts:
    """Look at this machine and return its facts; never raises.

    A probe that fails in a way it did not foresee becomes ``Unavailable("probe failed: …")``. What may take
    long (torch's import, names, paths) is started first and collected last.
    """
    env = dict(os.environ if environ is None else environ)
    torch_import = _begin_import(request)
    own_name = ask(lambda: network.start(os.uname().nodename))
    master = request.master_addr
    master_name = ask(lambda: network.start(master)) if master else NO_MASTER
    data, output = _begin_paths(request, "data"), _begin_paths(request, "output")
    nvml, nvidia = _gpus(request.gpu_details)
    own_addresses = ask(lambda: _resolved(own_name, _OWN_NAME_DEADLINE_S))
    network_facts = ask(lambda: _network(master, master_name))
    variables = ask(lambda: environment.probe_environment(env))
    return Facts(
        host=ask(lambda: software.probe_host(own_addresses, env)),
        python=ask(lambda: software.probe_python(env)),
        torch=ask(software.probe_torch),
        nvidia=nvidia,
        nvml=nvml,
        cpu=ask(hardware.probe_cpu),
        memory=ask(hardware.probe_memory),
        shm=ask(hardware.probe_shm),
        limits=ask(hardware.probe_limits),
        network=network_facts,
        master_port=ask(lambda: _port(request, network_facts)),
        environment={} if isinstance(variables, Unavailable) else variables,
        data_paths=data(),
        output_paths=output(),
        torch_import=torch_import(),
        packages=ask(software.probe_packages) if request.packages else NOT_ASKED,
    )


def ask(probe: Callable[[], T]) -> T | Unavailable:
    """Return what ``probe`` returns, or its unexpected exception as a value."""
    try:
        return probe()
    except Exception as error:
        return Unavailable(f"probe failed: {type(error).__name__}: {error}")


def _begin_import(request: ProbeRequest) -> Callable[[], TorchImport | Unavailable]:
    if not request.import_torch or (request.torch_needs_gpu and not any(os.access(path, os.F_OK) for path in _DRIVERS)):
        return lambda: NOT_ASKED
    from ddplaunch.machine import torch_child  # subprocess costs milliseconds that a launch does not pay

    child = ask(torch_child.start)
    if isinstance(child, Unavailable):
        return lambda: child
    return lambda: ask(lambda: torch_child.finish(child))


def _begin_paths(request: ProbeRequest, role: paths.Role) -> Callable[[], tuple[PathFact, ...]]:
    wanted = request.data_paths if role == "data" else request.output_paths
    looks = ask(lambda: paths.PathLooks([(path, role) for path in wanted]))

    def finish() -> tuple[PathFact, ...]:
        found = looks if isinstance(looks, Unavailable) else ask(lambda: looks.finish(request.path_deadline_s))
        if isinstance(found, Unavailable):
            return tuple(PathFact(path, "unreachable", error=found.reason) for path in wanted)
        return found

    return finish


def _gpus(details: bool) -> tuple[NvmlFacts | Unavailable, NvidiaFacts | Unavailable]:
    from ddplaunch.machine.nvml import probe_nvidia, probe_nvml

    found = ask(lambda: probe_nvml(details))
    nvml, error = (found, found.reason) if isinstance(found, Unavailable) else found
    return nvml, ask(lambda: probe_nvidia(error))


def _resolved(lookup: network.Lookup | Unavailable, deadline_s: float) -> tuple[str, ...] | Unavailable:
    return lookup if isinstance(lookup, Unavailable) else network.finish(lookup, deadline_s)


def _network(master: str | None, lookup: network.Lookup | Unavailable) -> NetworkFacts:
    interfaces = network.probe_interfaces()
    route: Route | Unavailable = NO_MASTER
    if master:
        addresses = _resolved(lookup, _MASTER_NAME_DEADLINE_S)
        route = ask(lambda: network.probe_route(master, addresses, interfaces))
    return NetworkFacts(interfaces, network.probe_infiniband(), route)


def _port(request: ProbeRequest, found: NetworkFacts | Unavailable) -> PortFact | Unavailable:
    """Probe the port where it will be bound: on the master itself, or here if no master is named."""
    if request.master_port is None:
        return NO_PORT
    route = found.route_to_master if isinstance(found, NetworkFacts) else found
    if request.master_addr and isinstance(route, Unavailable):
        return Unavailable(f"whether `{request.master_addr}` is this host is unknown: {route.reason}")
    if isinstance(route, Route) and not route.is_local:
        return Unavailable(f"port {request.master_port} is bound on `{request.master_addr}`, not on this host")
    return network.probe_port(request.master_port)
