"""Every variable of a launch: its value, who decided it and why."""

from __future__ import annotations

from typing import Any

import pytest

from ddplaunch.machine.facts import CpuFacts, Facts, InfinibandPort, Route
from ddplaunch.planning.gpus import select
from ddplaunch.planning.launch import Variable
from ddplaunch.planning.options import Options
from ddplaunch.planning.ranks.environment import flight_recorder
from ddplaunch.values.resolved import Source, Unavailable
from tests.checks.healthy import healthy_facts, healthy_network, healthy_nvml
from tests.planning.test_resolve import decide as resolved
from tests.planning.test_topology import said

FLAG = Source("flag")


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


def test_more_processes_than_cpus_leave_one_thread_each() -> None:
    assert decide(said(nproc="64"))["OMP_NUM_THREADS"].value == "1"


def test_without_a_count_of_cpus_nothing_is_guessed() -> None:
    facts = healthy_facts(cpu=Unavailable("no /proc"))
    assert "OMP_NUM_THREADS" not in decide(facts=facts)


@pytest.mark.parametrize(
    ("ports", "reason"),
    [((), "no InfiniBand device"), ((InfinibandPort("mlx5_0", 1, "DOWN", "InfiniBand"),), "no InfiniBand port is up")],
)
def test_infiniband_is_disabled_where_none_is_up(ports: tuple[InfinibandPort, ...], reason: str) -> None:
    variable = decide(facts=healthy_facts(network=healthy_network(infiniband=ports)))["NCCL_IB_DISABLE"]
    assert variable.value == "1" and reason in variable.reason


def test_what_the_user_exported_wins_and_is_shown_as_theirs() -> None:
    variable = decide(environ={"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "7"})["NCCL_DEBUG"]
    assert (variable.value, variable.source.kind) == ("INFO", "environment")


def test_a_flag_outranks_the_environment_and_env_outranks_both() -> None:
    options = said(nccl_debug="TRACE")
    assert decide(options, environ={"NCCL_DEBUG": "INFO"})["NCCL_DEBUG"].value == "TRACE"
    pairs = (("NCCL_DEBUG", "VERSION", Source("flag", "--env")), ("WANDB_MODE", "offline", Source("flag", "--env")))
    found = decide(options, pairs=pairs)
    assert (found["NCCL_DEBUG"].value, found["WANDB_MODE"].value) == ("VERSION", "offline")


def test_the_interface_on_the_route_is_named_to_nccl_exactly_and_to_gloo() -> None:
    route = Route("10.0.0.1", "eth0", "10.0.0.5", False)
    options = said(nnodes="2", nproc="4", node_rank=1, master_addr="10.0.0.1")
    found = decide(options, healthy_facts(network=healthy_network(route_to_master=route)))
    assert (found["NCCL_SOCKET_IFNAME"].value, found["GLOO_SOCKET_IFNAME"].value) == ("=eth0", "eth0")
    assert "10.0.0.1" in found["NCCL_SOCKET_IFNAME"].reason


@pytest.mark.parametrize(("asked", "gloo"), [("eth0", "eth0"), ("=eth0", "eth0"), ("^docker0,lo", None)])
def test_an_interface_in_nccls_spelling_reaches_gloo_in_its_own(asked: str, gloo: str | None) -> None:
    found = decide(said(socket_ifname=asked))
    assert found["NCCL_SOCKET_IFNAME"].value == asked
    assert (found["GLOO_SOCKET_IFNAME"].value if "GLOO_SOCKET_IFNAME" in found else None) == gloo


def test_one_node_needs_no_interface() -> None:
    assert "GLOO_SOCKET_IFNAME" not in decide()


def test_a_cpu_launch_hides_the_gpus_and_says_nothing_to_nccl() -> None:
    found = decide(said(device="cpu"))
    assert found["CUDA_VISIBLE_DEVICES"].value == ""
    assert not any(name.startswith(("NCCL", "TORCH")) for name in found)


def test_chosen_gpus_are_passed_on_in_order() -> None:
    selection = select("3,1", healthy_nvml(), None, frozenset(), None)
    assert decide(said(gpus="3,1"), selection=selection)["CUDA_VISIBLE_DEVICES"].value == "3,1"


def test_restarts_get_a_store_of_their_own() -> None:
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    assert decide(said(max_restarts=3))[name].value == "1"
    assert name not in decide(said(max_restarts=0))


def test_stale_torchrun_variables_are_taken_away_except_an_operators() -> None:
    environ = {"PET_NNODES": "4"}
    assert decide(environ=environ)["PET_NNODES"].value is None
    assert "PET_NNODES" not in decide(environ={**environ, "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
