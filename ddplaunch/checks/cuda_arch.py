"""NVIDIA's compatibility rules between a build, a GPU and a driver, as arithmetic; refuses to find fault."""

from __future__ import annotations

import re
from collections.abc import Sequence

# The oldest Linux driver that runs programs of a CUDA major release, by minor version compatibility.
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
OLDEST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580"}
_FIRST_COMPATIBLE_MAJOR = 11
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(arch_list: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether a build for ``arch_list`` ("sm_90", "compute_90" …) runs on a GPU of ``capability``.

    True where the list says nothing of NVIDIA's architectures, since then nothing can be concluded.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    parsed = [match for match in map(_ARCHITECTURE.fullmatch, arch_list) if match]
    return not parsed or any(_fits(match, capability) for match in parsed)


def _fits(match: re.Match[str], capability: tuple[int, int]) -> bool:
    kind, suffix = match[1], match[4]
    built = (int(match[2]), int(match[3]))
    if suffix == "a":  # architecture-specific: this very one, as machine code or as PTX
        return built == capability
    if kind == "compute" and suffix == "":
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def driver_suffices(built_for: str, driver: tuple[int, int]) -> bool:
    """Whether a driver that supports CUDA ``driver`` runs a build for CUDA ``built_for`` ("12.8").

    Since CUDA 11 every driver of the same major release does; before, it had to be as new. True for a version that
    cannot be read.
    """
    match = re.match(r"(\d+)\.(\d+)", built_for)
    if match is None:
        return True
    build = (int(match[1]), int(match[2]))
    if build[0] >= _FIRST_COMPATIBLE_MAJOR:
        return driver[0] >= build[0]
    return driver >= build
