"""Checks of which GPUs the ranks get: number, names in CUDA_VISIBLE_DEVICES, MIG and models."""

from __future__ import annotations

from collections.abc import Iterable

from ddplaunch.checks.check import Findings, LaunchGpus, checks_in
from ddplaunch.checks.known_variables import Setting, as_ranks_get_it
from ddplaunch.machine.facts import NvidiaFacts, NvmlFacts, TorchFacts
from ddplaunch.planning.gpus import HIP_VISIBLE, SHELL, VisibleGpu
from ddplaunch.planning.launch import Launch
from ddplaunch.values.finding import error
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count

_NAME = "CUDA_VISIBLE_DEVICES"


def present_gpus(nvidia: NvidiaFacts | None, nvml: NvmlFacts | None) -> int:
    """Return the number of NVIDIA GPUs of this machine, from NVML or else from the PCI bus.

    It is 0 in a container without GPUs, which shows the host's PCI bus and kernel module but has no device nodes.
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
    """Return ``entries`` as a value of ``--gpus``: nvidia-smi's indices, or UUIDs for MIG instances."""
    return ",".join(entry.uuid if entry.mig else str(entry.gpu.index) for entry in entries)


def _showing(gpus: LaunchGpus) -> Setting:
    """Return HIP_VISIBLE_DEVICES if it is set, else CUDA_VISIBLE_DEVICES, as the ranks get it.

    Without a CUDA launch, the value in the environment counts.
    """
    launch = gpus.launch if gpus.launch is not None and gpus.launch.device.value == "cuda" else None
    settings = (as_ranks_get_it(name, gpus.environment, launch) for name in (HIP_VISIBLE, _NAME))
    return next(filter(None, settings), Setting(_NAME, "", SHELL))


def _hides(setting: Setting, launch: Launch) -> str:
    """Return what hides the other GPUs, `--gpus` or a variable, as the start of a clause that their number ends."""
    gpus = launch.options.gpus
    if setting.where.startswith("`--gpus"):
        return f"`--gpus {setting.value if gpus is None else gpus.value}` leaves out"
    return f"{setting.typed} from {setting.where} hides"


def _more(setting: Setting, processes: int = 0) -> str:
    """Return a clause for a fix: how to make other GPUs visible than ``setting`` does, or ``processes`` of them."""
    number = f"{processes} GPUs" if processes else "other GPUs"
    if setting.where == "Slurm":
        return f"ask Slurm for {processes or 'more'} GPUs: `--gpus-per-node {processes or 'N'}`"
    if setting.where.startswith("`--gpus"):
        return f"name {number} with `--gpus`"
    if setting.where == SHELL:
        return f"`unset {setting.name}` for all GPUs"
    return setting.removal


_DUPLICATE = " (duplicate)"


def more_processes_than_gpus(gpus: LaunchGpus, launch: Launch) -> Findings:
    """There are more processes than visible GPUs.

    Each rank takes the visible GPU whose index is its LOCAL_RANK. A rank without one fails with "invalid device
    ordinal"; two ranks on one GPU fail in NCCL with "Duplicate GPU detected". Remedy: as many processes as GPUs, more
    visible GPUs, or the CPU.
    """
    if launch.device.value != "cuda":
        return
    seen, present = gpus.seen, len(gpus.nvml.gpus)
    processes, number = launch.topology.nproc_per_node.value, len(seen.entries)
    split = any(entry.mig for entry in seen.entries)  # mig-one-per-process reports it
    if not number or processes <= number or seen.unknown or split:
        return
    nodes = launch.topology.nnodes.value
    fewer = f"{number}" if nodes == 1 else f"{nodes}x{number}"
    hidden = present - number
    setting = _showing(gpus)
    more = f" ({_hides(setting, launch)} {hidden} of {present})" if hidden > 0 else ""
    enough = f", {_more(setting, processes)}" if present >= processes else ""
    yield error(
        "more-processes-than-gpus",
        f"{count(processes, 'process')} per node, but {count(number, 'GPU')} visible{more}",
        why=f"local rank {number} would have no GPU of its own; NCCL refuses two ranks on one GPU",
        fix=f"`ddplaunch run {fewer} …`{enough}, or `--device cpu` for all {processes}",
        where=str(launch.topology.nproc_per_node.source),
    )


def no_gpu_for_cuda(
    launch: Launch,
    gpus: LaunchGpus | Unavailable,
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
    if isinstance(gpus, Unavailable):
        if nvidia is None or not nvidia.device_nodes:  # with device nodes CUDA may work without NVML
            yield error("no-gpu-for-cuda", f"this launch needs CUDA, but {gpus.reason}", why=why, fix=fix)
        return
    if gpus.seen.entries or gpus.seen.unknown:
        return
    if gpus.nvml.gpus:
        setting = _showing(gpus)
        hides = f"{setting.name}={setting.value!r} from {setting.where} hides"
        what = f"this launch needs CUDA, but {hides} all {count(len(gpus.nvml.gpus), 'GPU')}"
        fix = f"{_more(setting)}, or add `--device cpu`"
    else:
        what = "this launch needs CUDA, but this machine has no NVIDIA GPU"
    yield error("no-gpu-for-cuda", what, why=why, fix=fix, where=str(launch.device.source))


def visible_devices_unknown(gpus: LaunchGpus) -> Findings:
    """CUDA_VISIBLE_DEVICES names a GPU that does not exist.

    CUDA reads the list from the left and stops at the first entry that names no device: an index that is too high, a
    UUID of another machine, a MIG instance that was destroyed. GPUs after that entry are silently hidden too. Inside a
    container or a Slurm step, indices start again at 0. Remedy: `unset CUDA_VISIBLE_DEVICES`, or names from `nvidia-smi
    -L`.
    """
    if gpus.cpu_chosen:
        return
    seen, present = gpus.seen, len(gpus.nvml.gpus)
    bad = [text for text in seen.unknown if not text.endswith(_DUPLICATE)]
    if not bad:
        return
    usable = choice(seen.entries)
    remaining = f"{count(len(seen.entries), 'GPU')} of {present} would be visible"
    unread = f" and does not read `{','.join(seen.unread)}` behind it" if seen.unread else ""
    existing = f"0 to {present - 1}" if present else "none"
    setting = _showing(gpus)
    word = f"export {setting.name}=" if setting.where == SHELL else "--gpus "
    narrowed = f", `{word}{usable}` to keep what works" if usable else ""
    yield error(
        "visible-devices-unknown",
        f"{setting.name} names `{bad[0]}`, which does not exist (GPUs here: {existing}); {remaining}",
        why=f"CUDA stops at the first entry that names no device{unread}",
        fix=f"{_more(setting)}{narrowed}; `{'rocminfo' if gpus.nvml.vendor == 'amd' else 'nvidia-smi -L'}` lists names",
        where=f"{setting.typed} from {setting.where}",
    )


def duplicate_gpu(gpus: LaunchGpus) -> Findings:
    """CUDA_VISIBLE_DEVICES names one GPU twice.

    CUDA then shows no device at all, whatever else is in the list. Remedy: name each GPU once.
    """
    if gpus.cpu_chosen:
        return
    setting = _showing(gpus)
    for text in gpus.seen.unknown:
        if text.endswith(_DUPLICATE):
            yield error(
                "duplicate-gpu",
                f"CUDA_VISIBLE_DEVICES names `{text.removesuffix(_DUPLICATE)}` twice",
                why="CUDA shows no device at all if one is named twice",
                fix=f"{_more(setting)}, or name each GPU once",
                where=f"{setting.typed} from {setting.where}",
            )


def mig_one_per_process(gpus: LaunchGpus, launch: Launch) -> Findings:
    """Several processes would use one MIG instance.

    A CUDA process uses only the first visible MIG instance, so all ranks of a launch run on the same one; and NCCL does
    not connect the instances of one GPU. Remedy: one process per launch, or disable MIG.
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    """
    processes = launch.topology.nproc_per_node.value
    if launch.device.value != "cuda" or processes == 1:
        return
    split = [entry for entry in gpus.seen.entries if entry.mig]
    if not split:
        return
    split_gpus = ",".join(str(gpu.index) for gpu in gpus.nvml.gpus if gpu.mig_enabled is True)
    off = f"`sudo nvidia-smi -i {split_gpus} -mig 0` while nothing runs there"
    yield error(
        "mig-one-per-process",
        f"{processes} processes, but MIG shows all of them the same instance, {split[0].uuid}",
        why='a CUDA process sees one MIG instance; NCCL refuses two ranks on it with "Duplicate GPU detected"',
        fix=f"`ddplaunch run 1 …` on one instance; to train on whole GPUs, disable MIG: {off}",
        where=gpu_word(split[0]),
    )


CHECKS = checks_in(globals(), "gpu")
