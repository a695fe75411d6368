"""The options of torchrun, accelerate, DeepSpeed, Horovod and MPI as data: what each takes, and what it means here.

One table for ``ddplaunch convert`` and for the command line, which reads these spellings as its own. Names are spelled
with dashes: all of these launchers but MPI's take underscores for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Meaning(NamedTuple):
    """What an option says: ``kind`` is how it is translated, ``detail`` a flag, a variable or why it is left out.

    ``values`` is the number of words behind it.
    """

    kind: str
    detail: str = ""
    values: int = 1


#: Kinds that ddplaunch has a flag for which takes the same value.
FLAGS = {
    "nnodes": "--nnodes",
    "node_rank": "--node-rank",
    "addr": "--master-addr",
    "port": "--master-port",
    "gpus": "--gpus",
    "hosts": "--hosts",
    "hostfile": "--hostfile",
}


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
    **_all("node_rank", "--node-rank"),
    **_all("addr", "--master-addr"),
    **_all("port", "--master-port"),
    **_all("endpoint", "--rdzv-endpoint"),
    **_all("drop", "--rdzv-id", "ddplaunch names each run anew"),
    **_all("drop", "--standalone", "one node finds a free port by itself", 0),
    **_all("use_env", "--use-env", values=0),
    **_all("drop", "--virtual-local-rank --run-path", "ddplaunch has nothing that means the same", 0),
    **_all("cannot", "--print-completion", "it launches nothing"),
    "-r": Meaning("torchrun", "--redirects"),
    "-t": Meaning("torchrun", "--tee"),
}


def _variables(names: str, prefix: str = "") -> dict[str, Meaning]:
    """Return ``--fsdp-min-num-params`` and others, each with the variable by which accelerate hands it to ranks."""
    pairs = (name.partition("=")[::2] for name in names.split())
    return {f"--{name}": Meaning("env", prefix + (said or name.upper().replace("-", "_"))) for name, said in pairs}


#: https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/launch.py (prepare_multi_gpu_env and
#: prepare_deepspeed_cmd_env say the variables).
ACCELERATE: Mapping[str, Meaning] = {
    **_OF_TORCHRUN,
    **_PLACE,
    **_all("config", "--config-file"),
    **_all("total", "--num-processes"),
    **_all("nnodes", "--num-machines"),
    **_all("node_rank", "--machine-rank"),
    **_all("addr", "--main-process-ip"),
    **_all("port", "--main-process-port"),
    **_all("gpus", "--gpu-ids"),
    **_all("drop", "--multi-gpu --same-network", "it is how ranks start anyway", 0),
    **_all("drop", "--quiet -q", "ddplaunch shows no trace of a launcher", 0),
    **_all("drop", "--main-training-function", "it is read for TPUs"),
    **_all("cpu", "--cpu --use-cpu", values=0),
    **_all("switch", "--debug", "ACCELERATE_DEBUG_MODE=true", 0),
    **_all("switch", "--enable-cpu-affinity", "ACCELERATE_CPU_AFFINITY=1", 0),
    **_all("switch", "--use-deepspeed", "ACCELERATE_USE_DEEPSPEED=true", 0),
    **_all("switch", "--use-fsdp", "ACCELERATE_USE_FSDP=true", 0),
    **_all("switch", "--dynamo-use-fullgraph", "ACCELERATE_DYNAMO_USE_FULLGRAPH=True", 0),
    **_all("switch", "--dynamo-use-dynamic", "ACCELERATE_DYNAMO_USE_DYNAMIC=True", 0),
    **_all("cannot", "--tpu --tpu-cluster --use-megatron-lm --use-parallelism-config", "no launch on GPUs alone", 0),
    **_variables("num-cpu-threads-per-process=OMP_NUM_THREADS"),
    **_variables(
        "mixed-precision dynamo-mode dynamo-backend gradient-accumulation-steps gradient-clipping", "ACCELERATE_"
    ),
    **_variables("zero-stage offload-optimizer-device offload-param-device", "ACCELERATE_DEEPSPEED_"),
    **_variables("deepspeed-config-file deepspeed-moe-layer-cls-names", "ACCELERATE_"),
    **_variables("zero3-init-flag=ZERO3_INIT zero3-save-16bit-model", "ACCELERATE_DEEPSPEED_"),
    **_variables("fsdp-version fsdp-offload-params fsdp-min-num-params fsdp-sharding-strategy fsdp-auto-wrap-policy"),
    **_variables("fsdp-reshard-after-forward fsdp-transformer-layer-cls-to-wrap=FSDP_TRANSFORMER_CLS_TO_WRAP"),
    **_variables("fsdp-backward-prefetch fsdp-state-dict-type fsdp-forward-prefetch fsdp-use-orig-params"),
    **_variables("fsdp-cpu-ram-efficient-loading fsdp-sync-module-states fsdp-activation-checkpointing"),
    **_all("hostfile", "--deepspeed-hostfile"),
    **_all("include", "--deepspeed-inclusion-filter"),
    **_all("exclude", "--deepspeed-exclusion-filter"),
    **_all("drop", "--deepspeed-multinode-launcher", "ddplaunch reaches the hosts over ssh"),
}
#: The kinds of accelerate's file with which it starts one process.
ONE_PROCESS = ("NO", "MULTI_CPU")
#: https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py
DEEPSPEED: Mapping[str, Meaning] = {
    **_PLACE,
    **_all("hostfile", "-H --hostfile"),
    **_all("include", "-i --include"),
    **_all("exclude", "-e --exclude"),
    **_all("nnodes", "--num-nodes"),
    **_all("nproc", "--num-gpus --num-accelerators"),
    **_all("addr", "--master-addr"),
    **_all("port", "--master-port"),
    **_all("node_rank", "--node-rank"),
    **_all("use_env", "--no-local-rank", values=0),
    **_all("own", "--bind-cores-to-rank", "--placement=cores", 0),
    **_all("drop", "--launcher --launcher-args --ssh-port --venv-script", "ddplaunch reaches the hosts over ssh"),
    **_all("drop", "--force-multi --no-ssh-check", "ddplaunch reaches the hosts over ssh", 0),
    **_all("cannot", "--no-ssh", "one line of torchrun on each node starts the same: convert that one", 0),
    **_all("drop", "--save-pid", "`ddplaunch ps` lists the run", 0),
    **_all("drop", "--enable-each-rank-log --log-level", _SHOWN),
    **_all("cannot", "--autotuning --min-elastic-nodes --max-elastic-nodes", "DeepSpeed's tuner starts many trainings"),
    **_all("cannot", "--elastic-training", "DeepSpeed changes the batch with the nodes", 0),
}
#: Open MPI 4 and 5, MPICH's Hydra and Intel MPI: https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html
MPIRUN: Mapping[str, Meaning] = {
    **_all("total", "-n -np --n --np -c"),
    **_all("nproc", "-npernode --npernode -N -ppn --ppn -perhost"),
    **_all("hosts", "-H -host --host -hosts"),
    **_all("hostfile", "-hostfile --hostfile -machinefile --machinefile -f"),
    **_all("cannot", "--map-by -map-by", "say how many processes each node gets by `-npernode K`"),
    **_all("chdir", "-wdir --wdir -wd -cwd"),
    **_all("export", "-x"),
    **_all("drop", "--bind-to -bind-to --rank-by -rank-by", "`--placement` decides which CPUs ranks use"),
    **_all("drop", "--mca -mca --gmca -gmca --prtemca", "it configures MPI, which carries nothing here", 2),
    **_all("drop", "--prefix --output-filename --output -output-filename --launch-agent", "it configures MPI"),
    **_all("drop", "--allow-run-as-root -allow-run-as-root", "ddplaunch does not ask", 0),
    **_all("drop", "--oversubscribe -oversubscribe", "ddplaunch counts no slots", 0),
    **_all("drop", "--tag-output -tag-output --report-bindings -report-bindings -v -l -prepend-rank", _SHOWN, 0),
    **_all("drop", "-bynode -byslot --bynode --byslot -nolocal --use-hwthread-cpus", "ranks are placed by node", 0),
}
#: https://horovod.readthedocs.io/en/stable/running_include.html
HOROVODRUN: Mapping[str, Meaning] = {
    **_all("total", "-np --num-proc"),
    **_all("hosts", "-H --hosts"),
    **_all("hostfile", "-hostfile --hostfile"),
    **_all("drop", "-p --ssh-port --ssh-identity-file", "it belongs in ~/.ssh/config"),
    **_all("drop", "--network-interface --network-interfaces", "`--socket-ifname` names an interface"),
    **_all("drop", "--fusion-threshold-mb --cycle-time-ms --cache-capacity --start-timeout", "it configures Horovod"),
    **_all("drop", "--output-filename --timeline-filename", _SHOWN),
    **_all("drop", "--gloo --mpi --use-gloo --use-mpi --verbose --disable-cache", "it configures Horovod", 0),
    **_all("cannot", "--min-np --max-np --host-discovery-script", "Horovod's elastic runs change hosts by a script"),
}
LAUNCHERS: Mapping[str, Mapping[str, Meaning]] = {
    "torchrun": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "horovodrun": HOROVODRUN,
    "mpirun": MPIRUN,
}
#: Modules that are a launcher when Python runs them with ``-m``.
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}
#: Programs that are a launcher by their name.
PROGRAMS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "horovodrun": "horovodrun",
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), "mpirun"),
    "srun": "srun",
}
#: What the text of a script has if a launcher is in it.
_NAMES = tuple(name.encode() for name in (*PROGRAMS, "accelerate", "torchx", "torch.distributed"))


def named_in(text: bytes) -> bool:
    """Whether a launcher may be in a text."""
    return any(name in text for name in _NAMES)


def canonical(launcher: str, name: str) -> str | None:
    """Return an option as the table of ``launcher`` spells it, None for one that it does not have.

    argparse takes a beginning of a long option that only one of them has.
    """
    table = LAUNCHERS[launcher]
    spelled = name.replace("_", "-") if name.startswith("--") else name
    if spelled in table:
        return spelled
    near = [each for each in table if spelled.startswith("--") and len(spelled) > 3 and each.startswith(spelled)]
    return near[0] if len(near) == 1 and launcher != "mpirun" else None
