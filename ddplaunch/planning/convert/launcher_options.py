"""The options of torchrun and accelerate as data: how many values each takes, and how it is translated.

Names are spelled with dashes; these launchers accept underscores as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Meaning(NamedTuple):
    """How an option is translated: ``kind`` says how; ``detail`` is a flag, a variable or why it is left out.

    ``values`` is the number of words that follow the option.
    """

    kind: str
    detail: str = ""
    values: int = 1


#: The variable that ddplaunch reads if no port is typed; torchrun and accelerate do not read it.
PORT = "MASTER_PORT"


def _all(kind: str, names: str, detail: str = "", values: int = 1) -> dict[str, Meaning]:
    return {name: Meaning(kind, detail, values) for name in names.split()}


_ITSELF = "ddplaunch chooses it itself"
_SHOWN = "ddplaunch records every rank's output"
_OF_TORCHRUN = {
    **_all("torchrun", "--tee --redirects --log-dir --local-ranks-filter --monitor-interval --rdzv-conf --role"),
    **_all("torchrun", "--start-method --event-log-handler --numa-binding --signals-to-handle --shutdown-timeout"),
    **_all("torchrun", "--duplicate-stdout-filters --duplicate-stderr-filters --log-line-prefix-template"),
    **_all("drop", "--rdzv-backend --local-addr --logs-specs", _ITSELF),
}
_PLACE = {
    **_all("max_restarts", "--max-restarts"),
    **_all("module", "-m --module", values=0),
    **_all("no_python", "--no-python", values=0),
}
#: https://docs.pytorch.org/docs/stable/elastic/run.html
TORCHRUN: Mapping[str, Meaning] = {
    **_OF_TORCHRUN,
    **_PLACE,
    **_all("nproc", "--nproc-per-node"),
    **_all("nnodes", "--nnodes"),
    **_all("--node-rank", "--node-rank"),
    **_all("--master-addr", "--master-addr"),
    **_all("port", "--master-port"),
    **_all("endpoint", "--rdzv-endpoint"),
    **_all("drop", "--rdzv-id", "ddplaunch names each run anew"),
    **_all("standalone", "--standalone", values=0),
    **_all("use_env", "--use-env", values=0),
    **_all("drop", "--virtual-local-rank --run-path", "ddplaunch has nothing that means the same", 0),
    **_all("cannot", "--print-completion", "it launches nothing"),
    "-r": Meaning("torchrun", "--redirects"),
    "-t": Meaning("torchrun", "--tee"),
}


#: https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/launch.py (prepare_multi_gpu_env
#: sets the variables). Its many options for DeepSpeed, FSDP and dynamo are not translated.
ACCELERATE: Mapping[str, Meaning] = {
    **_OF_TORCHRUN,
    **_PLACE,
    **_all("cannot", "--config-file", "type its `num_processes`, as in `ddplaunch run 4 -- train.py`"),
    **_all("total", "--num-processes"),
    **_all("nnodes", "--num-machines"),
    **_all("--node-rank", "--machine-rank"),
    **_all("--master-addr", "--main-process-ip"),
    **_all("port", "--main-process-port"),
    **_all("gpus", "--gpu-ids"),
    **_all("drop", "--multi-gpu --same-network", "it is how ranks start anyway", 0),
    **_all("drop", "--quiet -q", "ddplaunch shows no trace of a launcher", 0),
    **_all("drop", "--main-training-function", "it is read for TPUs"),
    **_all("cannot", "--cpu --use-cpu", "accelerate starts one process then: `ddplaunch run 1 --device cpu -- …`", 0),
    **_all("env", "--debug", "ACCELERATE_DEBUG_MODE=true", 0),
    **_all("env", "--enable-cpu-affinity", "ACCELERATE_CPU_AFFINITY=1", 0),
    **_all("cannot", "--tpu --tpu-cluster --use-megatron-lm --use-parallelism-config", "no launch on GPUs alone", 0),
    **_all("cannot", "--use-deepspeed --use-fsdp", "accelerate hands it to the ranks in variables of its own", 0),
    **_all("drop", "--gradient-accumulation-steps --gradient-clipping", "accelerate hands it on with DeepSpeed alone"),
    **_all("env", "--mixed-precision", "ACCELERATE_MIXED_PRECISION="),
    **_all("env", "--num-cpu-threads-per-process", "OMP_NUM_THREADS="),
}
LAUNCHERS: Mapping[str, Mapping[str, Meaning]] = {
    "torchrun": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate": ACCELERATE,
}
#: Modules that are launchers when Python runs them with ``-m``.
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}
#: Programs that are launchers, by name.
PROGRAMS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun"), "mpirun"),
    "srun": "srun",
}
#: A script with a launcher in it contains at least one of these names.
_NAMES = tuple(name.encode() for name in (*PROGRAMS, "accelerate", "torchx", "torch.distributed"))


def named_in(text: bytes) -> bool:
    """Return whether a launcher may be in ``text``."""
    return any(name in text for name in _NAMES)


def canonical(launcher: str, name: str) -> str | None:
    """Return an option as the table of ``launcher`` spells it, None if it is not in there.

    As in argparse, a prefix that only one long option has stands for that option.
    """
    table = LAUNCHERS[launcher]
    spelled = name.replace("_", "-") if name.startswith("--") else name
    if spelled in table:
        return spelled
    near = [option for option in table if spelled.startswith("--") and len(spelled) > 3 and option.startswith(spelled)]
    return near[0] if len(near) == 1 else None
