"""Checks of which GPUs the ranks get: number, names in CUDA_VISIBLE_DEVICES, MIG and models.

The functions in front of the checks say which GPUs a launch uses, so that all GPU checks look at these only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddplaunch.checks.check import Findings, checks_in
from ddplaunch.checks.known_variables import Setting, as_ranks_get_it
from ddplaunch.machine.facts import Gpu, NvidiaFacts, NvmlFacts, TorchFacts
from ddplaunch.planning.gpus import HIP_VISIBLE, SHELL, VisibleGpu, VisibleGpus, exported, shown, visible
from ddplaunch.planning.launch import Launch
from ddplaunch.values.finding import error, warning
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count, size_text

_NAME = "CUDA_VISIBLE_DEVICES"
_DECIDED_BY_US = ("default", "detected", "computed")


def cpu_was_chosen(environment: Mapping[str, str], launch: Launch | None) -> bool:
    """Whether the user decided against GPUs: with ``--device cpu`` or by hiding them all.

    A launch that fell back to the CPU because no GPU was found does not count.
    """
    if environment.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return launch is None or launch.device.value == "cpu"
    if launch is None or launch.device.value != "cpu":
        return False
    return launch.device.source.kind not in _DECIDED_BY_US


def seen_by_ranks(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None) -> VisibleGpus:
    """Return the GPUs that CUDA shows to the ranks; without a CUDA launch, to any program in ``environment``."""
    values: dict[str, str | None] = dict(environment)
    # A launch on the CPU hides all GPUs, so only the user's own variables count there.
    if launch is not None and launch.device.value == "cuda":
        values |= {variable.name: variable.value for variable in launch.environment}
    if nvml.vendor == "amd":
        return shown(nvml, exported({name: value for name, value in values.items() if value is not None}, (), nvml))
    return visible(nvml, values.get("CUDA_VISIBLE_DEVICES"), values.get("CUDA_DEVICE_ORDER"))


def visible_gpus(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None) -> tuple[VisibleGpu, ...]:
    """Return the GPUs that this launch's ranks see on this node; without a launch, all GPUs of the machine."""
    if launch is None:
        return tuple(VisibleGpu(str(gpu.index), gpu) for gpu in nvml.gpus)
    return () if launch.device.value == "cpu" else seen_by_ranks(nvml, environment, launch).entries


def used_gpus(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None) -> tuple[VisibleGpu, ...]:
    """Return those of ``visible_gpus`` that the launch has ranks for."""
    return visible_gpus(nvml, environment, launch)[: launch.topology.nproc_per_node.value if launch else None]


def present_gpus(nvidia: NvidiaFacts | None, nvml: NvmlFacts | None) -> int:
    """Return the number of NVIDIA GPUs of this machine, from NVML or else from the PCI bus.

    A container without GPUs still shows the host's PCI bus and kernel module, but has no device nodes: 0.
    """
    if nvml is not None:
        return len(nvml.gpus)
    if nvidia is None or (nvidia.kernel_module_version and not nvidia.device_nodes):
        return 0
    return nvidia.pci_gpus


def gpu_word(entry: VisibleGpu) -> str:
    """Return "GPU 3", with the index that ``nvidia-smi`` shows."""
    return f"GPU {entry.gpu.index}"


def indices(entries: Iterable[VisibleGpu]) -> str:
    """Return "0,3", as ``nvidia-smi -i`` takes it."""
    return ",".join(str(entry.gpu.index) for entry in entries)


def choice(entries: Iterable[VisibleGpu]) -> str:
    """Return the value of ``--gpus`` for these: nvidia-smi's numbers, of MIG instances the UUIDs."""
    return ",".join(entry.uuid if entry.mig else str(entry.gpu.index) for entry in entries)


def showing(environment: Mapping[str, str], launch: Launch | None) -> Setting:
    """Return CUDA_VISIBLE_DEVICES as the ranks get it; without a CUDA launch, as ``environment`` has it.

    On AMD's GPUs it is HIP_VISIBLE_DEVICES where that is set.
    """
    on_gpus = launch if launch is not None and launch.device.value == "cuda" else None
    variable = as_ranks_get_it(HIP_VISIBLE, environment, on_gpus) or as_ranks_get_it(_NAME, environment, on_gpus)
    return variable or Setting(_NAME, "", SHELL)


def _hides(setting: Setting, launch: Launch) -> str:
    """Return who keeps the other GPUs from the ranks, up to their number: `--gpus` itself, or a variable's value."""
    gpus = launch.options.gpus
    if setting.where.startswith("`--gpus"):
        return f"`--gpus {setting.value if gpus is None else gpus.value}` leaves out"
    return f"{setting.typed} from {setting.where} hides"


def _more(setting: Setting, processes: int = 0) -> str:
    """Return how to see other GPUs than ``setting`` shows, as a clause for a fix, or how to see ``processes``."""
    number = f"{processes} GPUs" if processes else "other GPUs"
    if setting.where == "Slurm":
        return f"ask Slurm for {processes or 'more'} GPUs: `--gpus-per-node {processes or 'N'}`"
    if setting.where.startswith("`--gpus"):
        return f"name {number} with `--gpus`"
    if setting.where == SHELL:
        return f"`unset {setting.name}` for all GPUs"
    return setting.removal


_DUPLICATE = " (duplicate)"
# Two GPUs of one model may differ by a few MiB, because of ECC or memory that the firmware reserves.
_SAME_MEMORY_SHARE = 0.05


def more_processes_than_gpus(nvml: NvmlFacts, launch: Launch, environment: Mapping[str, str]) -> Findings:
    """More processes than visible GPUs.

    Each rank takes the GPU of its LOCAL_RANK. A rank without one fails with "invalid device ordinal"; two ranks on one
    GPU fail in NCCL with "Duplicate GPU detected". Remedy: as many processes as GPUs, more visible GPUs, or the CPU.
    """
    if launch.device.value != "cuda":
        return
    seen = seen_by_ranks(nvml, environment, launch)
    processes, gpus = launch.topology.nproc_per_node.value, len(seen.entries)
    split = any(entry.mig for entry in seen.entries)  # mig-one-per-process
    if not gpus or processes <= gpus or seen.unknown or split:
        return
    nodes = launch.topology.nnodes.value
    fewer = f"{gpus}" if nodes == 1 else f"{nodes}x{gpus}"
    hidden = len(nvml.gpus) - gpus
    setting = showing(environment, launch)
    more = f" ({_hides(setting, launch)} {hidden} of {len(nvml.gpus)})" if hidden > 0 else ""
    enough = f", {_more(setting, processes)}" if len(nvml.gpus) >= processes else ""
    yield error(
        "more-processes-than-gpus",
        f"{count(processes, 'process')} per node, but {count(gpus, 'GPU')} visible{more}",
        why=f"local rank {gpus} would have no GPU of its own; NCCL refuses two ranks on one GPU",
        fix=f"`ddplaunch run {fewer} …`{enough}, or `--device cpu` for all {processes}",
        where=str(launch.topology.nproc_per_node.source),
    )


def no_gpu_for_cuda(
    launch: Launch,
    environment: Mapping[str, str],
    nvml: NvmlFacts | Unavailable,
    torch: TorchFacts | None = None,
    nvidia: NvidiaFacts | None = None,
) -> Findings:
    """The launch asks for CUDA, but no GPU is visible.

    NVML lists no GPU, or CUDA_VISIBLE_DEVICES hides them all, so every rank would fail with "No CUDA GPUs are
    available". Remedy: a machine with a GPU, `unset CUDA_VISIBLE_DEVICES`, or `--device cpu`.
    """
    if launch.device.value != "cuda" or (torch is not None and torch.hip):
        return
    why = 'every rank would fail with "No CUDA GPUs are available"'
    fix = "start it on a machine with a GPU, or add `--device cpu`"
    if isinstance(nvml, Unavailable):
        if nvidia is None or not nvidia.device_nodes:  # with device nodes CUDA may work without NVML
            yield error("no-gpu-for-cuda", f"this launch needs CUDA, but {nvml.reason}", why=why, fix=fix)
        return
    gpus = seen_by_ranks(nvml, environment, launch)
    if gpus.entries or gpus.unknown:
        return
    if nvml.gpus:
        setting = showing(environment, launch)
        hides = f"{setting.name}={setting.value!r} from {setting.where} hides"
        what = f"this launch needs CUDA, but {hides} all {count(len(nvml.gpus), 'GPU')}"
        fix = f"{_more(setting)}, or add `--device cpu`"
    else:
        what = "this launch needs CUDA, but this machine has no NVIDIA GPU"
    yield error("no-gpu-for-cuda", what, why=why, fix=fix, where=str(launch.device.source))


def visible_devices_unknown(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None) -> Findings:
    """CUDA_VISIBLE_DEVICES names a GPU that does not exist.

    CUDA reads the list from the left and stops at the first entry that names no device: an index that is too high, a
    UUID of another machine, a MIG instance that was destroyed. It silently hides the GPUs behind that entry too.
    Inside a container or a Slurm step, indices start again at 0. Remedy: `unset CUDA_VISIBLE_DEVICES`, or names from
    `nvidia-smi -L`.
    """
    if cpu_was_chosen(environment, launch):
        return
    gpus = seen_by_ranks(nvml, environment, launch)
    bad = [text for text in gpus.unknown if not text.endswith(_DUPLICATE)]
    if not bad:
        return
    usable = choice(gpus.entries)
    remaining = f"{count(len(gpus.entries), 'GPU')} of {len(nvml.gpus)} would be visible"
    unread = f" and does not read `{','.join(gpus.unread)}` behind it" if gpus.unread else ""
    existing = f"0 to {len(nvml.gpus) - 1}" if nvml.gpus else "none"
    setting = showing(environment, launch)
    word = f"export {setting.name}=" if setting.where == SHELL else "--gpus "
    narrowed = f", `{word}{usable}` to keep what works" if usable else ""
    yield error(
        "visible-devices-unknown",
        f"{setting.name} names `{bad[0]}`, which does not exist (GPUs here: {existing}); {remaining}",
        why=f"CUDA stops at the first entry that names no device{unread}",
        fix=f"{_more(setting)}{narrowed}; `{'rocminfo' if nvml.vendor == 'amd' else 'nvidia-smi -L'}` lists names",
        where=f"{setting.typed} from {setting.where}",
    )


def duplicate_gpu(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None) -> Findings:
    """CUDA_VISIBLE_DEVICES names one GPU twice.

    CUDA then shows no device at all, whatever else is in the list. Remedy: each GPU once.
    """
    if cpu_was_chosen(environment, launch):
        return
    setting = showing(environment, launch)
    for text in seen_by_ranks(nvml, environment, launch).unknown:
        if text.endswith(_DUPLICATE):
            yield error(
                "duplicate-gpu",
                f"CUDA_VISIBLE_DEVICES names `{text.removesuffix(_DUPLICATE)}` twice",
                why="CUDA shows no device at all if one is named twice",
                fix=f"{_more(setting)}, or name each GPU once",
                where=f"{setting.typed} from {setting.where}",
            )


def mig_one_per_process(nvml: NvmlFacts, launch: Launch, environment: Mapping[str, str]) -> Findings:
    """Several processes over MIG instances.

    A CUDA process uses only the first visible MIG instance, so all ranks of a launch land on the same one; and NCCL
    does not connect the instances of one GPU. Remedy: one process per launch, or disable MIG.
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    """
    processes = launch.topology.nproc_per_node.value
    if launch.device.value != "cuda" or processes == 1:
        return
    split = [entry for entry in seen_by_ranks(nvml, environment, launch).entries if entry.mig]
    if not split:
        return
    gpus = ",".join(str(gpu.index) for gpu in nvml.gpus if gpu.mig_enabled is True)
    off = f"`sudo nvidia-smi -i {gpus} -mig 0` while nothing runs there"
    yield error(
        "mig-one-per-process",
        f"{processes} processes, but MIG shows all of them the same instance, {split[0].uuid}",
        why='a CUDA process sees one MIG instance; NCCL refuses two ranks on it with "Duplicate GPU detected"',
        fix=f"`ddplaunch run 1 …` on one instance; to train on whole GPUs, disable MIG: {off}",
        where=gpu_word(split[0]),
    )


def gpu_mixed_models(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None) -> Findings:
    """The GPUs of the launch differ in model or memory size.

    Data-parallel ranks wait for each other at every step: the slowest GPU sets the pace, the smallest memory the
    batch. `doctor` without a launch looks at all GPUs of the machine. Remedy: GPUs of one model, with `--gpus`.
    """
    used = [entry for entry in used_gpus(nvml, environment, launch) if entry.gpu.fault is None]
    groups: list[list[VisibleGpu]] = []
    for entry in used:
        same = next((group for group in groups if _alike(group[0].gpu, entry.gpu)), None)
        if same is None:
            groups.append([entry])
        else:
            same.append(entry)
    if len(groups) < 2:
        return
    largest = max(groups, key=len)
    models = ", ".join(f"{len(group)} × {_model(group[0].gpu)}" for group in groups)
    yield warning(
        "gpu-mixed-models",
        f"the GPUs differ: {models}",
        why="every step waits for the slowest GPU, and the smallest memory limits the batch of all",
        fix=f"`ddplaunch run {len(largest)} --gpus {choice(largest)} …` for one model only",
        where=tuple(f"GPU {indices(group)}: {_model(group[0].gpu)}" for group in groups),
    )


def _alike(one: Gpu, other: Gpu) -> bool:
    first, second = one.memory_total_bytes, other.memory_total_bytes
    if one.name != other.name:
        return False
    if isinstance(first, Unavailable) or isinstance(second, Unavailable):
        return True
    return abs(first - second) <= _SAME_MEMORY_SHARE * max(first, second)


def _model(gpu: Gpu) -> str:
    memory = gpu.memory_total_bytes
    return gpu.name if isinstance(memory, Unavailable) else f"{gpu.name} ({size_text(memory)})"


CHECKS = checks_in(globals(), "gpu")
