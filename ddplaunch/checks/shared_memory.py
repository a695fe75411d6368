"""Checks of /dev/shm; refuses to remove anything from it."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.quantities import GIB, MIB, size, workers_per_process
from ddplaunch.checks.user_variables import user_variables
from ddplaunch.finding import Finding, error, warning
from ddplaunch.launch.plan import Launch
from ddplaunch.probes.facts import ShmFacts

DOCKER_DEFAULT_BYTES = 64 * MIB  # docs.docker.com/reference/cli/docker/container/run: --shm-size
# NCCL's troubleshooting page asks for `--shm-size=1g --ulimit memlock=-1` in containers.
ENOUGH_BYTES = GIB
NEARLY_FULL_BYTES = 256 * MIB


def shm_too_small(shm: ShmFacts, environment: dict[str, str], launch: Launch | None = None) -> Iterator[Finding]:
    """/dev/shm is too small for NCCL or DataLoader workers.

    Docker makes it 64 MiB. NCCL's ranks on one host exchange data through it where GPUs cannot reach each other
    directly, and DataLoader workers hand every batch over in it; when it is full they die with SIGBUS or "No space
    left on device". It is an error where the launch is known to need it. Remedy: `--ipc=host` or `--shm-size=16g`.
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    if shm.size_bytes >= ENOUGH_BYTES:
        return
    needed_by = _needed_by(environment, launch)
    tiny = shm.size_bytes <= DOCKER_DEFAULT_BYTES
    if launch and not needed_by and not (tiny and workers_per_process(launch) is None):
        return
    certain = launch is not None and needed_by is not None and tiny
    yield (error if certain else warning)(
        "shm-too-small",
        f"/dev/shm is {size(shm.size_bytes)}",
        why=f"{needed_by or 'NCCL and DataLoader workers'} allocate from it and die with SIGBUS or "
        "`No space left on device` when it is full",
        fix="restart the container with `--ipc=host` or `--shm-size=16g`; on a host, "
        "`sudo mount -o remount,size=16g /dev/shm`",
    )


def _needed_by(environment: dict[str, str], launch: Launch | None) -> str | None:
    """Return who is known to use /dev/shm in this launch, None where nobody is known to."""
    if launch is None:
        return None
    users = []
    settings = {setting.name: setting.value for setting in user_variables(environment, launch)}
    processes = launch.topology.nproc_per_node.value
    allowed = settings.get("NCCL_SHM_DISABLE", "0") in ("", "0")
    if launch.device.value == "cuda" and processes > 1 and allowed:
        users.append(f"{processes} NCCL ranks")
    if workers := workers_per_process(launch):
        users.append(f"{processes * workers} DataLoader workers")
    return " and ".join(users) or None


def shm_nearly_full(shm: ShmFacts) -> Iterator[Finding]:
    """/dev/shm is large enough but nearly full.

    Files of processes that were killed stay in it until they are removed, or the machine restarts. NCCL and
    DataLoader workers die with SIGBUS or "No space left on device" when nothing is free.
    Remedy: remove files there that no process has open.
    """
    if shm.size_bytes >= ENOUGH_BYTES and shm.free_bytes < NEARLY_FULL_BYTES:
        yield warning(
            "shm-nearly-full",
            f"/dev/shm has {size(shm.free_bytes)} of {size(shm.size_bytes)} free",
            why="NCCL and DataLoader workers allocate from it and die with SIGBUS when it is full; killed processes "
            "leave their files behind",
            fix="`ls -lhS /dev/shm | head -20` lists them; remove those that `fuser -v FILE` shows nobody using",
        )


CHECKS: tuple[Check, ...] = tuple(declare("host", check) for check in (shm_too_small, shm_nearly_full))
