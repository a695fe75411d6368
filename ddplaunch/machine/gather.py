"""Runs all probes of one machine and returns its facts; a probe that fails becomes an ``Unavailable``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from ddplaunch.machine import cpu_layout, hardware, network, paths, software
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
from ddplaunch.values.words import host_name

T = TypeVar("T")

_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # dxg: WSL, kfd: AMD
_OWN_NAME_DEADLINE_S = 1.0
_PATHS_DEADLINE_S = 2.0
_MASTER_NAME_DEADLINE_S = 3.0


def gather(request: ProbeRequest, environ: Mapping[str, str] | None = None) -> Facts:
    """Inspect this machine and return its facts; never raises.

    A probe that fails unexpectedly becomes ``Unavailable("probe failed: …")``. The slow ones (torch's import, names,
    paths) are started first and collected last.
    """
    env = dict(os.environ if environ is None else environ)
    torch_import = _begin(lambda: _import(request))
    own_name = _begin(lambda: network.look_up(host_name(), _OWN_NAME_DEADLINE_S))
    master = request.master_addr
    master_name = _begin(lambda: network.look_up(master, _MASTER_NAME_DEADLINE_S)) if master else lambda: NO_MASTER
    paths_with_roles: list[tuple[str, paths.Role]] = [(path, "data") for path in request.data_paths]
    records = [path or env.get("DDPLAUNCH_DIR") or ".ddplaunch" for path in request.record_paths]
    paths_with_roles += [(path, "output") for path in (*request.output_paths, *records)]
    looks = _begin(lambda: paths.begin_looks(paths_with_roles, _PATHS_DEADLINE_S))
    nvml, nvidia = _gpus()
    own_addresses = own_name()
    network_facts = _ask(lambda: _network(master, master_name()))
    variables = _ask(lambda: software.probe_environment(env))
    path_facts = looks()
    if isinstance(path_facts, Unavailable):
        path_facts = tuple(PathFact(path, "unreachable", error=path_facts.reason) for path, _ in paths_with_roles)
    return Facts(
        host=_ask(lambda: software.probe_host(own_addresses, env)),
        python=software.probe_python(),
        torch=_ask(software.probe_torch),
        nvidia=nvidia,
        nvml=nvml,
        cpu=_ask(hardware.probe_cpu),
        memory=_ask(hardware.probe_memory),
        shm=_ask(hardware.probe_shm),
        limits=_ask(hardware.probe_limits),
        network=network_facts,
        master_port=_ask(lambda: _port(request, network_facts)),
        environment={} if isinstance(variables, Unavailable) else variables,
        data_paths=path_facts[: len(request.data_paths)],
        output_paths=path_facts[len(request.data_paths) : len(paths_with_roles) - len(request.record_paths)],
        record_paths=path_facts[len(paths_with_roles) - len(request.record_paths) :],
        torch_import=torch_import(),
        packages=_ask(software.probe_packages) if request.packages else NOT_ASKED,
        cpu_layout=_ask(lambda: cpu_layout.probe_layout(nvml)),
    )


def _ask(probe: Callable[[], T]) -> T | Unavailable:
    """Return the result of ``probe``, or its unexpected exception as ``Unavailable``."""
    try:
        return probe()
    except Exception as error:
        return Unavailable(f"probe failed: {type(error).__name__}: {error}")


def _begin(start: Callable[[], Callable[[], T | Unavailable]]) -> Callable[[], T | Unavailable]:
    """Start a slow probe, and return a function that collects its answer; both may fail, as in ``_ask``."""
    finish = _ask(start)
    return (lambda: finish) if isinstance(finish, Unavailable) else lambda: _ask(finish)


def _import(request: ProbeRequest) -> Callable[[], TorchImport | Unavailable]:
    if not request.import_torch or (request.torch_needs_gpu and not any(os.access(path, os.F_OK) for path in _DRIVERS)):
        return lambda: NOT_ASKED
    from ddplaunch.machine import torch_child  # here: subprocess costs a launch milliseconds

    child = torch_child.start_import()
    return lambda: torch_child.finish(child)


def _gpus() -> tuple[NvmlFacts | Unavailable, NvidiaFacts | Unavailable]:
    from ddplaunch.machine.nvml import AMD_DRIVER, probe_amd, probe_nvml

    answer_of_nvml = _ask(probe_nvml)
    nvml, error = (answer_of_nvml, answer_of_nvml.reason) if isinstance(answer_of_nvml, Unavailable) else answer_of_nvml
    if isinstance(nvml, Unavailable) and error is None and os.access(AMD_DRIVER, os.F_OK):
        nvml = _ask(probe_amd)
    return nvml, _ask(lambda: hardware.probe_nvidia(error))


def _network(master: str | None, addresses: tuple[str, ...] | Unavailable) -> NetworkFacts:
    interfaces = network.probe_interfaces()
    route = _ask(lambda: network.probe_route(master, addresses, interfaces)) if master else NO_MASTER
    return NetworkFacts(interfaces, network.probe_infiniband(), route)


def _port(request: ProbeRequest, network_facts: NetworkFacts | Unavailable) -> PortFact | Unavailable:
    """Probe the port on the host that binds it: the master, or this host if no master is named."""
    if request.master_port is None:
        return NO_PORT
    route = network_facts.route_to_master if isinstance(network_facts, NetworkFacts) else network_facts
    if request.master_addr and isinstance(route, Unavailable):
        return Unavailable(f"whether `{request.master_addr}` is this host is unknown: {route.reason}")
    if isinstance(route, Route) and not route.is_local:
        return Unavailable(f"port {request.master_port} is bound on `{request.master_addr}`, not on this host")
    return network.probe_port(request.master_port)
