"""How many GPUs of this machine work right now, as NVML says in a child process; refuses to guess without NVML."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_DEADLINE_S = 20.0  # a driver that hangs is one of the reasons to be asked
_WORKS_PERCENT = 10


def working_gpus() -> int:
    """Return how many GPUs are used by 10 % or more; 0 where nothing tells.

    The guard has no site-packages, and a driver may not answer: a child asks, and is given up after some seconds.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ddplaunch.probes"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_DEADLINE_S,
            check=False,
        )
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0
    gpus = (facts.get("nvml") or {}).get("gpus") or ()
    used = [gpu.get("utilization_percent") for gpu in gpus if isinstance(gpu, dict)]
    return sum(isinstance(percent, int) and percent >= _WORKS_PERCENT for percent in used)
