"""The environment family: leftovers, spelling, renamed and unread variables."""

from __future__ import annotations

import pytest

from ddplaunch.checks.known_variables import INEFFECTIVE, KNOWN
from ddplaunch.checks.variables import CHECKS, near_miss
from ddplaunch.planning.launch import Variable
from ddplaunch.planning.options import Options
from ddplaunch.values.resolved import Resolved, Source
from tests.checks.cases import NO_LAUNCH, NO_SCRIPT, found, silent_when_healthy
from tests.checks.healthy import healthy_facts, healthy_launch, healthy_script, healthy_torch, topology

FIRES = [
    (
        "leftover-rank-variables",
        {"RANK": "3", "WORLD_SIZE": "8"},
        "the launcher's environment has RANK=3, WORLD_SIZE=8",
    ),
    ("leftover-rank-variables", {"LOCAL_RANK": "0"}, "LOCAL_RANK=0"),
    ("distributed-debug-detail", {"TORCH_DISTRIBUTED_DEBUG": "detail"}, "DETAIL"),
    ("launch-blocking", {"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING is 1"),
    ("misspelt-variable", {"NCCL_SOCKET_IFNAMES": "eth0"}, "did you mean NCCL_SOCKET_IFNAME?"),
    ("misspelt-variable", {"NCCL_DEBUGG": "INFO"}, "did you mean NCCL_DEBUG?"),
    ("misspelt-variable", {"CUDA_VISBLE_DEVICES": "0"}, "did you mean CUDA_VISIBLE_DEVICES?"),
    ("misspelt-variable", {"TORCH_NCCL_BLOKING_WAIT": "1"}, "did you mean TORCH_NCCL_BLOCKING_WAIT?"),
    ("misspelt-variable", {"NCCL_IB_DISABLED": "1"}, "did you mean NCCL_IB_DISABLE?"),
    ("misspelt-variable", {"MASTER_ADDRESS": "10.0.0.1"}, "did you mean MASTER_ADDR?"),
    ("ineffective-variable", {"NCCL_TIMEOUT": "3600"}, "NCCL_TIMEOUT=3600 has no effect"),
    ("ineffective-variable", {"NCCL_TREE_THRESHOLD": "0"}, "NCCL_TREE_THRESHOLD=0 has no effect"),
]
SILENT = [
    ("leftover-rank-variables", {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "1"}),
    ("leftover-rank-variables", {"RANK": "3", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}),
    ("distributed-debug-detail", {"TORCH_DISTRIBUTED_DEBUG": "INFO"}),
    ("launch-blocking", {"CUDA_LAUNCH_BLOCKING": "0"}),
    ("misspelt-variable", {"NCCL_VERSION": "2.27.3-1", "NCCL_DEBUG": "INFO", "CUDA_VERSION": "12.8"}),
    ("misspelt-variable", {"NCCL_BLOCKING_WAIT": "1", "NCCL_TIMEOUT": "10", "MY_NCCL_DEBUGG": "1"}),
    ("misspelt-variable", {"CUDA_HOME": "/usr/local/cuda", "CUDA_PATH": "/usr/local/cuda", "NODE_OPTIONS": "-x"}),
    ("misspelt-variable", {"PYTORCH_VERSION": "2.8.0", "NCCL_MY_PLUGIN_KNOB": "1", "OMP_PROC_BIND": "true"}),
    ("ineffective-variable", {"NCCL_ALGO": "Ring", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}),
]


@pytest.mark.parametrize(("code", "environment", "words"), FIRES)
def test_fires_in_a_launch_and_in_doctor(code: str, environment: dict[str, str], words: str) -> None:
    facts = healthy_facts(environment=environment)
    for launch, script in ((healthy_launch(), healthy_script()), (NO_LAUNCH, NO_SCRIPT)):
        finding = found(CHECKS, code, facts, launch, script)
        assert finding and words in finding.what
        assert all(name in finding.fix for name in environment)


@pytest.mark.parametrize(("code", "environment"), SILENT)
def test_silent(code: str, environment: dict[str, str]) -> None:
    assert found(CHECKS, code, healthy_facts(environment=environment)) is None


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


@pytest.mark.parametrize("name", ["NCCL_TIMEOUT", "NCCL_SOCKET_IFNAMES", "NCCL_BLOCKING_WAIT"])
def test_a_name_that_the_script_reads_is_its_own_business(name: str) -> None:
    facts, script = healthy_facts(environment={name: "1"}), healthy_script(reads_env=(name,))
    for code in ("ineffective-variable", "misspelt-variable"):
        assert found(CHECKS, code, facts, script=script) is None


def test_env_option_counts_and_says_where() -> None:
    pair = Resolved(("NCCL_TIMEOUT", "60"), Source("flag", "--env"))
    launch = healthy_launch(options=Options(env=(pair,)))
    finding = found(CHECKS, "ineffective-variable", launch=launch)
    assert finding and finding.where == ("--env",)
    assert "drop `NCCL_TIMEOUT=60` from --env" in finding.fix


def test_env_file_counts_and_what_the_launch_decided_does_not() -> None:
    mine = Variable("NCCL_TIMEOUT", "60", Source("flag", "--env-file job.env"), "yours")
    ours = Variable("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", Source("default"), "after a timeout")
    launch = healthy_launch(environment=(mine, ours))
    new = healthy_facts(torch=healthy_torch(version="2.13.0"))
    finding = found(CHECKS, "ineffective-variable", new, launch)
    assert finding and finding.where == ("--env-file job.env",)


def test_infiniband_disabled_by_hand() -> None:
    facts = healthy_facts(environment={"NCCL_IB_DISABLE": "1"})
    several = healthy_launch(topology=topology(8, 2))
    finding = found(CHECKS, "infiniband-disabled", facts, several)
    assert finding and "mlx5_0:1 is active" in finding.what
    assert found(CHECKS, "infiniband-disabled", facts, healthy_launch()) is None
    assert found(CHECKS, "infiniband-disabled", healthy_facts(environment={"NCCL_IB_DISABLE": "0"}), several) is None


def test_launch_blocking_does_not_matter_on_the_cpu() -> None:
    facts = healthy_facts(environment={"CUDA_LAUNCH_BLOCKING": "1"})
    launch = healthy_launch(device=Resolved("cpu", Source("flag")))
    assert found(CHECKS, "launch-blocking", facts, launch) is None


def test_the_table_does_not_contradict_itself() -> None:
    assert not [name for name in INEFFECTIVE if name in KNOWN]
    assert not [name for name in (*KNOWN, *INEFFECTIVE) if near_miss(name)]


def test_the_table_knows_what_the_installed_torch_declares() -> None:
    """The header that ships with torch lists what ProcessGroupNCCL reads; a new name would be called misspelt."""
    import re
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("torch")
    assert spec and spec.origin
    header = Path(spec.origin).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    names = set(re.findall(r'"((?:TORCH_)?NCCL_[A-Z_]+)"', header.read_text()))
    assert len(names) > 15
    assert names <= KNOWN
