"""Checks of the GPUs' state: in use, closed by their compute mode, lost, faulty, throttled, not accessible."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from ddplaunch.checks.check import Findings, LaunchGpus, checks_in, cpu_was_chosen
from ddplaunch.checks.gpu_choice import choice, gpu_word, indices
from ddplaunch.machine.facts import Gpu, GpuProcess, HostFacts, NvidiaFacts, NvmlFacts
from ddplaunch.planning.gpus import IDLE_MEMORY_BYTES, IDLE_MEMORY_SHARE, VisibleGpu
from ddplaunch.planning.launch import Launch
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.resolved import Unavailable, known
from ddplaunch.values.words import count, size_text

# Holding at least this share of a GPU's memory means another job; less, the CUDA context of a notebook or a monitor.
_SERIOUS_SHARE = 0.1
_RESET = "with nothing running on them, `sudo nvidia-smi --gpu-reset -i {}`, or restart the machine"


def gpu_busy(gpus: LaunchGpus, host: HostFacts | None = None) -> Findings:
    """Another process holds memory on a GPU that the launch would use.

    Two jobs on one GPU run out of memory or halve each other's speed, and a data-parallel job waits for its slowest
    GPU. An orphan is a rank that outlived its torchrun and will not end by itself. The launch is refused if another
    process holds a tenth of the memory or an orphan holds any. Remedy: `--gpus free:N`, which picks idle GPUs, or
    `ddplaunch clean` for orphans.
    """
    used = gpus.used
    busy = [(entry, words) for entry in used if (words := _holders(entry))]
    if not busy:
        return
    entries = [entry for entry, _ in busy]
    orphans = {
        process.pid: process.user for entry in entries for process in known(entry.gpu.processes, ()) if process.orphan
    }
    serious = bool(orphans) or any(_share_held(entry.gpu) >= _SERIOUS_SHARE for entry in entries)
    visible = gpus.visible
    idle = sum(not _holders(entry) and entry.gpu.fault is None for entry in visible)
    number = min(idle, gpus.launch.topology.nproc_per_node.value) if gpus.launch else idle
    fix = f"use idle GPUs with `ddplaunch run {number} --gpus free:{number} …`, or wait"
    if not idle:
        fix = "all GPUs are in use; wait or free one"
    if orphans:
        fix = f"{_end_orphans(orphans, host)}; {'or ' if idle else ''}{fix}"
    first, words = busy[0]
    more = f", and {len(busy) - 1} more of {len(used)}" if len(busy) > 1 else ""
    yield (error if serious else warning)(
        "gpu-busy",
        f"{gpu_word(first)} is in use by {words}{more}",
        why="two jobs on one GPU run out of memory or slow each other down, and every rank waits for the slowest",
        fix=fix,
        where=tuple(f"{gpu_word(entry)}: {words}" for entry, words in busy),
    )


def gpu_exclusive_mode(gpus: LaunchGpus) -> Findings:
    """The compute mode of a GPU does not let the ranks in.

    In mode "prohibited" no CUDA program may use the GPU. In an exclusive mode only one process may, and the next one
    gets "CUDA-capable device(s) is/are busy or unavailable". Administrators set these modes. Remedy: other GPUs, or
    `sudo nvidia-smi -c DEFAULT`.
    """
    for entry in gpus.used:
        mode, processes = known(entry.gpu.compute_mode, "not known"), known(entry.gpu.processes, ())
        if mode == "prohibited":
            what = f"{gpu_word(entry)} is in compute mode prohibited"
        elif mode.startswith("exclusive") and processes:
            what = f"{gpu_word(entry)} is in compute mode {mode} and in use by {_process(processes[0])}"
        else:
            continue
        yield error(
            "gpu-exclusive-mode",
            what,
            why='CUDA answers with "CUDA-capable device(s) is/are busy or unavailable"',
            fix=f"choose other GPUs with `--gpus`, or `sudo nvidia-smi -i {indices([entry])} -c DEFAULT`",
            where=gpu_word(entry),
        )


def _end_orphans(users: Mapping[int, str | None], host: HostFacts | None) -> str:
    """Return who can end these orphans, and how; ``users`` maps pids to their owners."""
    pids = ", ".join(f"pid {pid}" for pid in sorted(users))
    owners = sorted({user for user in users.values() if user is not None})
    if host is None or not owners or host.user in owners:
        return f"`ddplaunch clean` ends the ranks of dead launchers ({pids})"
    return f"ask {' and '.join(owners)} to run `ddplaunch clean`, which ends the ranks of dead launchers ({pids})"


def _holders(entry: VisibleGpu) -> str:
    """Return the processes that hold memory, in words; empty if none does, or if MIG or a fault hides them."""
    gpu = entry.gpu
    if entry.mig is not None or gpu.mig_enabled is True or gpu.fault is not None:
        return ""
    if processes := known(gpu.processes, ()):
        return "; ".join(_process(process) for process in processes)
    used = gpu.memory_used_bytes
    if isinstance(used, Unavailable) or used < IDLE_MEMORY_BYTES or _share_held(gpu) < IDLE_MEMORY_SHARE:
        return ""
    return f"a process that is not visible from here ({size_text(used)})"


def _share_held(gpu: Gpu) -> float:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if isinstance(used, Unavailable) or isinstance(total, Unavailable) or total <= 0:
        return 1.0
    return used / total


def _process(process: GpuProcess) -> str:
    words = [f"pid {process.pid}"]
    if process.user:
        words.append(f"of {process.user}")
    if process.command:
        words.append(f"`{process.command}`")
    details = [] if process.memory_bytes is None else [size_text(process.memory_bytes)]
    details += ["orphaned rank of a dead launcher"] if process.orphan else []
    return " ".join(words) + (f" ({', '.join(details)})" if details else "")


def gpu_lost(gpus: LaunchGpus) -> Findings:
    """A GPU no longer answers.

    It fell off the bus (Xid 79) or needs a reset, because of overheating, power or hardware. CUDA opens every visible
    GPU when it starts, so ranks on the other GPUs fail too. Remedy: restart the machine; until then leave the GPU out
    with `--gpus`.
    """
    visible = gpus.visible
    lost = [entry for entry in visible if entry.gpu.fault is not None]
    well = [entry for entry in visible if entry.gpu.fault is None]
    if not lost:
        return
    verb = "does" if len(lost) == 1 else "do"
    rest = f"; meanwhile `ddplaunch run {len(well)} --gpus {choice(well)} …`" if well else ""
    yield error(
        "gpu-lost",
        f"{_listed(lost)} of {len(gpus.nvml.gpus)} {verb} not answer: {lost[0].gpu.fault}",
        why="CUDA opens every visible GPU when it starts and fails at one that does not answer",
        fix=f"`sudo dmesg | grep -i xid` names the cause; restart the machine{rest}",
        where=tuple(f"{gpu_word(entry)}: {entry.gpu.fault}" for entry in lost),
    )


def gpu_ecc_errors(gpus: LaunchGpus) -> Findings:
    """A GPU had uncorrectable memory errors since its driver was loaded.

    The process that hits such an error is ended (Xid 48, 63, 64 or 95). The driver takes the bad memory out of use, but
    a GPU that had one error tends to have another, which would end a long training. Remedy: reset the GPU.
    https://docs.nvidia.com/deploy/gpu-debug-guidelines/
    """
    bad = _with(gpus.used, lambda gpu: known(gpu.ecc_uncorrected, 0) > 0)
    errors = count(sum(known(entry.gpu.ecc_uncorrected, 0) for entry in bad), "uncorrectable ECC error")
    yield from _of_gpus(
        warning,
        "gpu-ecc-errors",
        {entry: str(entry.gpu.ecc_uncorrected) for entry in bad},
        f": {errors} since the driver was loaded",
        "a process that hits such an error is ended, and a GPU that had one tends to have another",
        f"{_RESET}; if they come back, have the GPU tested and leave it out with `--gpus`",
    )


def gpu_remap_pending(gpus: LaunchGpus) -> Findings:
    """A GPU waits for a reset to replace bad rows of its memory.

    Row remapping replaces a defective row with a spare one, but only when the GPU is reset. Remedy: reset the GPU.
    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """
    bad = _with(gpus.used, lambda gpu: gpu.remap_pending is True)
    what = ": a defective memory row will be replaced at the next reset"
    why = "the defective row stays in place until then"
    yield from _of_gpus(warning, "gpu-remap-pending", dict.fromkeys(bad, ""), what, why, _RESET)


def gpu_remap_failed(gpus: LaunchGpus) -> Findings:
    """A GPU could not replace bad rows of its memory.

    It has no spare rows left, which is NVIDIA's criterion for replacing the GPU. The next memory error ends the
    process that runs there. Remedy: leave the GPU out with `--gpus`, and have it replaced.
    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """
    bad = _with(gpus.used, lambda gpu: gpu.remap_failed is True)
    what = ": remapping a defective memory row failed"
    why = "no spare row is left, and the next uncorrectable error ends the training"
    fix = "leave it out with `--gpus`, and have the GPU replaced"
    yield from _of_gpus(error, "gpu-remap-failed", dict.fromkeys(bad, ""), what, why, fix)


def gpu_recovery_needed(gpus: LaunchGpus) -> Findings:
    """The driver asks for a recovery action on a GPU.

    After an error the driver says how to bring the GPU back: a reset, a restart of the machine, or draining the
    peer-to-peer traffic. Until then, work on the GPU fails or hangs. `nvidia-smi -q` shows it as "GPU Recovery Action".
    Remedy: take that action.
    """
    actions = [(entry, known(entry.gpu.recovery_action, "none")) for entry in gpus.used]
    bad = {entry: action for entry, action in actions if action != "none"}
    what = f": the driver asks for the recovery action {next(iter(bad.values()), '')}"
    why = "after a hardware error, work on it fails or hangs until this is done"
    fix = "restart the machine: `sudo reboot`" if "reboot" in str(bad.values()) else _RESET
    yield from _of_gpus(error, "gpu-recovery-needed", bad, what, why, fix)


def gpu_throttled(gpus: LaunchGpus) -> Findings:
    """Heat or the power supply slows a GPU down.

    The hardware lowers the clocks to protect itself. Every rank waits for the slowest, so one hot GPU slows the whole
    job. Idle GPUs and GPUs at their power limit are healthy and not reported. Remedy: better cooling or power supply.
    """
    bad = _with(gpus.used, lambda gpu: bool(known(gpu.throttle_reasons, ())))
    reasons = {entry: _throttle(entry.gpu) for entry in bad}
    fix = "cooling or power: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {}` says which"
    what = f" throttled: {next(iter(reasons.values()), '')}"
    yield from _of_gpus(warning, "gpu-throttled", reasons, what, "every step waits for the slowest GPU", fix)


def _of_gpus(
    kind: Callable[..., Finding], code: str, details: Mapping[VisibleGpu, str], what: str, why: str, fix: str
) -> Findings:
    """Yield a finding about GPUs; ``details`` maps each to what is wrong, ``{}`` in ``fix`` stands for indices."""
    if details:
        places = tuple(f"{gpu_word(entry)}: {detail}".removesuffix(": ") for entry, detail in details.items())
        yield kind(code, f"{_listed([*details])}{what}", why=why, fix=fix.replace("{}", indices(details)), where=places)


def _with(entries: Sequence[VisibleGpu], ill: Callable[[Gpu], bool]) -> list[VisibleGpu]:
    return [entry for entry in entries if entry.gpu.fault is None and ill(entry.gpu)]


def _listed(entries: Sequence[VisibleGpu]) -> str:
    return f"{'GPU' if len(entries) == 1 else 'GPUs'} {', '.join(str(entry.gpu.index) for entry in entries)}"


def _throttle(gpu: Gpu) -> str:
    heat = "" if isinstance(gpu.temperature_c, Unavailable) else f" at {gpu.temperature_c} °C"
    return ", ".join(known(gpu.throttle_reasons, ())) + heat


def amd_devices_denied(nvml: NvmlFacts, host: HostFacts | None = None, launch: Launch | None = None) -> Findings:
    """This user may not open the device files of AMD's GPUs.

    HIP opens /dev/kfd and /dev/dri/renderD128 …, which belong to the groups `render` and `video`; if it cannot open
    them, `torch.cuda.is_available()` is False. This is an error if the launch asks for GPUs and otherwise a warning.
    Remedy: add the user, or the container, to these groups.
    https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html
    """
    if not nvml.denied or (launch is not None and launch.device.value == "cpu"):
        return
    contained = host is not None and host.container is not None
    user = "$LOGNAME" if host is None else shlex.quote(host.user)
    yield (warning if launch is None else error)(
        "amd-devices-denied",
        f"this user may not open {', '.join(nvml.denied)}",
        why="HIP sees a GPU only where it may open these",
        fix="start the container with `--device=/dev/kfd --device=/dev/dri --group-add video`, and `--group-add` with "
        "the number that `getent group render | cut -d: -f3` prints on the host"
        if contained
        else f"`sudo usermod -aG render,video {user}`, then log in again",
    )


def driver_not_loaded(
    nvidia: NvidiaFacts, environment: Mapping[str, str], host: HostFacts | None = None, launch: Launch | None = None
) -> Findings:
    """There are NVIDIA GPUs on the PCI bus, but the driver's kernel module is not loaded.

    Without the module neither NVML nor CUDA sees a GPU. The module is not installed or was not rebuilt for a new kernel
    (DKMS), Secure Boot refuses it, or nouveau holds the GPU. In a container, where only the host can load it, this is a
    warning unless the launch asks for CUDA. Remedy: `sudo modprobe nvidia`, whose error names the cause.
    """
    driver = nvidia.kernel_module_version or nvidia.device_nodes
    if driver or not nvidia.pci_gpus or cpu_was_chosen(environment, launch):
        return
    contained = host is not None and host.container is not None
    needed = launch is not None and launch.device.value == "cuda"
    yield (warning if contained and not needed else error)(
        "driver-not-loaded",
        f"{count(nvidia.pci_gpus, 'NVIDIA GPU')} on the PCI bus, but no NVIDIA kernel module is loaded",
        why="without the module neither NVML nor CUDA sees a GPU",
        fix="`sudo modprobe nvidia`, whose error names the cause; install the driver if the module is not found; "
        "to train on the CPU, add `--device cpu`",
    )


def gpus_not_in_container(
    nvidia: NvidiaFacts, host: HostFacts, environment: Mapping[str, str], launch: Launch | None = None
) -> Findings:
    """The host of this container has NVIDIA GPUs, but the container was started without them.

    A container sees the host's GPUs and driver on the PCI bus and in /proc, but no program can open a GPU without its
    device node (/dev/nvidia0). This is an error if the launch asks for CUDA and otherwise a warning.
    Remedy: `docker run --gpus all`, or the equivalent of another container runtime.
    """
    outside = host.container is None or not nvidia.kernel_module_version
    if outside or nvidia.device_nodes or not nvidia.pci_gpus or cpu_was_chosen(environment, launch):
        return
    needed = launch is not None and launch.device.value == "cuda"
    yield (error if needed else warning)(
        "gpus-not-in-container",
        f"the host has {count(nvidia.pci_gpus, 'NVIDIA GPU')}, this {host.container} container has none",
        why="it has no /dev/nvidia0, so it was started without GPUs",
        fix="start it with `docker run --gpus all …` (needs nvidia-container-toolkit), `podman run --device "
        "nvidia.com/gpu=all …`, or a `nvidia.com/gpu` limit in the pod; to train on the CPU, add `--device cpu`",
    )


CHECKS = checks_in(globals(), "gpu")
