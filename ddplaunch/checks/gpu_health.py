"""Are the GPUs themselves well: lost, memory errors, pending resets, throttled; refuses to reset anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.used_gpus import choice, counted, gpu_word, indices, seen_by_ranks, used_gpus
from ddplaunch.finding import Finding, error, warning
from ddplaunch.launch.plan import Launch
from ddplaunch.launch.visible_gpus import VisibleGpu
from ddplaunch.probes.facts import Gpu, NvmlFacts
from ddplaunch.values import Unavailable

_RESET = "with nothing running on them, `sudo nvidia-smi --gpu-reset -i {}`, or restart the machine"


def gpu_lost(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None) -> Iterator[Finding]:
    """A GPU does not answer any more.

    It fell off the bus (Xid 79) or needs a reset, by overheating, power or hardware. CUDA touches every visible GPU
    when it starts, so that also ranks on the others fail; leave the GPU out with `--gpus` until it is repaired.
    """
    if launch is None:
        visible = used_gpus(nvml, environment, launch)
    else:
        visible = seen_by_ranks(nvml, environment, launch).entries if launch.device.value == "cuda" else ()
    lost = [entry for entry in visible if entry.gpu.fault is not None]
    well = [entry for entry in visible if entry.gpu.fault is None]
    if not lost:
        return
    rest = f"; meanwhile `ddplaunch run {len(well)} --gpus {choice(well, environment)} …`" if well else ""
    yield error(
        "gpu-lost",
        f"{_listed(lost)} of {len(nvml.gpus)} {'does' if len(lost) == 1 else 'do'} not answer: {lost[0].gpu.fault}",
        why="CUDA touches every visible GPU when it starts and fails at one that does not answer",
        fix=f"`sudo dmesg | grep -i xid` names the cause; restart the machine{rest}",
        where=tuple(f"{gpu_word(entry)}: {entry.gpu.fault}" for entry in lost),
    )


def gpu_ecc_errors(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None) -> Iterator[Finding]:
    """A GPU had uncorrectable memory errors since its driver was loaded.

    The process that met such an error was ended (Xid 48, 63, 64 or 95). The driver takes the bad memory out of use, but
    a GPU that had one tends to have another, and a long training then dies of it.
    https://docs.nvidia.com/deploy/gpu-debug-guidelines/
    """
    bad = _with(used_gpus(nvml, environment, launch), lambda gpu: _positive(gpu.ecc_uncorrected))
    if bad:
        yield warning(
            "gpu-ecc-errors",
            f"{_listed(bad)}: {counted(_total(bad), 'uncorrectable ECC error')} since the driver was loaded",
            why="a process that meets such an error is ended, and a GPU that had one tends to have another",
            fix=f"{_RESET.format(indices(bad))}; if they come back, have the GPU tested and leave it out with `--gpus`",
            where=tuple(f"{gpu_word(entry)}: {entry.gpu.ecc_uncorrected}" for entry in bad),
        )


def gpu_remap_pending(
    nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """A GPU waits for a reset to replace bad rows of its memory.

    Row remapping swaps a defective row for a spare one, but only when the GPU is reset. Until then it runs with pages
    taken out of use.
    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """
    bad = _with(used_gpus(nvml, environment, launch), lambda gpu: gpu.remap_pending is True)
    if bad:
        yield warning(
            "gpu-remap-pending",
            f"{_listed(bad)}: a memory row is to be remapped at the next reset",
            why="the defective row stays in place until then",
            fix=_RESET.format(indices(bad)),
            where=tuple(gpu_word(entry) for entry in bad),
        )


def gpu_remap_failed(
    nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """A GPU could not replace bad rows of its memory.

    It has no spare rows left, which is NVIDIA's criterion for replacing the GPU. The next memory error ends whatever
    runs there.
    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """
    bad = _with(used_gpus(nvml, environment, launch), lambda gpu: gpu.remap_failed is True)
    if bad:
        yield error(
            "gpu-remap-failed",
            f"{_listed(bad)}: remapping a defective memory row failed",
            why="no spare row is left, and the next uncorrectable error ends the training",
            fix="leave it out with `--gpus`, and have the GPU replaced",
            where=tuple(gpu_word(entry) for entry in bad),
        )


def gpu_recovery_needed(
    nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """The driver asks for a recovery action on a GPU.

    After an error the driver says what brings the GPU back: a reset, a restart of the machine, or draining the
    peer-to-peer traffic. Until that is done, work on the GPU fails or hangs.
    `nvidia-smi -q` shows it as "GPU Recovery Action".
    """
    bad = [entry for entry in used_gpus(nvml, environment, launch) if _recovery(entry.gpu)]
    if not bad:
        return
    reboot = any("reboot" in _recovery(entry.gpu) for entry in bad)
    yield error(
        "gpu-recovery-needed",
        f"{_listed(bad)}: the driver asks for the recovery action {_recovery(bad[0].gpu)}",
        why="after a hardware error, work on it fails or hangs until this is done",
        fix="restart the machine: `sudo reboot`" if reboot else _RESET.format(indices(bad)),
        where=tuple(f"{gpu_word(entry)}: {_recovery(entry.gpu)}" for entry in bad),
    )


def gpu_throttled(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None) -> Iterator[Finding]:
    """A GPU is slowed down by heat or by its power supply.

    The hardware lowers the clocks to protect itself. Every rank waits for the slowest, so one hot GPU slows the whole
    job. A GPU that is idle or at its power limit is as it should be and not meant here.
    """
    bad = _with(used_gpus(nvml, environment, launch), lambda gpu: bool(_reasons(gpu)))
    if bad:
        yield warning(
            "gpu-throttled",
            f"{_listed(bad)} slowed down: {_throttle(bad[0].gpu)}",
            why="every step waits for the slowest GPU",
            fix=f"cooling or power: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {indices(bad)}` tells which",
            where=tuple(f"{gpu_word(entry)}: {_throttle(entry.gpu)}" for entry in bad),
        )


def _with(entries: Sequence[VisibleGpu], ill: Callable[[Gpu], bool]) -> list[VisibleGpu]:
    return [entry for entry in entries if entry.gpu.fault is None and ill(entry.gpu)]


def _listed(entries: Sequence[VisibleGpu]) -> str:
    return f"{'GPU' if len(entries) == 1 else 'GPUs'} {', '.join(str(entry.gpu.index) for entry in entries)}"


def _positive(number: int | Unavailable) -> bool:
    return not isinstance(number, Unavailable) and number > 0


def _total(entries: Sequence[VisibleGpu]) -> int:
    counts = (entry.gpu.ecc_uncorrected for entry in entries)
    return sum(count for count in counts if not isinstance(count, Unavailable))


def _recovery(gpu: Gpu) -> str:
    action = gpu.recovery_action
    return "" if isinstance(action, Unavailable) or action == "none" else action


def _reasons(gpu: Gpu) -> tuple[str, ...]:
    return () if isinstance(gpu.throttle_reasons, Unavailable) else gpu.throttle_reasons


def _throttle(gpu: Gpu) -> str:
    heat = "" if isinstance(gpu.temperature_c, Unavailable) else f" at {gpu.temperature_c} °C"
    return ", ".join(_reasons(gpu)) + heat


CHECKS: tuple[Check, ...] = (
    declare("gpu", gpu_lost),
    declare("gpu", gpu_ecc_errors),
    declare("gpu", gpu_remap_pending),
    declare("gpu", gpu_remap_failed),
    declare("gpu", gpu_recovery_needed),
    declare("gpu", gpu_throttled),
)
