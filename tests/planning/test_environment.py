"""Every variable of a launch: its value, who decided it and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddplaunch.machine.facts import CpuFacts, Facts, InfinibandPort, Route
from ddplaunch.planning.gpus import Exported, select
from ddplaunch.planning.launch import Variable
from ddplaunch.planning.options import Options
from ddplaunch.planning.ranks.environment import flight_recorder
from ddplaunch.values.resolved import Source, Unavailable
from tests.checks.healthy import healthy_facts, healthy_network, healthy_nvml
from tests.planning.test_resolve import decide as resolved
from tests.planning.test_topology import said

BY_ENV = Source("flag", "--env")


def decide(options: Options | None = None, facts: Facts | None = None, **changes: Any) -> dict[str, Variable]:
    options = options or said(nproc="4")
    found = resolved(options, facts or healthy_facts(cpu=CpuFacts(16, 16, None, 16)), **changes).environment
    assert all(variable.reason for variable in found)
    assert len({variable.name for variable in found}) == len(found)
    return {variable.name: variable for variable in found}


def test_a_gpu_launch_gets_what_debugging_needs() -> None:
    found = decide()
    assert found["OMP_NUM_THREADS"].value == "4"
    assert found["NCCL_DEBUG"].value == "WARN"
    assert found["CUDA_DEVICE_ORDER"].value == "PCI_BUS_ID"
    assert found["PYTHONFAULTHANDLER"].value == "1"
    assert found["TORCH_NCCL_DUMP_ON_TIMEOUT"].value == "1"
    assert found["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"].value == "/runs/run-1/flight-recorder-rank-", "its torch is 2.8"
    assert "NCCL_IB_DISABLE" not in found, "an InfiniBand port is up"
    assert "CUDA_VISIBLE_DEVICES" not in found, "nobody asked for particular GPUs"
    assert "GLOO_SOCKET_IFNAME" not in found, "one node needs no interface"
    of_cpus = decide(said(device="cpu"))
    assert (of_cpus["CUDA_VISIBLE_DEVICES"].value, of_cpus["ACCELERATE_USE_CPU"].value) == ("", "true")
    assert "ACCELERATE_USE_CPU" not in found
    assert decide(said(gpus="3,1"), selection=CHOSEN)["CUDA_VISIBLE_DEVICES"].source.kind == "flag"
    assert not any(name.startswith(("NCCL", "TORCH")) for name in of_cpus)


STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
CHOSEN = select("3,1", healthy_nvml(), Exported(), frozenset(), None)
THREE_ONE = ("CUDA_VISIBLE_DEVICES", "3,1")
AS_IT_IS = "nothing is decided"


@pytest.mark.parametrize(
    ("options", "changes", "name", "value"),
    [
        ({"nproc": "64"}, {}, "OMP_NUM_THREADS", "1"),
        ({}, {"facts": healthy_facts(cpu=Unavailable("no /proc"))}, "OMP_NUM_THREADS", AS_IT_IS),
        ({}, {"facts": healthy_facts(network=Unavailable("no /sys"))}, "NCCL_IB_DISABLE", AS_IT_IS),
        ({"gpus": "3,1"}, {"selection": CHOSEN, "pairs": (("CUDA_VISIBLE_DEVICES", "0", BY_ENV),)}, *THREE_ONE),
        ({"gpus": "3,1", "nproc": "auto"}, {"selection": CHOSEN}, "OMP_NUM_THREADS", "8"),
        ({"max_restarts": 3}, {}, STORE, "1"),
        ({"max_restarts": 0}, {}, STORE, AS_IT_IS),
        ({}, {"environ": {"NCCL_DEBUG": "INFO"}}, "NCCL_DEBUG", "INFO"),
        ({}, {"environ": {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}}, "TORCH_NCCL_DUMP_ON_TIMEOUT", "0"),
        ({"nccl_debug": "TRACE"}, {"environ": {"NCCL_DEBUG": "INFO"}}, "NCCL_DEBUG", "TRACE"),
        ({"nccl_debug": "TRACE"}, {"pairs": (("NCCL_DEBUG", "WARN", BY_ENV),)}, "NCCL_DEBUG", "WARN"),
        ({"socket_ifname": "=eth0"}, {}, "GLOO_SOCKET_IFNAME", "eth0"),
        ({"socket_ifname": "=eth0"}, {}, "NCCL_SOCKET_IFNAME", "=eth0"),
        ({"socket_ifname": "^docker0,lo"}, {}, "GLOO_SOCKET_IFNAME", AS_IT_IS),
        ({}, {"environ": {"PET_NNODES": "4", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}}, "PET_NNODES", AS_IT_IS),
        ({}, {"environ": {"PET_NNODES": "4"}}, "PET_NNODES", None),
        ({}, {"environ": {"PET_NNODES": "4"}, "pairs": (("PET_NNODES", "2", BY_ENV),)}, "PET_NNODES", "2"),
    ],
)
def test_one_variable(options: dict[str, Any], changes: dict[str, Any], name: str, value: str | None) -> None:
    found = decide(said(**{"nproc": "4", **options}), **changes)
    assert (found[name].value if name in found else AS_IT_IS) == value
    if changes.get("environ", {}).get(name) == value:
        assert name not in found or found[name].source.kind == "environment"


@pytest.mark.parametrize(
    ("torch", "buffer", "dumps"),
    [
        ("2.8.0+cu126", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.9.0", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("our-own", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        (None, "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
    ],
)
def test_the_flight_recorder_is_set_by_the_names_of_this_torch(torch: str | None, buffer: str, dumps: str) -> None:
    """Of both names every rank says that one is deprecated."""
    found = {each.name: each.value for each in flight_recorder("/run", torch, ())}
    assert found == {buffer: "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", dumps: "/run/flight-recorder-rank-"}
    for old in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        theirs = [each.name for each in flight_recorder("/run", torch, {old})]
        assert (buffer in theirs) == (old == buffer), "the user's other name keeps its value"


@pytest.mark.parametrize(
    ("ports", "reason"),
    [((), "no InfiniBand device"), ((InfinibandPort("mlx5_0", 1, "DOWN", "InfiniBand"),), "no InfiniBand port is up")],
)
def test_infiniband_is_disabled_where_none_is_up(ports: tuple[InfinibandPort, ...], reason: str) -> None:
    found = decide(facts=healthy_facts(network=healthy_network(infiniband=ports)))
    variable = found["NCCL_IB_DISABLE"]
    assert variable.value == "1" and reason in variable.reason and "NCCL_DEBUG" in found


def test_the_interface_on_the_route_is_named_to_nccl_exactly_and_to_gloo() -> None:
    route = Route("10.0.0.1", "eth0", "10.0.0.5", False)
    options = said(nnodes="2", nproc="4", node_rank=1, master_addr="10.0.0.1")
    found = decide(options, healthy_facts(network=healthy_network(route_to_master=route)))
    assert (found["NCCL_SOCKET_IFNAME"].value, found["GLOO_SOCKET_IFNAME"].value) == ("=eth0", "eth0")
    assert "10.0.0.1" in found["NCCL_SOCKET_IFNAME"].reason
    for interface in ("lo", None):
        unnamed = replace(route, interface=interface)
        found = decide(options, healthy_facts(network=healthy_network(route_to_master=unnamed)))
        assert "NCCL_SOCKET_IFNAME" not in found
