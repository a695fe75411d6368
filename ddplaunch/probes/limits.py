"""Resource limits of this process and its cgroup's limit on processes; refuses to raise or lower any."""

from __future__ import annotations

import resource
from pathlib import Path

from ddplaunch.probes import cgroup
from ddplaunch.probes.facts import LimitFacts


def probe_limits(root: Path = Path("/")) -> LimitFacts:
    """Return soft and hard limits (None is unlimited); ranks inherit them through torchrun."""
    files_soft, files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LimitFacts(
        open_files_soft=_finite(files_soft),
        open_files_hard=_finite(files_hard),
        memlock_bytes=_finite(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        processes_soft=_finite(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
        cgroup_pids_max=cgroup.levels("pids", root).minimum("pids.max"),
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
