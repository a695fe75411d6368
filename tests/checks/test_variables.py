"""The environment family: leftovers, spelling, renamed and unread variables."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ddplaunch.checks.known_variables import INEFFECTIVE, KNOWN
from ddplaunch.checks.variables import near_miss
from ddplaunch.planning.launch import Variable
from ddplaunch.planning.options import Options
from ddplaunch.values.resolved import Resolved, Source
from tests.checks.cases import NO_LAUNCH, fires, in_doctor, judged, silent
from tests.checks.healthy import healthy_launch, healthy_script, topology


def exporting(**environment: str) -> dict[str, Any]:
    return {"environment": environment}


IN_BOTH = (
    fires("leftover-rank-variables", "RANK=3, WORLD_SIZE=8", "warning", **exporting(RANK="3", WORLD_SIZE="8")),
    fires("leftover-rank-variables", "LOCAL_RANK=0", "warning", **exporting(LOCAL_RANK="0")),
    fires(
        *("leftover-rank-variables", "RANK=3", "warning"),
        **exporting(RANK="3", KUBERNETES_SERVICE_HOST="10.96.0.1", RAY_RAYLET_PID="7"),
    ),
    fires("distributed-debug-detail", "DETAIL", "warning", **exporting(TORCH_DISTRIBUTED_DEBUG="detail")),
    fires("launch-blocking", "CUDA_LAUNCH_BLOCKING is 1", "warning", **exporting(CUDA_LAUNCH_BLOCKING="1")),
    *(
        fires("misspelt-variable", f"did you mean {meant}?", "warning", **exporting(**{typed: "1"}))
        for typed, meant in (
            ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
            ("CUDA_VISBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
            ("TORCH_NCCL_BLOKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
            ("MASTER_ADDRESS", "MASTER_ADDR"),
            *(
                (f"{name}S", name)
                for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_GLOO_LAZY_INIT", "TORCH_DISTRIBUTED_DEBUG")
            ),
            *((f"{name}S", name) for name in ("TORCHELASTIC_RUN_ID", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")),
            *((f"{name}S", name) for name in ("MKL_NUM_THREADS", "PYTORCH_ALLOC_CONF", "NODE_RANK")),
        )
    ),
    fires(
        "ineffective-variable",
        "NCCL_TIMEOUT=1h has no effect … `unset NCCL_TIMEOUT` … seconds=1800",
        "warning",
        **exporting(NCCL_TIMEOUT="1h"),
    ),
)
MINE = Variable("NCCL_TIMEOUT", "60", Source("flag", "--env-file job.env"), "yours")
BY_ENV = healthy_launch(options=Options(env=(Resolved(("NCCL_TIMEOUT", "60"), Source("profile", "x.toml")),)))
OURS = Variable("NCCL_IB_DISABLE", "1", Source("detected"), "no InfiniBand port is active")
SEVERAL = healthy_launch(topology=topology(8, 2))
ON_CPU = healthy_launch(device=Resolved("cpu", Source("flag")))
CASES = (
    fires("ineffective-variable", "drop `NCCL_TIMEOUT=60` from x.toml … seconds=60", "warning", launch=BY_ENV),
    fires("ineffective-variable", "--env-file job.env", "warning", launch=healthy_launch(environment=(MINE,))),
    fires("infiniband-disabled", "mlx5_0:1 is active", "warning", launch=SEVERAL, **exporting(NCCL_IB_DISABLE="1")),
    fires("infiniband-disabled", "mlx5_0:1", "warning", launch=NO_LAUNCH, **exporting(NCCL_IB_DISABLE="1")),
    silent(
        "infiniband-disabled", "not the user's", launch=healthy_launch(topology=topology(8, 2), environment=(OURS,))
    ),
    silent("infiniband-disabled", "one node", **exporting(NCCL_IB_DISABLE="1")),
    silent("infiniband-disabled", launch=SEVERAL, **exporting(NCCL_IB_DISABLE="0")),
    silent("launch-blocking", launch=ON_CPU, **exporting(CUDA_LAUNCH_BLOCKING="1")),
    silent("launch-blocking", **exporting(CUDA_LAUNCH_BLOCKING="0")),
    silent("leftover-rank-variables", **exporting(MASTER_ADDR="10.0.0.1", MASTER_PORT="29500", NODE_RANK="1")),
    silent("leftover-rank-variables", **exporting(RANK="3", KUBERNETES_SERVICE_HOST="10.96.0.1")),
    silent("distributed-debug-detail", **exporting(TORCH_DISTRIBUTED_DEBUG="INFO")),
    silent("misspelt-variable", **exporting(NCCL_VERSION="2.27.3-1", NCCL_DEBUG="INFO", CUDA_VERSION="12.8")),
    silent("misspelt-variable", **exporting(NCCL_BLOCKING_WAIT="1", NCCL_TIMEOUT="10", MY_NCCL_DEBUGG="1")),
    silent("misspelt-variable", **exporting(CUDA_HOME="/usr/local/cuda", NODE_OPTIONS="-x", OMP_PROC_BIND="true")),
    silent("misspelt-variable", **exporting(PYTORCH_VERSION="2.8.0", NCCL_MY_PLUGIN_KNOB="1", CUDA_PATH="/x")),
    *(
        silent(code, "the script reads it", script=healthy_script(reads_env=(name,)), **exporting(**{name: "1"}))
        for code in ("ineffective-variable", "misspelt-variable")
        for name in ("NCCL_TIMEOUT", "NCCL_SOCKET_IFNAMES", "NCCL_BLOCKING_WAIT")
    ),
)


test_fires_with_words_and_stays_silent_without = judged(*CASES, *IN_BOTH, *in_doctor(*IN_BOTH))


def test_the_table_does_not_contradict_itself() -> None:
    assert not [name for name in INEFFECTIVE if name in KNOWN]
    assert not [name for name in (*KNOWN, *INEFFECTIVE) if near_miss(name)]


def test_the_table_knows_what_the_installed_torch_declares() -> None:
    """The header that ships with torch lists what ProcessGroupNCCL reads; a new name would be called misspelt."""
    spec = find_spec("torch")
    assert spec and spec.origin
    header = Path(spec.origin).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    names = set(re.findall(r'"((?:TORCH_)?NCCL_[A-Z_]+)"', header.read_text()))
    assert len(names) > 15
    assert names <= KNOWN
