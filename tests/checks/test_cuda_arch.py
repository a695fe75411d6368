"""NVIDIA's rules of which build runs on which GPU and driver."""

from __future__ import annotations

import pytest

from ddplaunch.checks.torch_install import driver_suffices, runs_on


@pytest.mark.parametrize(
    ("arch_list", "capability", "expected"),
    [
        (("sm_80",), (8, 0), True),
        (("sm_80",), (8, 6), True),  # same major, higher minor
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),  # machine code does not cross a major
        (("sm_80", "compute_80"), (9, 0), True),  # PTX does
        (("compute_90",), (8, 0), False),
        (("sm_90a",), (9, 0), True),
        (("compute_90a",), (10, 0), False),  # architecture-specific PTX does not
        (("sm_100f",), (10, 3), True),
        (("sm_100",), (12, 0), False),
        ((), (9, 0), True),  # nothing known, nothing concluded
    ],
)
def test_which_gpus_a_build_runs_on(arch_list: tuple[str, ...], capability: tuple[int, int], expected: bool) -> None:
    assert runs_on(arch_list, capability) is expected


@pytest.mark.parametrize(
    ("built_for", "driver", "expected"),
    [
        ("12.8", (12, 2), True),
        ("12.8", (13, 0), True),
        ("12.1", (11, 8), False),
        ("11.8", (11, 0), True),
        ("13.0", (12, 9), False),
        ("10.2", (10, 1), False),  # before CUDA 11 the minor version counted
        ("10.2", (10, 2), True),
    ],
)
def test_which_drivers_run_a_build(built_for: str, driver: tuple[int, int], expected: bool) -> None:
    assert driver_suffices(built_for, driver) is expected
